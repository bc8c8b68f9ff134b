"""Decisions about consumer groups in the making: settings, topics and time of the decision, and members' timers."""

from collections.abc import Callable
from functools import partial
from typing import Final

from klamm.coordinator.core.shard import Decision, Now
from klamm.coordinator.groups.classic.classic_decision import SESSION
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import ConsumerMember, MemberState
from klamm.coordinator.groups.consumer.pattern import Patterns
from klamm.coordinator.groups.consumer.topology import Topology
from klamm.coordinator.groups.decision_builder import DecisionBuilder

REVOKE: Final = "revoke"
"""Timer of a member that must give partitions back."""
REJOIN: Final = "rejoin"
"""Timer of a classic member that got REBALANCE_IN_PROGRESS and must rejoin."""
SYNC_MEMBER: Final = "sync-member"
"""Timer of a classic member that has joined and must fetch its assignment."""

__all__ = ["REJOIN", "REVOKE", "SESSION", "SYNC_MEMBER", "ConsumerDecisionBuilder"]


class ConsumerDecisionBuilder(DecisionBuilder):
    """Collects a decision about a consumer group. Timer keys are (kind, group, member).

    SESSION is the kind classic groups use too: a member keeps one session timer when its group migrates.
    Soft state (`checked_image`, `revoking`, `rejoining` of the group) changes when the decision is built, so a request
    that is refused on the way changes nothing at all.
    """

    __slots__ = ("_soft_updates", "config", "may_describe", "now", "patterns", "topology")

    def __init__(self, config: GroupConfig, topology: Topology, patterns: Patterns, now: Now) -> None:
        super().__init__()
        self.config = config
        self.topology = topology
        self.patterns = patterns
        self.now = now
        self.may_describe: Callable[[str], bool] | None = None
        """Whether the client whose request is decided may describe a topic; None means any topic."""
        self._soft_updates: list[Callable[[], object]] = []

    def build(self) -> Decision:
        """Apply the changes of soft state and return the decision."""
        for update in self._soft_updates:
            update()
        return super().build()

    def mark_topics_checked(self, group: ConsumerGroup) -> None:
        """Note that the group's epoch and patterns are up to date with the current image."""
        self._soft_updates.append(partial(setattr, group, "checked_image", self.topology.image))

    def session_timeout_ms(self, group_id: str, member: ConsumerMember) -> int:
        """Return the session timeout of a member; classic members choose it in JoinGroup, others have the group's."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.config.consumer.session_timeout_of(self.topology.group_values(group_id))

    def start_session_timer(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove the member unless it sends a request within its session timeout."""
        deadline_ms = self.now.ms + self.session_timeout_ms(group.group_id, member)
        self.set_timer((SESSION, group.group_id, member.member_id), deadline_ms)

    def update_revocation_timer(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Give a member that must revoke partitions its rebalance timeout for it; cancel the timer of any other."""
        key = (REVOKE, group.group_id, member.member_id)
        # Classic members revoke by rejoining, which has a timer of its own.
        if member.state == MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol:
            self._soft_updates.append(partial(group.revoking.__setitem__, member.member_id, member.member_epoch))
            self.set_timer(key, self.now.ms + member.rebalance_timeout_ms)
        elif member.member_id in group.revoking:
            self._soft_updates.append(partial(group.revoking.pop, member.member_id, None))
            self.cancel_timer(key)

    def start_rejoin_timer(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove a classic member unless it rejoins within its rebalance timeout after REBALANCE_IN_PROGRESS."""
        if member.member_id not in group.rejoining:
            self._soft_updates.append(partial(group.rejoining.add, member.member_id))
            self.set_timer((REJOIN, group.group_id, member.member_id), self.now.ms + member.rebalance_timeout_ms)

    def cancel_rejoin_timer(self, group: ConsumerGroup, member_id: str) -> None:
        """Note that a classic member has rejoined."""
        self._soft_updates.append(partial(group.rejoining.discard, member_id))
        self.cancel_timer((REJOIN, group.group_id, member_id))

    def start_sync_timer(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Remove a classic member unless it syncs within its rebalance timeout."""
        self.set_timer((SYNC_MEMBER, group.group_id, member.member_id), self.now.ms + member.rebalance_timeout_ms)

    def cancel_sync_timer(self, group: ConsumerGroup, member_id: str) -> None:
        """Note that a classic member has fetched its assignment."""
        self.cancel_timer((SYNC_MEMBER, group.group_id, member_id))

    def cancel_member_timers(self, group: ConsumerGroup, member_id: str) -> None:
        """Cancel every timer of a member that has left."""
        self._soft_updates.append(partial(group.rejoining.discard, member_id))
        self._soft_updates.append(partial(group.revoking.pop, member_id, None))
        for kind in (SESSION, REVOKE, REJOIN, SYNC_MEMBER):
            self.cancel_timer((kind, group.group_id, member_id))

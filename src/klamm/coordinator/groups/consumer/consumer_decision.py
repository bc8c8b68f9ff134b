"""One decision about a consumer group in the making: the rules, the cluster, the moment, and what follows."""

from dataclasses import dataclass, field
from typing import Final

from klamm.coordinator.core.shard import Now
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import Member, MemberState
from klamm.coordinator.groups.consumer.pattern import Patterns
from klamm.coordinator.groups.consumer.topology import Topology
from klamm.coordinator.groups.decision_builder import Outcome

SESSION: Final = "session"
"""A member must be heard of. The same word as in classic groups: a member that migrates has one session."""
REVOKE: Final = "revoke"
"""A member must have given partitions back."""
REJOIN: Final = "rejoin"
"""A classic member was told to rejoin and must have done so."""
SYNC_MEMBER: Final = "sync-member"
"""A classic member has joined and must fetch its assignment."""


@dataclass(slots=True)
class Turn:
    """Timer keys are (word, group, member)."""

    config: GroupConfig
    topology: Topology
    patterns: Patterns
    now: Now
    out: Outcome = field(default_factory=Outcome)

    def session_timeout_ms(self, group_id: str, member: Member) -> int:
        """After how much silence a member is gone; classic members choose themselves."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.config.consumer.session_timeout_of(self.topology.group_values(group_id))

    def expect(self, group: ConsumerGroup, member: Member) -> None:
        """The member must be heard of again within its session timeout."""
        deadline_ms = self.now.ms + self.session_timeout_ms(group.group_id, member)
        self.out.timer((SESSION, group.group_id, member.member_id), deadline_ms)

    def expect_revocation(self, group: ConsumerGroup, member: Member) -> None:
        """A member that has to give partitions back has its rebalance timeout for it; others have nothing to prove."""
        key = (REVOKE, group.group_id, member.member_id)
        if member.state == MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol:
            group.revoking[member.member_id] = member.member_epoch
            self.out.timer(key, self.now.ms + member.rebalance_timeout_ms)
        elif group.revoking.pop(member.member_id, None) is not None:
            self.out.timer(key, None)

    def expect_rejoin(self, group: ConsumerGroup, member: Member) -> None:
        """A classic member was told to rejoin; the first time it is told counts."""
        if member.member_id not in group.rejoining:
            group.rejoining.add(member.member_id)
            self.out.timer((REJOIN, group.group_id, member.member_id), self.now.ms + member.rebalance_timeout_ms)

    def expect_no_rejoin(self, group: ConsumerGroup, member_id: str) -> None:
        """It has rejoined."""
        group.rejoining.discard(member_id)
        self.out.timer((REJOIN, group.group_id, member_id), None)

    def expect_sync(self, group: ConsumerGroup, member: Member) -> None:
        """A classic member has joined and should sync."""
        self.out.timer((SYNC_MEMBER, group.group_id, member.member_id), self.now.ms + member.rebalance_timeout_ms)

    def expect_no_sync(self, group: ConsumerGroup, member_id: str) -> None:
        """It has its assignment."""
        self.out.timer((SYNC_MEMBER, group.group_id, member_id), None)

    def forget(self, group: ConsumerGroup, member_id: str) -> None:
        """Nothing is expected of a member any more."""
        group.rejoining.discard(member_id)
        group.revoking.pop(member_id, None)
        for word in (SESSION, REVOKE, REJOIN, SYNC_MEMBER):
            self.out.timer((word, group.group_id, member_id), None)

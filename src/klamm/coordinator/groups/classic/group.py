"""A classic group: its members, its generation, its state.

What a record has stored (`generation_id`, `protocol_name`, assignments of a stable group) survives a restart. Waiting
joins and syncs, member ids that were given out but not used yet, and the generation of an unfinished rebalance are
soft: after a restart members get UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION and join again.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from klamm.coordinator.core.java_hash import hash_map_bucket
from klamm.coordinator.core.shard import CoordinatorRecord, ReplyTo, make_record
from klamm.coordinator.groups.classic.member import ClassicMember, Protocols
from klamm.coordinator.groups.classic.state import (
    COMPLETING_REBALANCE,
    DEAD,
    EMPTY,
    PREPARING_REBALANCE,
    PREVIOUS,
    STABLE,
    GroupState,
)
from klamm.coordinator.groups.classic.subscription import subscribed_topics
from klamm.coordinator.groups.offsets import CommittedOffset, commit_timestamp
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.group_records import GroupMetadataKey

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class ClassicGroup:
    """State of one group; methods keep its parts in step, decisions are made elsewhere."""

    kind: Final = "classic"

    def __init__(self, group_id: str, state_timestamp: int = -1) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.previous_state = EMPTY
        self.state_timestamp = state_timestamp
        """When the state was entered; -1 when it comes from an old record without a timestamp."""
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.pending_members: set[str] = set()
        """Member ids given out that have not joined yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self.new_member_added = False
        """Whether a member joined during the initial delay, which is then extended."""
        self.initial_delay_left_ms = 0
        self._subscriptions: tuple[bytes | None, ...] = ()
        """Subscriptions of the members of the current generation."""
        self._supporters: dict[str, int] = {}
        """How many members offer each protocol."""
        self._awaiting_joins = 0

    def __repr__(self) -> str:
        return f"ClassicGroup({self.group_id!r}, {self.state.value}, generation {self.generation_id}, {self.members})"

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state is EMPTY

    @property
    def state_name(self) -> str:
        """The state as Kafka shows it."""
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        """The protocol type, empty when no member ever joined."""
        return self.protocol_type or ""

    @property
    def awaiting_joins(self) -> int:
        """How many members wait in a join."""
        return self._awaiting_joins

    @property
    def has_all_members_joined(self) -> bool:
        """Whether every member waits in a join and no member id is outstanding."""
        return len(self.members) == self._awaiting_joins and not self.pending_members

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in PREVIOUS[PREPARING_REBALANCE]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for its members: the longest timeout of them."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_leader(self, member_id: str) -> bool:
        """Whether a member assigns for the others."""
        return self.leader_id == member_id

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols fits the others."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        if self.protocol_type == protocol_type:
            size = len(self.members)
            for name, _ in protocols:
                # One protocol that all members offer must remain, or `select_protocol` has no candidate.
                if self._supporters.get(name, 0) == size:
                    return True
        return False

    def select_protocol(self) -> str:
        """Return the protocol most members prefer among those all support; of equals the one Kafka takes."""
        size = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == size}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        # Kafka iterates over a HashMap and keeps the first maximum: of equals, the name in the lowest bucket wins.
        ranked = [(-count, hash_map_bucket(name), order, name) for order, (name, count) in enumerate(votes.items())]
        return min(ranked)[3]

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return the member; KlammError when it is unknown or its instance id has a newer member."""
        if instance_id is not None:
            # The instance id first: a fenced member that got UNKNOWN_MEMBER_ID would rejoin and fence its successor in
            # turn.
            known = self.static_members.get(instance_id)
            if known is None:
                raise KlammError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has no member with instance id {instance_id}"
                )
            if known != member_id:
                raise KlammError(ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id} belongs to member {known}")
        member = self.members.get(member_id)
        if member is None:
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self.group_id}")
        return member

    # The interface of `groups.group.Group`

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        version: int,  # noqa: ARG002 - the other kind of group needs it
    ) -> None:
        """Allow members of the current generation, and any client while the group has no members."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # Generation -1 without members: a consumer with manual assignment, or an admin tool.
        if generation_or_epoch < 0 and self.state is EMPTY:
            return
        if generation_or_epoch >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation_or_epoch != self.generation_id:
                raise KlammError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"generation {generation_or_epoch} is not the current one, {self.generation_id}",
                )
        elif not transactional and self.state is not EMPTY:
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has members: a commit needs a member id")
        # The member has the new generation but not its assignment: the offset may belong to another member by now.
        if not transactional and self.state is COMPLETING_REBALANCE:
            raise KlammError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Allow every client."""

    def check_offset_delete(self) -> None:
        """Refuse while there are members, unless they are consumers, whose subscriptions are known."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KlammError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        """Refuse while the group has members."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY:
            raise KlammError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a consumer reads the topic; true when a subscription cannot be decoded."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics = self._topics()
        return topics is None or topic in topics

    def _topics(self) -> frozenset[str] | None:
        topics_of_members: set[str] = set()
        for subscription in self._subscriptions:
            topics = subscribed_topics(subscription)
            if topics is None:
                return None
            topics_of_members |= topics
        return frozenset(topics_of_members)

    def expiration_base(self) -> Callable[[CommittedOffset], int] | None:
        """Count retention from when the group became empty; of a topic without subscribers, from the last commit."""
        # KIP-211. Without a protocol type no member ever joined, so only the time of the commit is known.
        if self.protocol_type is not None:
            if self.state is EMPTY:
                since = self.state_timestamp
                return partial(_constant, since) if since >= 0 else commit_timestamp
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.state is STABLE and self._topics() is not None:
                return commit_timestamp
            return None
        return commit_timestamp

    def tombstones(self) -> list[CoordinatorRecord]:
        """The record that removes the group."""
        return [make_record(GroupMetadataKey(group=self.group_id), None)]

    def waiting(self) -> Iterable[ReplyTo]:
        """Return where waiting joins and syncs are to be answered."""
        for member in self.members.values():
            if member.awaiting_join is not None:
                yield member.awaiting_join
            if member.awaiting_sync is not None:
                yield member.awaiting_sync

    # Changes

    def transition_to(self, state: GroupState, wall_ms: int) -> None:
        """Enter a state."""
        assert self.state in PREVIOUS[state], f"{self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp = wall_ms

    def remember_subscriptions(self) -> None:
        """Keep the subscriptions of a new generation: they hold until the next one, even while members rejoin."""
        self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self.members.values())

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Add a member; the first one leads."""
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        # The first member fixes the protocol type; later ones must match it (`supports`).
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        if member.awaiting_join is not None:
            self._awaiting_joins += 1
        self.pending_members.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member; when it led, another one does."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.awaiting_join is not None:
                self._awaiting_joins -= 1
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        # Any member can lead; the one that joined first is as good as another.
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Replace what a member offered when it joined."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static(self, instance_id: str, new_member_id: str) -> ClassicMember:
        """Give a static member a new member id; its waiting join and sync must have been answered."""
        old_id = self.static_members[instance_id]
        old = self.members.pop(old_id)
        assert old.awaiting_join is None
        assert old.awaiting_sync is None
        # The object moves to the new id, so that the assignment survives without a rebalance (KIP-345).
        old.member_id = new_member_id
        self.members[new_member_id] = old
        self.static_members[instance_id] = new_member_id
        self.pending_sync.discard(old_id)
        if self.leader_id == old_id:
            self.leader_id = new_member_id
        return old

    def await_join(self, member: ClassicMember, reply_to: ReplyTo) -> ReplyTo | None:
        """Let a member wait for the next generation; return the earlier join that it replaces, if any."""
        before, member.awaiting_join = member.awaiting_join, reply_to
        if before is None:
            self._awaiting_joins += 1
        return before

    def take_join(self, member: ClassicMember) -> ReplyTo | None:
        """Return where the member's join is to be answered; the member no longer waits."""
        reply_to, member.awaiting_join = member.awaiting_join, None
        if reply_to is not None:
            self._awaiting_joins -= 1
        return reply_to

    def elect_joined_leader(self) -> bool:
        """Make sure that a member waiting in a join leads; return False when there is none."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.awaiting_join is not None:
            return True
        # Only a leader that receives a JoinGroup response sends assignments.
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def _count(self, protocols: Protocols, by: int) -> None:
        for name, _ in protocols:
            count = self._supporters.get(name, 0) + by
            if count:
                self._supporters[name] = count
            else:
                self._supporters.pop(name, None)

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        assert self._awaiting_joins == sum(m.awaiting_join is not None for m in self.members.values())
        assert set(self.static_members.values()) == {m.member_id for m in self.members.values() if m.is_static}
        assert all(key == member.member_id for key, member in self.members.items())
        assert not self.pending_members & self.members.keys(), "a member is still pending"
        assert self.pending_sync <= self.members.keys(), "a member that left is expected to sync"
        assert (self.leader_id in self.members) if self.members else self.leader_id is None, "no leader"
        counted: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                counted[name] = counted.get(name, 0) + 1
        assert counted == self._supporters, "supporters of protocols are miscounted"
        if self.members:
            assert len(self.members) in counted.values(), "the members have no protocol in common"
        if self.state is EMPTY:
            assert not self.members
        if self.state in (STABLE, COMPLETING_REBALANCE):
            assert self.members
            assert self._supporters.get(self.protocol_name or "") == len(self.members), (
                "a member does not support the protocol"
            )
            assert not self._awaiting_joins, "a join waits for a rebalance that is over"
        if self.state is not COMPLETING_REBALANCE:
            assert all(m.awaiting_sync is None for m in self.members.values()), "a sync waits outside a rebalance"


def _constant(timestamp_ms: int, _committed: CommittedOffset) -> int:
    return timestamp_ms

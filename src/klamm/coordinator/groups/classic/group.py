"""A classic group: its members, its generation, its state.

What a record has stored (`generation_id`, `protocol_name`, assignments of a stable group) survives a restart. Who is
waiting, who has been given a member id but has not come back with it, and the generation of a rebalance that is not
finished are soft: after a restart the members find out and join again.
"""

from collections.abc import Callable, Iterable
from typing import Final

from klamm.coordinator.core.java_hash import map_place
from klamm.coordinator.core.shard import Record, ReplyTo, make_record
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
from klamm.coordinator.groups.offsets import CommittedOffset
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
        """When the state was entered; -1 when an old record does not say."""
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
        """Members of this generation that have not asked for their assignment yet."""
        self.new_member_added = False
        """Whether somebody came during the initial delay, which then is prolonged."""
        self.initial_delay_left_ms = 0
        self._subscriptions: tuple[bytes | None, ...] = ()
        """What the members of the last agreed generation said."""
        self._supporters: dict[str, int] = {}
        """How many members offer each protocol."""
        self._awaiting_joins = 0

    def __repr__(self) -> str:
        return f"ClassicGroup({self.group_id!r}, {self.state.value}, generation {self.generation_id}, {self.members})"

    # Questions

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        return self.state is EMPTY

    @property
    def state_name(self) -> str:
        """The state as Kafka shows it."""
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        """The protocol type, empty when nobody ever joined."""
        return self.protocol_type or ""

    @property
    def awaiting_joins(self) -> int:
        """How many members wait in a join."""
        return self._awaiting_joins

    @property
    def has_all_members_joined(self) -> bool:
        """Whether everybody who is expected waits in a join."""
        return len(self.members) == self._awaiting_joins and not self.pending_members

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in PREVIOUS[PREPARING_REBALANCE]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for its members: as long as the most patient one asks."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_leader(self, member_id: str) -> bool:
        """Whether a member assigns for the others."""
        return self.leader_id == member_id

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these protocols could be a member beside the others."""
        if self.state is EMPTY:
            return bool(protocol_type and protocols)
        if self.protocol_type == protocol_type:
            everybody = len(self.members)
            for name, _ in protocols:
                if self._supporters.get(name, 0) == everybody:
                    return True
        return False

    def select_protocol(self) -> str:
        """The protocol most members like best among those all of them speak; of equals the one Kafka would take."""
        everybody = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == everybody}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: (votes[name], -map_place(name)))

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member, or the KlammError that says why it is none (any more)."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"nobody is {instance_id} in {self.group_id}")
            if known != member_id:
                raise KlammError(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is now {known}")
        member = self.members.get(member_id)
        if member is None:
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {self.group_id}")
        return member

    # What other parts of a shard ask of any group

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        version: int,  # noqa: ARG002 - the other kind of group needs it
    ) -> None:
        """Members of the current generation may commit; anybody may to a group without members."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation_or_epoch < 0 and self.state is EMPTY:
            return
        if generation_or_epoch >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation_or_epoch != self.generation_id:
                raise KlammError(ErrorCode.ILLEGAL_GENERATION, f"the generation is {self.generation_id}")
        elif not transactional and self.state is not EMPTY:
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has members, and only they may commit")
        if not transactional and self.state is COMPLETING_REBALANCE:
            raise KlammError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may look."""

    def check_offset_delete(self) -> None:
        """While there are members, only consumers' groups can tell which topics are in use."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KlammError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        """Only a group without members may go."""
        if self.state is DEAD:
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
        if self.state is not EMPTY:
            raise KlammError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a consumer of the group reads the topic; yes when its words cannot be understood."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        topics = self._topics()
        return topics is None or topic in topics

    def _topics(self) -> frozenset[str] | None:
        found: set[str] = set()
        for subscription in self._subscriptions:
            topics = subscribed_topics(subscription)
            if topics is None:
                return None
            found |= topics
        return frozenset(found)

    def expiration_base(self) -> Callable[[CommittedOffset], int] | None:
        """Offsets outlive the last member by their retention; those of topics nobody reads, their last commit."""
        if self.protocol_type is not None:
            if self.state is EMPTY:
                since = self.state_timestamp
                return (lambda _: since) if since >= 0 else _commit_timestamp
            if self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.state is STABLE and self._topics() is not None:
                return _commit_timestamp
            return None
        return _commit_timestamp

    def tombstones(self) -> list[Record]:
        """The record that removes the group."""
        return [make_record(GroupMetadataKey(group=self.group_id), None)]

    def waiting(self) -> Iterable[ReplyTo]:
        """Everybody who waits in a join or sync."""
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

    def agreed(self) -> None:
        """A generation has begun: what its members say now is what the group reads until the next one."""
        self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self.members.values())

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        """Take somebody in; the first one leads."""
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
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
        """Let somebody go; when it led, another one does."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            if member.awaiting_join is not None:
                self._awaiting_joins -= 1
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(
        self, member: ClassicMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """A member has said anew what it offers."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static(self, instance_id: str, new_member_id: str) -> ClassicMember:
        """Give a static member's place, with all it has, to a new member id; whoever held it waits for nothing."""
        old_id = self.static_members[instance_id]
        old = self.members.pop(old_id)
        assert old.awaiting_join is None
        assert old.awaiting_sync is None
        old.member_id = new_member_id
        self.members[new_member_id] = old
        self.static_members[instance_id] = new_member_id
        self.pending_sync.discard(old_id)
        if self.leader_id == old_id:
            self.leader_id = new_member_id
        return old

    def await_join(self, member: ClassicMember, reply_to: ReplyTo) -> ReplyTo | None:
        """A member waits for the next generation; returns the reply it waited for before, if any."""
        before, member.awaiting_join = member.awaiting_join, reply_to
        if before is None:
            self._awaiting_joins += 1
        return before

    def take_join(self, member: ClassicMember) -> ReplyTo | None:
        """Where the member's join is to be answered; it then waits no longer."""
        reply_to, member.awaiting_join = member.awaiting_join, None
        if reply_to is not None:
            self._awaiting_joins -= 1
        return reply_to

    def elect_joined_leader(self) -> bool:
        """See to it that a member who is here leads; False when nobody is."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is None:
            return False
        if leader.awaiting_join is not None:
            return True
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
        assert self.pending_sync <= self.members.keys(), "somebody who left is expected to sync"
        assert (self.leader_id in self.members) if self.members else self.leader_id is None, "nobody leads"
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
                "the protocol is not everybody's"
            )
            assert not self._awaiting_joins, "somebody waits for a rebalance that is over"
        if self.state is not COMPLETING_REBALANCE:
            assert all(m.awaiting_sync is None for m in self.members.values()), "a sync waits and nobody will answer"


def _commit_timestamp(committed: CommittedOffset) -> int:
    return committed.commit_timestamp

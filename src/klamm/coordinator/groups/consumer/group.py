"""A consumer group: its members, its epochs and its target assignment, as its records describe them.

Empty        it has no members
Assigning    the group has changed and no target has been computed for its epoch yet
Reconciling  there is a target that some members have not reached
Stable       every member has what the target gives it
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from klamm.coordinator.core.shard import CoordinatorRecord, ReplyTo
from klamm.coordinator.groups.assignors import MemberAssignment
from klamm.coordinator.groups.consumer.member import LEAVE_EPOCH, ConsumerMember, Held, MemberState
from klamm.coordinator.groups.consumer.pattern import Resolved
from klamm.coordinator.groups.consumer.records import group_tombstones
from klamm.coordinator.groups.group import CheckPartition
from klamm.coordinator.groups.offsets import CommittedOffset, commit_timestamp
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import group_records

_NO_PARTITIONS: Final[MemberAssignment] = {}


class ConsumerGroup:
    """State of one group. `replay` is all that changes it, apart from the soft state at the end of __init__."""

    kind: Final = "consumer"
    protocol_type_name: Final = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        """The hash of the subscribed topics at `group_epoch`."""
        self.target_epoch = 0
        self.assignment_timestamp = 0
        """When the target was computed; 0 if never."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.target: dict[str, MemberAssignment] = {}
        self.resolved: dict[str, Resolved] = {}
        """By pattern."""
        self.has_partition_metadata = False
        """Whether an older broker kept the topics in a record of their own; it goes with the next change."""
        self._owners: dict[bytes, dict[int, str]] = {}
        """The member that holds each partition: assigned to it, or not revoked yet."""
        # Soft state: lost with the shard, and rebuilt by the next heartbeats.
        self.checked_image: MetadataImage | None = None
        """The image with which the subscribed topics were last compared."""
        self.revoking: dict[str, int] = {}
        """Members with a deadline for giving partitions back, and the epoch they had when it was set."""
        self.rejoining: set[str] = set()
        """Classic members that got REBALANCE_IN_PROGRESS and have a deadline for rejoining."""

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.group_id!r}, {self.state_name}, epoch {self.group_epoch}, {self.members})"

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def state_name(self) -> str:
        """The state as Kafka shows it."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.target_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def member(self, member_id: str) -> ConsumerMember:
        """The member, or UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of {self.group_id}")
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member that has an instance id, if any."""
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def find_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return the member; KlammError when it is unknown or its instance id has a newer member."""
        if instance_id is None:
            return self.member(member_id)
        member = self.static_member(instance_id)
        if member is None:
            raise KlammError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{self.group_id} has no member with instance id {instance_id}"
            )
        if member.member_id != member_id:
            raise KlammError(
                ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id} belongs to member {member.member_id}"
            )
        return member

    def target_of(self, member_id: str) -> MemberAssignment:
        """Return the target assignment of a member."""
        return self.target.get(member_id, _NO_PARTITIONS)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that holds a partition or has not revoked it yet."""
        partitions = self._owners.get(topic_id)
        return partitions.get(partition) if partitions is not None else None

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics a member reads, by name and by pattern."""
        resolved = self.resolved.get(member.subscribed_topic_regex) if member.subscribed_topic_regex else None
        return (
            member.subscribed_topic_names | resolved.topics if resolved is not None else member.subscribed_topic_names
        )

    @property
    def classic_members(self) -> int:
        """How many members use the classic protocol."""
        return sum(member.uses_classic_protocol for member in self.members.values())

    def supports_classic(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a classic member with these protocols could be one of this group."""
        if protocol_type != self.protocol_type_name:
            return False
        counted: dict[str, int] = {}
        classic_count = 0
        for member in self.members.values():
            classic_count += member.uses_classic_protocol
            for name, _ in member.classic_protocols:
                counted[name] = counted.get(name, 0) + 1
        return any(counted.get(name, 0) == classic_count for name in names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether another member still holds a partition of the member's target."""
        return any(
            number not in member.assigned.get(topic, ()) and self.owner(topic, number) not in (None, member.member_id)
            for topic, numbers in self.target_of(member.member_id).items()
            for number in numbers
        )

    # The interface of `groups.group.Group`

    def check_offset_commit(
        self, member_id: str, instance_id: str | None, generation_or_epoch: int, *, transactional: bool, version: int
    ) -> CheckPartition | None:
        """Allow members to commit for their partitions, and any client while the group has no members.

        An epoch older than the member's is accepted for partitions it has had since that epoch (KIP-1251): the returned
        function decides by partition. None when all are accepted.
        """
        if generation_or_epoch < 0 and not self.members:
            return None
        if transactional and generation_or_epoch == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        # Before v9 the field is a generation of the classic protocol (KIP-848).
        if not transactional and not member.uses_classic_protocol and version < 9:
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, "members of consumer groups commit with version 9 or above")
        if generation_or_epoch == member.member_epoch:
            return None
        stale = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
        if generation_or_epoch > member.member_epoch:
            raise KlammError(
                stale, f"epoch {generation_or_epoch} is newer than that of {member_id}, {member.member_epoch}"
            )

        def check(topic_id: bytes, partition: int) -> ErrorCode:
            since = member.assignment_epoch(topic_id, partition)
            return stale if since is None or generation_or_epoch < since else ErrorCode.NONE

        return check

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Require that a request with a member id comes from a member at its epoch; allow every other."""
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.member_epoch:
            stale = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
            raise KlammError(stale, f"the epoch of {member_id} is {member.member_epoch}")

    def check_offset_delete(self) -> None:
        """Allow always: topics with subscribers are refused one by one."""

    def check_delete(self) -> None:
        """Refuse while the group has members."""
        if self.members:
            raise KlammError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def expiration_base(self) -> Callable[[CommittedOffset], int] | None:
        """Count retention from the last commit; topics with subscribers do not expire."""
        return commit_timestamp

    def tombstones(self) -> list[CoordinatorRecord]:
        """The records that remove the group."""
        return group_tombstones(self.group_id, self.members, self.resolved, self.has_partition_metadata)

    def waiting(self) -> Iterable[ReplyTo]:
        """Return nothing: every request of a consumer group is answered at once."""
        return ()

    # Replay

    def replay(self, key: Any, value: Any) -> None:
        """Apply a record of this group."""
        if isinstance(key, group_records.ConsumerGroupCurrentMemberAssignmentKey):
            self._replay_current(key.member_id, value)
        elif isinstance(key, group_records.ConsumerGroupMemberMetadataKey):
            if value is not None:
                self._put(self.members.get(key.member_id, ConsumerMember(key.member_id)).with_metadata(value))
            else:
                self._remove(key.member_id)
        elif isinstance(key, group_records.ConsumerGroupTargetAssignmentMemberKey):
            if value is not None:
                self.target[key.member_id] = {
                    bytes(topic.topic_id): frozenset(topic.partitions) for topic in value.topic_partitions
                }
            else:
                self.target.pop(key.member_id, None)
        elif isinstance(key, group_records.ConsumerGroupTargetAssignmentMetadataKey):
            self.target_epoch = value.assignment_epoch if value is not None else -1
            self.assignment_timestamp = value.assignment_timestamp if value is not None else 0
        elif isinstance(key, group_records.ConsumerGroupMetadataKey):
            self.group_epoch = value.epoch
            self.metadata_hash = value.metadata_hash
        elif isinstance(key, group_records.ConsumerGroupRegularExpressionKey):
            if value is not None:
                resolved = Resolved(frozenset(value.topics), value.version, value.timestamp)
                self.resolved[key.regular_expression] = resolved
            else:
                self.resolved.pop(key.regular_expression, None)
        elif isinstance(key, group_records.ConsumerGroupPartitionMetadataKey):
            self.has_partition_metadata = value is not None

    def _replay_current(
        self, member_id: str, value: group_records.ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        if value is not None:
            self._put(self.members.get(member_id, ConsumerMember(member_id)).with_current(value))
            return
        member = self.members.get(member_id)
        # The tombstone of the member itself follows; until then it is a member without partitions.
        if member is not None:
            self._put(
                replace(
                    member,
                    member_epoch=LEAVE_EPOCH,
                    previous_member_epoch=LEAVE_EPOCH,
                    state=MemberState.STABLE,
                    assigned={},
                    pending_revocation={},
                )
            )

    def _put(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        # Identity is enough: a metadata record keeps both mappings, an assignment record replaces them.
        if (
            before is None
            or before.assigned is not member.assigned
            or before.pending_revocation is not member.pending_revocation
        ):
            self._release(before)
            for topic, partition in partitions(member.assigned, member.pending_revocation):
                self._owners.setdefault(topic, {})[partition] = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        self.revoking.pop(member_id, None)
        self.rejoining.discard(member_id)

    def _release(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for topic, partition in partitions(member.assigned, member.pending_revocation):
            owners = self._owners.get(topic)
            if owners is not None and owners.get(partition) == member.member_id:
                del owners[partition]
                if not owners:
                    del self._owners[topic]

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        held: dict[tuple[bytes, int], str] = {}
        for member in self.members.values():
            for place in partitions(member.assigned, member.pending_revocation):
                assert place not in held, f"{place} is held by {held[place]} and by {member.member_id}"
                held[place] = member.member_id
            assert member.member_epoch <= max(self.target_epoch, 0), f"{member} is ahead of {self}"
            for since in (s for numbers in member.assigned.values() for s in numbers.values()):
                assert since <= max(member.member_epoch, self.target_epoch), f"{member} has a later partition"
            if member.state == MemberState.UNREVOKED_PARTITIONS:
                assert member.pending_revocation, f"{member.member_id} has nothing to give back"
            if member.state == MemberState.STABLE:
                assert not member.pending_revocation, f"{member.member_id} has something to give back"
            if member.is_reconciled_to(self.target_epoch) and self.group_epoch == self.target_epoch:
                have = {topic: frozenset(numbers) for topic, numbers in member.assigned.items()}
                assert have == self.target_of(member.member_id), f"{member} is Stable without its target"
        owners = {(topic, p): owner for topic, numbers in self._owners.items() for p, owner in numbers.items()}
        assert owners == held, "owners of partitions are miscounted"
        statics = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        assert statics == self.static_members, "static members are miscounted"
        targets = [(topic, p) for mine in self.target.values() for topic, numbers in mine.items() for p in numbers]
        assert len(targets) == len(set(targets)), "the target gives a partition to two members"
        assert self.target_epoch <= self.group_epoch, "the target is ahead of its group"
        assert self.target.keys() <= self.members.keys(), "a member that left has a target"


def partitions(*held: Held | Mapping[bytes, Iterable[int]]) -> Iterator[tuple[bytes, int]]:
    """Return every (topic id, partition) of the mappings."""
    for topics in held:
        for topic, numbers in topics.items():
            for number in numbers:
                yield topic, number

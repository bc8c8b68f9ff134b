"""Records of classic groups: one per generation whose assignments are stored."""

from collections.abc import Mapping

from klamm.coordinator.core.shard import CoordinatorRecord, make_record
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.member import ClassicMember
from klamm.coordinator.groups.classic.state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from klamm.protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata

VALUE_VERSION = 3
"""The version of GroupMetadataValue that Kafka 4.3 writes."""


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes], wall_ms: int) -> CoordinatorRecord:
    """Return the record of a group with its members and their assignments."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name) or b"",
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=wall_ms,
        members=members,
    )
    return make_record(GroupMetadataKey(group=group.group_id), value, VALUE_VERSION)


def empty_record(group: ClassicGroup, generation_id: int, wall_ms: int) -> CoordinatorRecord:
    """Return the record of a group without members."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=generation_id,
        protocol=None,
        leader=None,
        current_state_timestamp=wall_ms,
        members=[],
    )
    return make_record(GroupMetadataKey(group=group.group_id), value, VALUE_VERSION)


def replay_group(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Apply a stored generation, unless the group is in a rebalance towards a later one."""
    # In service the group is ahead of its record: members have rejoined since the decision was made.
    if group.state is PREPARING_REBALANCE and value.generation <= group.generation_id:
        return
    if group.state is COMPLETING_REBALANCE and value.generation < group.generation_id:
        return
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    stored = {member.member_id for member in value.members}
    for gone in [member_id for member_id in group.members if member_id not in stored]:
        group.remove(gone)
    for member in value.members:
        _replay_member(group, member, value)
    # A stored leader that is no member would leave the group without one; `add` has chosen the first member.
    if value.leader in group.members:
        group.leader_id = value.leader
    group.remember_subscriptions()
    # Not `transition_to`: a loading shard goes from Empty to Stable with one record.
    group.previous_state = group.state
    group.state = STABLE if group.members else EMPTY
    group.state_timestamp = value.current_state_timestamp


def _replay_member(group: ClassicGroup, stored: MemberMetadata, value: GroupMetadataValue) -> None:
    # Records of version 0 have no rebalance timeout.
    rebalance_timeout_ms = stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout
    member = group.members.get(stored.member_id)
    if member is None:
        member = ClassicMember(
            member_id=stored.member_id,
            instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout,
            protocols=((value.protocol or "", bytes(stored.subscription)),),
        )
        group.add(member, value.protocol_type)
    # In service a member keeps all protocols it offered; the record has only the chosen one.
    elif member.metadata(value.protocol) != stored.subscription:
        protocols = ((value.protocol or "", bytes(stored.subscription)),)
        group.update(member, protocols, rebalance_timeout_ms, stored.session_timeout)
    member.assignment = bytes(stored.assignment)

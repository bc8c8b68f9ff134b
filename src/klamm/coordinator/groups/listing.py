"""ListGroups, DescribeGroups and DeleteGroups."""

from collections.abc import Iterable, Mapping, Sequence

from klamm.coordinator.core.shard import CoordinatorRecord
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.state import DEAD, STABLE
from klamm.coordinator.groups.group import Group
from klamm.coordinator.groups.offsets import ShardOffsets, offset_tombstone
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.delete_groups import DeletableGroupResult
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from klamm.protocol.messages.list_groups import ListedGroup

NOT_FOUND_SINCE = 6
"""The version of DescribeGroups in which a group that does not exist is an error; before, it was a dead group."""


def describe_group(group: Group | None, group_id: str, version: int) -> DescribedGroup:
    """Return the description of a classic group; metadata and assignments are included once it is stable."""
    if not isinstance(group, ClassicGroup):
        description = DescribedGroup(group_id=group_id, group_state=DEAD.value)
        if version >= NOT_FOUND_SINCE:
            description.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            description.error_message = (
                f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
            )
        return description
    stable = group.state is STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type_name,
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=(member.metadata(group.protocol_name) or b"") if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(groups: Iterable[Group], states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
    """Return the groups in one of the states and of one of the types; an empty filter matches all."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {kind.lower() for kind in types}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type_name,
            group_state=group.state_name,
            group_type=group.kind,
        )
        for group in groups
        if (not wanted_states or group.state_name.lower() in wanted_states)
        and (not wanted_types or group.kind in wanted_types)
    ]


def delete_groups(
    groups: Mapping[str, Group], offsets: ShardOffsets, group_ids: Sequence[str]
) -> tuple[list[CoordinatorRecord], list[DeletableGroupResult]]:
    """Return the records that remove groups without members and their offsets, and a result for each group."""
    records: list[CoordinatorRecord] = []
    results = []
    for group_id in group_ids:
        code = ErrorCode.NONE
        group = groups.get(group_id)
        try:
            if group is None:
                raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_delete()
            records += [offset_tombstone(group_id, topic, index) for topic, index in offsets.partitions(group_id)]
            records += group.tombstones()
        except KlammError as error:
            code = error.code
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return records, results

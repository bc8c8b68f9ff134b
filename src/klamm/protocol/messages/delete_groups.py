"""DeleteGroups, v0-2: remove empty groups and their offsets.

v1 quota applied after the response · v2 flexible
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@message(api_key=42, versions=(0, 2), flexible=2)
class DeleteGroupsRequest:
    """Name the groups to remove."""

    groups_names: list[str] = wire(array(string))


@struct
class DeletableGroupResult:
    """Whether one group was removed."""

    group_id: str = wire(string)
    error_code: int = wire(int16)


@message(api_key=42, versions=(0, 2), flexible=2)
class DeleteGroupsResponse:
    """The result of each."""

    throttle_time_ms: int = wire(int32)
    results: list[DeletableGroupResult] = wire(array(DeletableGroupResult))

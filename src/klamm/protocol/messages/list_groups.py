"""ListGroups, v0-5: the groups a broker coordinates.

v1 throttle time · v3 flexible · v4 filter by state · v5 filter by type
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, wire


@message(api_key=16, versions=(0, 5), flexible=3)
class ListGroupsRequest:
    """Request the groups of this broker."""

    states_filter: list[str] = wire(array(string), since=4)
    types_filter: list[str] = wire(array(string), since=5)


@struct
class ListedGroup:
    """One group by name."""

    group_id: str = wire(string)
    protocol_type: str = wire(string)
    group_state: str = wire(string, since=4)
    group_type: str = wire(string, since=5)


@message(api_key=16, versions=(0, 5), flexible=3)
class ListGroupsResponse:
    """The groups that pass the filters."""

    throttle_time_ms: int = wire(int32, since=1)
    error_code: int = wire(int16)
    groups: list[ListedGroup] = wire(array(ListedGroup))

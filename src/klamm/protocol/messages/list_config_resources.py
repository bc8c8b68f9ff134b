"""ListConfigResources, v0-1: the resources that have settings of their own.

v0 only client metrics · v1 any type of resource
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@message(api_key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesRequest:
    """Request resources of some types; none means all."""

    resource_types: list[int] = wire(array(int8), since=1)


@struct
class ConfigResource:
    """One resource by name and type."""

    resource_name: str = wire(string)
    # 16, client metrics: version 0 lists nothing else.
    resource_type: int = wire(int8, since=1, default=16)


@message(api_key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesResponse:
    """The resources."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    config_resources: list[ConfigResource] = wire(array(ConfigResource))

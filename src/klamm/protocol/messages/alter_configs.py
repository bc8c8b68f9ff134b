"""AlterConfigs, v0-2: replace all settings of a resource; kept for old clients.

v1 quota applied after the response · v2 flexible
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class AlterableConfig:
    """One setting; a null value is refused."""

    name: str = wire(string)
    value: str | None = wire(string, nullable=0)


@struct
class AlterConfigsResource:
    """All settings of one resource."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: list[AlterableConfig] = wire(array(AlterableConfig))


@message(api_key=33, versions=(0, 2), flexible=2)
class AlterConfigsRequest:
    """Give the full new settings; whatever is not named goes back to its default."""

    resources: list[AlterConfigsResource] = wire(array(AlterConfigsResource))
    validate_only: bool = wire(boolean)


@struct
class AlterConfigsResourceResponse:
    """Whether one resource was changed."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)


@message(api_key=33, versions=(0, 2), flexible=2)
class AlterConfigsResponse:
    """The result of each resource."""

    throttle_time_ms: int = wire(int32)
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse))

"""IncrementalAlterConfigs, v0-1: change single settings and leave the rest alone.

v1 flexible
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class AlterableConfig:
    """One change of one setting."""

    name: str = wire(string)
    config_operation: int = wire(int8)
    value: str | None = wire(string, nullable=0)


@struct
class AlterConfigsResource:
    """The changes of one resource."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: list[AlterableConfig] = wire(array(AlterableConfig))


@message(api_key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsRequest:
    """Operations are 0 set, 1 delete, 2 append to a list, 3 subtract from a list."""

    resources: list[AlterConfigsResource] = wire(array(AlterConfigsResource))
    validate_only: bool = wire(boolean)


@struct
class AlterConfigsResourceResponse:
    """Whether one resource was changed."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)


@message(api_key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsResponse:
    """The result of each resource."""

    throttle_time_ms: int = wire(int32)
    responses: list[AlterConfigsResourceResponse] = wire(array(AlterConfigsResourceResponse))

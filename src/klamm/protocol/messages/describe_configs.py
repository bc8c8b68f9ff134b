"""DescribeConfigs, v1-4: show settings, where they come from and what they mean.

v1 synonyms and sources · v3 types and documentation · v4 flexible
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class DescribeConfigsResource:
    """One resource and the requested settings."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configuration_keys: list[str] | None = wire(array(string), nullable=0)


@message(api_key=32, versions=(1, 4), flexible=4)
class DescribeConfigsRequest:
    """Request settings of topics, brokers, groups; null keys request all."""

    resources: list[DescribeConfigsResource] = wire(array(DescribeConfigsResource))
    include_synonyms: bool = wire(boolean)
    include_documentation: bool = wire(boolean, since=3)


@struct
class DescribeConfigsSynonym:
    """Another place the value could have come from, strongest first."""

    name: str = wire(string)
    value: str | None = wire(string, nullable=0)
    source: int = wire(int8)


@struct
class DescribeConfigsResourceResult:
    """One setting."""

    name: str = wire(string)
    value: str | None = wire(string, nullable=0)
    read_only: bool = wire(boolean)
    config_source: int = wire(int8, default=-1)
    is_sensitive: bool = wire(boolean)
    synonyms: list[DescribeConfigsSynonym] = wire(array(DescribeConfigsSynonym))
    config_type: int = wire(int8, since=3)
    documentation: str | None = wire(string, since=3, nullable=0)


@struct
class DescribeConfigsResult:
    """The settings of one resource."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    configs: list[DescribeConfigsResourceResult] = wire(array(DescribeConfigsResourceResult))


@message(api_key=32, versions=(1, 4), flexible=4)
class DescribeConfigsResponse:
    """The settings."""

    throttle_time_ms: int = wire(int32)
    results: list[DescribeConfigsResult] = wire(array(DescribeConfigsResult))

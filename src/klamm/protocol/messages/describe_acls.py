"""DescribeAcls, v1-3: show access rules.

v2 flexible · v3 user resources
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@message(api_key=29, versions=(1, 3), flexible=2)
class DescribeAclsRequest:
    """Request the rules that match a filter; null matches everything."""

    resource_type_filter: int = wire(int8)
    resource_name_filter: str | None = wire(string, nullable=0)
    # 3 is LITERAL.
    pattern_type_filter: int = wire(int8, default=3)
    principal_filter: str | None = wire(string, nullable=0)
    host_filter: str | None = wire(string, nullable=0)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@struct
class AclDescription:
    """One rule."""

    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@struct
class DescribeAclsResource:
    """The rules of one resource."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    pattern_type: int = wire(int8, default=3)
    acls: list[AclDescription] = wire(array(AclDescription))


@message(api_key=29, versions=(1, 3), flexible=2)
class DescribeAclsResponse:
    """The rules, by the resource they protect."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    resources: list[DescribeAclsResource] = wire(array(DescribeAclsResource))

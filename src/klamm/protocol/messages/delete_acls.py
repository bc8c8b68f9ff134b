"""DeleteAcls, v1-3: remove access rules.

v2 flexible · v3 user resources
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@struct
class DeleteAclsFilter:
    """Which rules to remove."""

    resource_type_filter: int = wire(int8)
    resource_name_filter: str | None = wire(string, nullable=0)
    # 3 is LITERAL.
    pattern_type_filter: int = wire(int8, default=3)
    principal_filter: str | None = wire(string, nullable=0)
    host_filter: str | None = wire(string, nullable=0)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@message(api_key=31, versions=(1, 3), flexible=2)
class DeleteAclsRequest:
    """Remove every rule that matches one of the filters."""

    filters: list[DeleteAclsFilter] = wire(array(DeleteAclsFilter))


@struct
class DeleteAclsMatchingAcl:
    """One rule that was removed."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    pattern_type: int = wire(int8, default=3)
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@struct
class DeleteAclsFilterResult:
    """The rules one filter matched."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    matching_acls: list[DeleteAclsMatchingAcl] = wire(array(DeleteAclsMatchingAcl))


@message(api_key=31, versions=(1, 3), flexible=2)
class DeleteAclsResponse:
    """What was removed, in the order of the filters."""

    throttle_time_ms: int = wire(int32)
    filter_results: list[DeleteAclsFilterResult] = wire(array(DeleteAclsFilterResult))

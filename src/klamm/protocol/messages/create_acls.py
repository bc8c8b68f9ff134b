"""CreateAcls, v1-3: add access rules.

v2 flexible · v3 user resources
"""

from klamm.protocol.schema import array, int8, int16, int32, message, string, struct, wire


@struct
class AclCreation:
    """One rule and the resource it protects."""

    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    # 3 is LITERAL, as all rules were before prefixes.
    resource_pattern_type: int = wire(int8, default=3)
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@message(api_key=30, versions=(1, 3), flexible=2)
class CreateAclsRequest:
    """Name the rules to add."""

    creations: list[AclCreation] = wire(array(AclCreation))


@struct
class AclCreationResult:
    """Whether one rule was added."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@message(api_key=30, versions=(1, 3), flexible=2)
class CreateAclsResponse:
    """The result of each, in the order of the request."""

    throttle_time_ms: int = wire(int32)
    results: list[AclCreationResult] = wire(array(AclCreationResult))

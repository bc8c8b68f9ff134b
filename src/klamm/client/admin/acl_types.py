"""Values about ACLs, client quotas and SCRAM credentials."""

from enum import IntEnum
from typing import NamedTuple

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType


class AclBinding(NamedTuple):
    """One access rule."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL


class AclFilter(NamedTuple):
    """Which access rules; None and ANY match all."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Parts of an entity, (user | client-id | ip, name); None is the default of that kind."""


class ScramMechanism(IntEnum):
    """How a password is kept."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class ScramCredential(NamedTuple):
    """A mechanism a user has, never the secret."""

    mechanism: ScramMechanism
    iterations: int


class DelegationToken(NamedTuple):
    """A login that one user gives to others; times in ms since 1970."""

    token_id: str
    hmac: bytes
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def __repr__(self) -> str:
        """Return it without the HMAC, which is a password."""
        return f"DelegationToken(token_id={self.token_id!r}, owner={self.owner!r}, expires_ms={self.expires_ms})"

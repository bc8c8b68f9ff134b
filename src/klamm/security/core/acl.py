"""Access control entries (ACLs) and the filters that select them, as Kafka's StandardAcl and AclBindingFilter."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.protocol.messages.metadata_records import AccessControlEntryRecord

WILDCARD: Final = "*"
"""As a literal resource name: all resources of the type. As a host: all hosts."""
WILDCARD_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of the type CLUSTER."""

IMPLIED_BY: Final[dict[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""The operations whose ALLOW entries also allow the key; a DENY implies nothing."""


class AccessControlEntry(NamedTuple):
    """One ACL: who may or may not do what, from which host, on which resources."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        # Kafka's text of a StandardAcl, which audit lines contain.
        return (
            f"StandardAcl(resourceType={self.resource_type.name}, resourceName={self.resource_name}, "
            f"patternType={self.pattern_type.name}, principal={self.principal}, host={self.host}, "
            f"operation={self.operation.name}, permissionType={self.permission.name})"
        )

    def covers(self, name: str) -> bool:
        """Whether the entry applies to the resource `name` of its type."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        # Only a literal "*" is a wildcard; a prefixed "*" covers names that begin with an asterisk.
        return self.resource_name in (name, WILDCARD)

    def concerns(self, operation: AclOperation) -> bool:
        """Whether the entry decides about `operation`; an ALLOW may imply other operations, a DENY does not."""
        if self.operation in (operation, AclOperation.ALL):
            return True
        return self.permission is AclPermission.ALLOW and self.operation in IMPLIED_BY.get(operation, ())


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Selects ACLs; None and ANY select all."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, entry: AccessControlEntry) -> bool:
        """Whether the filter selects `entry`."""
        return (
            self.resource_type in (AclResourceType.ANY, entry.resource_type)
            and self._matches_name(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (AclPermission.ANY, entry.permission)
        )

    def _matches_name(self, entry: AccessControlEntry) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, entry.pattern_type):
            return False
        if self.resource_name is None:
            return True
        # MATCH selects what would apply to a resource of this name; the other types compare the patterns' names.
        if self.pattern_type is PatternType.MATCH:
            return entry.covers(self.resource_name)
        return self.resource_name == entry.resource_name

    def find_unknown(self) -> str | None:
        """The part of the filter with a code that Kafka does not define, "patternFilter" or "entryFilter"."""
        if AclResourceType.UNKNOWN is self.resource_type or PatternType.UNKNOWN is self.pattern_type:
            return "patternFilter"
        if AclOperation.UNKNOWN is self.operation or AclPermission.UNKNOWN is self.permission:
            return "entryFilter"
        return None


def find_fault(entry: AccessControlEntry) -> str | None:
    """Return why an entry cannot be created, in Kafka's words, or None."""
    if entry.resource_type in (AclResourceType.UNKNOWN, AclResourceType.ANY):
        return f"Invalid resourceType {entry.resource_type.name}"
    if entry.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {entry.pattern_type.name}"
    if entry.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {entry.operation.name}"
    if entry.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        return f"Invalid permissionType {entry.permission.name}"
    if not entry.resource_name:
        return "Invalid empty resource name"
    if entry.resource_type is AclResourceType.CLUSTER and entry.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    # Any type is allowed, as in Kafka: a principal builder of another cluster may have types of its own.
    kind, colon, name = entry.principal.partition(":")
    if not (kind and colon and name):
        return (
            f'Could not parse principal from "{entry.principal}" (no colon is present separating the principal type '
            "from the principal name)"
        )
    return None


def entry_from_codes(
    resource_type: int,
    resource_name: str,
    pattern_type: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AccessControlEntry:
    """Make an entry of the codes of a request or a record; a code that Kafka does not define becomes UNKNOWN."""
    return AccessControlEntry(
        _TYPES.get(resource_type, AclResourceType.UNKNOWN),
        resource_name,
        _PATTERNS.get(pattern_type, PatternType.UNKNOWN),
        principal,
        host,
        _OPERATIONS.get(operation, AclOperation.UNKNOWN),
        _PERMISSIONS.get(permission, AclPermission.UNKNOWN),
    )


def entry_from_record(record: AccessControlEntryRecord) -> AccessControlEntry:
    """Return the ACL that a record of the metadata log holds."""
    return entry_from_codes(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


def filter_from_codes(
    resource_type: int,
    resource_name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> EntryFilter:
    """Make a filter of the codes of a request; a code that Kafka does not define becomes UNKNOWN."""
    return EntryFilter(
        _TYPES.get(resource_type, AclResourceType.UNKNOWN),
        resource_name,
        _PATTERNS.get(pattern_type, PatternType.UNKNOWN),
        principal,
        host,
        _OPERATIONS.get(operation, AclOperation.UNKNOWN),
        _PERMISSIONS.get(permission, AclPermission.UNKNOWN),
    )


# Tables, because an enum raises for an unknown number, and requests of newer clients may have some.
_TYPES: Final = {int(member): member for member in AclResourceType}
_PATTERNS: Final = {int(member): member for member in PatternType}
_OPERATIONS: Final = {int(member): member for member in AclOperation}
_PERMISSIONS: Final = {int(member): member for member in AclPermission}

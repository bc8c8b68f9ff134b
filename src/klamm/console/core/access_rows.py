"""Access rules as rows, and what follows from them for one principal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Final

from klamm.client.admin.acl_types import AclBinding
from klamm.client.core.rights import explain_rights, list_rights
from klamm.model.acls import AclPermission, AclResourceType, PatternType
from klamm.security.core.acl import AccessControlEntry
from klamm.security.core.principal import parse_principal

_ANY_HOST: Final = "*"


@dataclass(frozen=True, slots=True)
class AclRow:
    """One rule."""

    principal: str
    permission: str
    operation: str
    resource_type: str
    resource: str
    pattern: str
    host: str

    @property
    def is_deny(self) -> bool:
        """Whether it denies."""
        return self.permission == AclPermission.DENY.name


def list_acl_rows(rules: Iterable[AclBinding]) -> list[AclRow]:
    """Return all rules, by principal and resource."""
    return sorted((make_acl_row(rule) for rule in rules), key=_order)


def make_acl_row(rule: AclBinding) -> AclRow:
    """Return one rule."""
    return AclRow(
        rule.principal,
        rule.permission.name,
        rule.operation.name,
        rule.resource_type.name,
        rule.resource_name,
        rule.pattern_type.name,
        rule.host,
    )


@dataclass(frozen=True, slots=True)
class RightRow:
    """What a principal may do with the resources of a pattern."""

    resource_type: str
    resource: str
    """The name, or * for all; a prefix has a star at its end."""
    host: str
    allowed: tuple[str, ...]
    denied: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """Whether one operation on one resource is allowed, and why."""

    operation: str
    allowed: bool
    reason: str


def list_right_rows(rules: Sequence[AclBinding], principal: str, host: str = "") -> list[RightRow]:
    """Return all rights of a principal, by resource; DENY comes before ALLOW, as brokers decide."""
    rows = [
        RightRow(
            right.resource_type.name,
            right.name + ("*" if right.pattern_type is PatternType.PREFIXED else ""),
            right.host,
            tuple(operation.name for operation in right.allowed),
            tuple(operation.name for operation in right.denied),
        )
        for right in list_rights(rules, parse_principal(principal), host or _ANY_HOST)
    ]
    return sorted(rows, key=attrgetter("resource_type", "resource", "host"))


def explain_right_rows(
    rules: Sequence[AclBinding], principal: str, resource_type: AclResourceType, name: str, host: str = ""
) -> list[VerdictRow]:
    """Return whether each operation on a resource is allowed, with the rule that decides."""
    verdicts = explain_rights(rules, parse_principal(principal), resource_type, name, host or _ANY_HOST)
    return [
        VerdictRow(
            verdict.operation.name,
            verdict.allowed,
            ("no rule allows it" if verdict.entry is None else _describe_entry(verdict.entry)) + verdict.exception,
        )
        for verdict in verdicts
    ]


def _describe_entry(entry: AccessControlEntry) -> str:
    star = "*" if entry.pattern_type is PatternType.PREFIXED else ""
    place = "" if entry.host == _ANY_HOST else f" from {entry.host}"
    kind = _lower(entry.resource_type)
    rule = f"{_lower(entry.permission)} {entry.principal} {_lower(entry.operation)}"
    return f"{rule} {kind} {entry.resource_name}{star}{place}"


def _lower(word: IntEnum) -> str:
    return word.name.lower().replace("_", " ")


def _order(row: AclRow) -> tuple[str, str, str, str]:
    return row.principal, row.resource_type, row.resource, row.operation

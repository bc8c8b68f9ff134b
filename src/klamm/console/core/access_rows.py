"""Access rules as rows, and the rules that apply to one principal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from klamm.client.admin.acl_types import AclBinding
from klamm.model.acls import AclPermission


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


def rules_of(rules: Iterable[AclBinding], principal: str) -> list[AclRow]:
    """Return the rules that decide about a principal: its own and those of User:*; DENY first, as it wins."""
    rows = [row for row in list_acl_rows(rules) if row.principal in (principal, "User:*")]
    return sorted(rows, key=_deny_first)


def _deny_first(row: AclRow) -> bool:
    return not row.is_deny


def _order(row: AclRow) -> tuple[str, str, str, str]:
    return row.principal, row.resource_type, row.resource, row.operation

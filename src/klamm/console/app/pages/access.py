"""GET .../access: users, ACLs, quotas, and what a principal may do; POST add and delete ACLs.

Users and quotas are changed by `access_changes`.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from klamm.client.admin.acl_types import AclBinding, AclFilter
from klamm.client.errors import KafkaError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.access_rows import explain_right_rows, list_acl_rows, list_right_rows
from klamm.console.core.quota_forms import DEFAULT, KEYS, KINDS, describe_entity, entity_fields, format_limit
from klamm.console.core.roles import Action
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.core.principal import parse_principal

_RIGHTS_SHOWN: Final = 500


class AccessPages(PageGroup):
    """Users, rights and quotas of the cluster."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/access", self.show_access, RouteRight(Action.VIEW, everywhere=True))
        self.app.post("/c/{cluster}/access", self.add_rule, RouteRight(Action.ACCESS, everywhere=True))
        self.app.post("/c/{cluster}/access/delete", self.delete_rule, RouteRight(Action.ACCESS, everywhere=True))

    async def show_access(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../access?principal=&type=&name=&host=&q=."""
        admin = await request.cluster.admin()
        rules, rules_error = await _read(admin.describe_acls())
        users, users_error = await _read(admin.describe_user_scram_credentials())
        quotas, quotas_error = await _read(admin.describe_client_quotas())
        principal = _spell_principal(request.text("principal").strip())
        search = request.text("q").lower()
        rows = list_acl_rows(rules or ())
        principals = sorted({row.principal for row in rows} | {f"User:{name}" for name in users or ()})
        return self.app.page(
            request,
            "access.html",
            title="Users and rights",
            section="access",
            rows=[row for row in rows if search in f"{row.principal} {row.resource}".lower()][:500],
            total=len(rows),
            search=search,
            rules_error=rules_error,
            users=sorted((users or {}).items()),
            users_error=users_error,
            quotas=[
                (
                    describe_entity(entity),
                    entity_fields(entity),
                    [(key, format_limit(key, value)) for key, value in sorted(values.items())],
                )
                for entity, values in (quotas or {}).items()
            ],
            quota_keys=KEYS,
            quota_kinds=KINDS,
            quota_default=DEFAULT,
            quotas_error=quotas_error,
            principal=principal,
            principals=principals,
            **self._evaluate(request, rules or (), principal),
            operations=[operation.name for operation in AclOperation if operation.value > 1],
            resource_types=[kind.name for kind in AclResourceType if kind.value > 1],
        )

    def _evaluate(self, request: ConsoleRequest, rules: Sequence[AclBinding], principal: str) -> dict[str, Any]:
        """Return what a principal may do, everywhere or with one resource, by the rules of the cluster."""
        host, name, kind = (request.text(field).strip() for field in ("host", "name", "type"))
        values: dict[str, Any] = {"host": host, "resource_name": name, "resource_type": kind}
        values |= {"rights": [], "rights_total": 0, "verdicts": [], "rights_error": ""}
        if not principal:
            return values
        try:
            if host:
                ipaddress.ip_address(host)
            if name and kind in AclResourceType.__members__:
                verdicts = explain_right_rows(rules, principal, AclResourceType[kind], name, host)
                return {**values, "verdicts": verdicts}
            rights = list_right_rows(rules, principal, host)
        except ValueError as error:
            return {**values, "rights_error": str(error)}
        return {**values, "rights": rights[:_RIGHTS_SHOWN], "rights_total": len(rights)}

    async def add_rule(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access: add one rule."""
        rule = _parse_rule(request)
        admin = await request.cluster.admin()
        work = functools.partial(admin.create_acls, [rule])
        detail = _detail(rule)
        await self.app.change(
            request, "add ACL", rule.principal, work, done=f"Added a rule for {rule.principal}.", detail=detail
        )
        return redirect(self.path(request, "access"))

    async def delete_rule(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access/delete: delete one rule."""
        rule = _parse_rule(request)
        admin = await request.cluster.admin()
        exactly = AclFilter(
            rule.resource_type,
            rule.resource_name,
            rule.principal,
            rule.operation,
            rule.permission,
            rule.host,
            rule.pattern_type,
        )
        work = functools.partial(admin.delete_acls, [exactly])
        detail = _detail(rule)
        await self.app.change(
            request, "delete ACL", rule.principal, work, done=f"Deleted a rule of {rule.principal}.", detail=detail
        )
        return redirect(self.path(request, "access"))


async def _read(work: Any) -> tuple[Any, str]:
    """Return the answer, or why there is none: a cluster without an authorizer refuses to list ACLs."""
    try:
        return await work, ""
    except KafkaError as error:
        return None, str(error)


def _spell_principal(text: str) -> str:
    """A bare name is a user, as on the command line."""
    return text if not text or ":" in text else f"User:{text}"


def _parse_rule(request: ConsoleRequest) -> AclBinding:
    try:
        principal = str(parse_principal(request.form("principal")))
        return AclBinding(
            AclResourceType[request.form("resource_type")],
            request.form("resource"),
            principal,
            AclOperation[request.form("operation")],
            AclPermission[request.form("permission") or "ALLOW"],
            request.form("host") or "*",
            PatternType[request.form("pattern") or "LITERAL"],
        )
    except KeyError as error:
        raise HttpRefusal(400, f"{error} is not known") from None
    except ValueError as error:
        raise HttpRefusal(400, str(error)) from None


def _detail(rule: AclBinding) -> dict[str, Any]:
    return {
        "resource": f"{rule.resource_type.name}:{rule.resource_name}",
        "pattern": rule.pattern_type.name,
        "operation": rule.operation.name,
        "permission": rule.permission.name,
        "host": rule.host,
    }

"""POST .../access/users, .../access/quotas: passwords of users and limits of clients."""

from __future__ import annotations

import functools

from klamm.client.admin.acl_types import ScramMechanism
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.quota_forms import KINDS, describe_entity, format_limit, parse_entity, parse_limit
from klamm.console.core.roles import Action
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal


class AccessChangePages(PageGroup):
    """Changing users and quotas."""

    def add_routes(self) -> None:
        """Serve these forms."""
        right = RouteRight(Action.ACCESS, everywhere=True)
        self.app.post("/c/{cluster}/access/users", self.set_password, right)
        self.app.post("/c/{cluster}/access/users/delete", self.delete_user, right)
        self.app.post("/c/{cluster}/access/quotas", self.set_quota, right)
        self.app.post("/c/{cluster}/access/quotas/delete", self.delete_quota, right)

    async def set_password(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access/users: add a user, or change the password of one."""
        name, mechanism = _parse_user(request)
        password = request.form_raw("password")
        if not password:
            raise HttpRefusal(400, "The password is empty; nothing was changed")
        if password != request.form_raw("again"):
            raise HttpRefusal(400, "The passwords differ; nothing was changed")
        admin = await request.cluster.admin()
        work = functools.partial(admin.alter_user_scram_credentials, {(name, mechanism): password})
        # The audit says that the password was changed, never to what.
        detail = {"mechanism": _spell(mechanism)}
        done = f"{name} can log in with {_spell(mechanism)} and the new password."
        await self.app.change(request, "set password", f"User:{name}", work, done=done, detail=detail)
        return redirect(self.path(request, "access"))

    async def delete_user(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access/users/delete: delete a password; connections that are open stay."""
        name, mechanism = _parse_user(request)
        admin = await request.cluster.admin()
        work = functools.partial(admin.alter_user_scram_credentials, delete=[(name, mechanism)])
        done = f"{name} cannot log in with {_spell(mechanism)} any more. Connections that are open stay."
        detail = {"mechanism": _spell(mechanism)}
        await self.app.change(request, "delete password", f"User:{name}", work, done=done, detail=detail)
        return redirect(self.path(request, "access"))

    async def set_quota(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access/quotas: set one limit of an entity."""
        key = request.form("key")
        try:
            entity = parse_entity({kind: request.form(kind) for kind in KINDS})
            limit = parse_limit(key, request.form("value"))
        except ValueError as error:
            raise HttpRefusal(400, str(error)) from None
        admin = await request.cluster.admin()
        work = functools.partial(admin.alter_client_quotas, {entity: {key: limit}})
        about = describe_entity(entity)
        done, detail = f"{key} of {about} is {format_limit(key, limit)} now.", {"quota": key, "value": limit}
        await self.app.change(request, "set quota", about, work, done=done, detail=detail)
        return redirect(self.path(request, "access"))

    async def delete_quota(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../access/quotas/delete: remove one limit of an entity."""
        key = request.form("key")
        try:
            entity = parse_entity({kind: request.form(kind) for kind in KINDS})
        except ValueError as error:
            raise HttpRefusal(400, str(error)) from None
        admin = await request.cluster.admin()
        work = functools.partial(admin.alter_client_quotas, {entity: {key: None}})
        about = describe_entity(entity)
        done = f"Removed {key} of {about}."
        await self.app.change(request, "delete quota", about, work, done=done, detail={"quota": key})
        return redirect(self.path(request, "access"))


def _parse_user(request: ConsoleRequest) -> tuple[str, ScramMechanism]:
    name = request.form("user")
    if not name:
        raise HttpRefusal(400, "Write the name of the user")
    if name.startswith("User:"):
        raise HttpRefusal(400, f"The name of a user is without User: here; write {name[5:]}")
    try:
        return name, ScramMechanism[request.form("mechanism").replace("-", "_") or "SCRAM_SHA_512"]
    except KeyError:
        raise HttpRefusal(400, "The mechanism is SCRAM-SHA-256 or SCRAM-SHA-512") from None


def _spell(mechanism: ScramMechanism) -> str:
    return mechanism.name.replace("_", "-")

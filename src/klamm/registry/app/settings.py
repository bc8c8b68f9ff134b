"""Routes /config and /mode, of the whole registry, a context or a subject."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.changes import Changes
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.rights import SubjectOperation
from klamm.registry.service import RegistryService
from klamm.registry.store.refusals import RegistryRefusal
from klamm.registry.store.scopes import effective_config, effective_mode
from klamm.registry.store.settings import (
    decide_delete_config,
    decide_delete_global_mode,
    decide_delete_mode,
    decide_put_config,
    decide_put_mode,
    parse_config,
)


class SettingsRoutes:
    """Configs and modes."""

    def __init__(self, service: RegistryService, changes: Changes, access: RequestAccess) -> None:
        self._access = access
        self._state = service.state
        self._default_level = service.config.default_level
        self._changes = changes

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        for pattern in ("/config", "/config/{subject}"):
            router.add("GET", pattern, self.get_config)
            router.add("PUT", pattern, self.put_config)
            router.add("DELETE", pattern, self.delete_config)
        for pattern in ("/mode", "/mode/{subject}"):
            router.add("GET", pattern, self.get_mode)
            router.add("PUT", pattern, self.put_mode)
            router.add("DELETE", pattern, self.delete_mode)

    async def get_config(self, request: RegistryRequest) -> HttpResponse:
        """GET /config[/{subject}]."""
        scope = self._access.require_scope(request, SubjectOperation.READ)
        own = self._state.configs.get(scope)
        if scope is None or request.flag("defaultToGlobal"):
            return json_response(effective_config(self._state, scope, self._default_level))
        if own is None:
            raise RegistryRefusal(40408, f"Subject '{scope}' does not have subject-level compatibility configured")
        return json_response(own)

    async def put_config(self, request: RegistryRequest) -> HttpResponse:
        """PUT /config[/{subject}]: merges; null clears a field."""
        scope = self._access.require_scope(request, SubjectOperation.CONFIGURE)
        decide = partial(decide_put_config, self._state, scope, parse_config(request.json()))
        return json_response(_echo_config(await self._changes.perform(request, decide)))

    async def delete_config(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /config[/{subject}]."""
        scope = self._access.require_scope(request, SubjectOperation.CONFIGURE)
        decide = partial(decide_delete_config, self._state, scope, self._default_level)
        return json_response(await self._changes.perform(request, decide))

    async def get_mode(self, request: RegistryRequest) -> HttpResponse:
        """GET /mode[/{subject}]."""
        scope = self._access.require_scope(request, SubjectOperation.READ)
        if scope is None or scope in self._state.modes or request.flag("defaultToGlobal"):
            return json_response({"mode": effective_mode(self._state, scope)})
        raise RegistryRefusal(40409, f"Subject '{scope}' does not have subject-level mode configured")

    async def put_mode(self, request: RegistryRequest) -> HttpResponse:
        """PUT /mode[/{subject}]."""
        scope = self._access.require_scope(request, SubjectOperation.CONFIGURE)
        mode, force = request.json().get("mode"), request.flag("force")
        decide = partial(decide_put_mode, self._state, scope, mode, force=force)
        return json_response({"mode": await self._changes.perform(request, decide)})

    async def delete_mode(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /mode[/{subject}]."""
        scope, recursive = self._access.require_scope(request, SubjectOperation.CONFIGURE), request.flag("recursive")
        decide = (
            partial(decide_delete_global_mode, self._state, recursive=recursive)
            if scope is None
            else partial(decide_delete_mode, self._state, scope, recursive=recursive)
        )
        return json_response({"mode": await self._changes.perform(request, decide)})


def _echo_config(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PUT answers: it says `compatibility` for what GET calls `compatibilityLevel`."""
    echoed = dict(changed)
    if "compatibilityLevel" in echoed:
        echoed = {"compatibility": echoed.pop("compatibilityLevel"), **echoed}
    return echoed

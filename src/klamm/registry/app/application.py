"""The application of one registry: its routes, its media types and its error codes."""

from __future__ import annotations

import ssl
from typing import ClassVar
from urllib.parse import unquote

from klamm.http.app import BODY_BYTES_MAX, HttpApp, HttpLogin
from klamm.http.messages import HttpRequest
from klamm.http.operations import OperationRoutes
from klamm.http.router import HttpRoute, split_path
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.associations import AssociationRoutes
from klamm.registry.app.changes import Changes
from klamm.registry.app.compatibility import CompatibilityRoutes
from klamm.registry.app.contexts import ContextRoutes
from klamm.registry.app.operations import KarapaceRoutes
from klamm.registry.app.requests import CONTEXT_PREFIX, GIVEN, TAKEN, RegistryRequest
from klamm.registry.app.schemas import SchemaRoutes
from klamm.registry.app.settings import SettingsRoutes
from klamm.registry.app.subjects import SubjectRoutes
from klamm.registry.rights import SubjectRights
from klamm.registry.service import RegistryService
from klamm.registry.store.subjects import parse_context


class RegistryApp(HttpApp):
    """An ASGI application for one registry, whose service is started and stopped elsewhere."""

    taken: ClassVar[tuple[str, ...]] = TAKEN
    given: ClassVar[tuple[str, ...]] = GIVEN
    request_class: ClassVar[type[HttpRequest]] = RegistryRequest
    timeout_code: ClassVar[int] = 50002
    failure_code: ClassVar[int] = 50001

    def __init__(
        self,
        service: RegistryService,
        *,
        login: HttpLogin | None = None,
        rights: SubjectRights | None = None,
        tls: ssl.SSLContext | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """Serve a registry; `tls` is for forwards to a leader with HTTPS."""
        # The limit is larger than any record of the topic by default, so that 42209 says which limit counts.
        super().__init__("registry", login=login, body_bytes_max=body_bytes_max)
        changes = Changes(service, tls)
        access = RequestAccess(service.state, rights)
        for routes in (
            SubjectRoutes(service, changes, access),
            SchemaRoutes(service, access),
            CompatibilityRoutes(service, access),
            SettingsRoutes(service, changes, access),
            AssociationRoutes(service, changes, access),
            ContextRoutes(service, changes, access),
            KarapaceRoutes(service),
            OperationRoutes(service, self.metrics),
        ):
            routes.add_to(self.router)

    def route(self, method: str, raw_path: str) -> tuple[HttpRoute, dict[str, str]]:
        """Cut off a context in front of any path, `/contexts/{context}/...`, and keep it with the values."""
        segments = split_path(raw_path)
        if len(segments) <= 2 or segments[0] != "contexts":
            return self.router.match(method, segments)
        context = parse_context(unquote(segments[1]))
        route, values = self.router.match(method, segments[2:])
        return route, values | {CONTEXT_PREFIX: context}

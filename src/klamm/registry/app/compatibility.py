"""Routes below /compatibility: what registering would say, without registering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.service import RegistryService
from klamm.registry.store.compatibility import (
    compare_steps,
    find_incompatibilities_steps,
    find_reserved_fields,
    require_valid_names,
)
from klamm.registry.store.lookup import find_version
from klamm.registry.store.refusals import RegistryRefusal, version_not_found
from klamm.registry.store.requests import LATEST, parse_schema_request, parse_version
from klamm.registry.store.scopes import effective_config, validates_new
from klamm.registry.store.steps import Steps
from klamm.registry.store.subjects import Subject


class CompatibilityRoutes:
    """Checks of a schema against versions."""

    def __init__(self, service: RegistryService, access: RequestAccess) -> None:
        self._access = access
        self._service = service
        self._state = service.state

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        router.add("POST", "/compatibility/subjects/{subject}/versions", self.check)
        router.add("POST", "/compatibility/subjects/{subject}/versions/{version}", self.check)

    async def check(self, request: RegistryRequest) -> HttpResponse:
        """POST /compatibility/subjects/{subject}/versions[/{version}]."""
        number = parse_version(request.values["version"]) if "version" in request.values else None
        subject = self._access.locate(request)
        verbose = request.flag("verbose")
        try:
            messages: Sequence[str] = await self._service.checks.run(self._find_messages(request, subject, number))
        except RegistryRefusal as refusal:
            if not verbose or refusal.error_code != 42201:
                raise
            messages = [refusal.message]
        answer: dict[str, object] = {"is_compatible": not messages}
        if verbose:
            answer["messages"] = messages
        return json_response(answer)

    def _find_messages(self, request: RegistryRequest, subject: Subject, number: int | None) -> Steps[list[str]]:
        service = self._service
        config = effective_config(self._state, subject, service.config.default_level)
        schema = parse_schema_request(request.json())
        self._access.require_references(request, schema.references, subject.context)
        # Metadata decides only which versions are compared; it is not inherited here.
        normalize = request.flag("normalize") or bool(config.get("normalize"))
        candidate = yield from service.registration.parse_steps(
            subject, replace(schema, version=None), normalize=normalize, is_new=validates_new(config)
        )
        parsed, live = candidate.parsed, self._state.versions(subject)
        require_valid_names(parsed, config)
        previous = live[-1] if live else None
        metadata = previous.content.metadata if schema.metadata is None and previous else schema.metadata
        messages = find_reserved_fields(parsed, metadata, previous, config)
        if number is None:
            steps = find_incompatibilities_steps(service.parser, parsed, schema.metadata, live, config)
            return messages + (yield from steps)
        if not live:
            if number == LATEST:
                return messages
            raise version_not_found(number)
        version = find_version(self._state, subject, number)
        return messages + (yield from compare_steps(service.parser, parsed, [version], config))

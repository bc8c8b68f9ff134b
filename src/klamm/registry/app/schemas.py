"""Routes below /schemas: by id, by GUID, all."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.answers import content_fields, schema_text, version_fields
from klamm.registry.app.paging import ListPages
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.service import RegistryService
from klamm.registry.store.content import SchemaContent
from klamm.registry.store.lookup import cut_page, find_by_guid, find_by_id, list_schemas, schema_subjects
from klamm.registry.store.requests import parse_id
from klamm.registry.store.state import SchemaVersion
from klamm.registry.store.subjects import Subject

_LISTED_MAX: Final = 1000


class SchemaRoutes:
    """Schemas whatever their subject."""

    def __init__(self, service: RegistryService, access: RequestAccess) -> None:
        self._access = access
        self._state = service.state
        self._parser = service.parser
        self._pages = ListPages(service.state)

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        router.add("GET", "/schemas", self.list_schemas)
        router.add("GET", "/schemas/types", self.list_types)
        router.add("GET", "/schemas/ids/{id}", self.get_by_id)
        router.add("GET", "/schemas/ids/{id}/schema", self.get_text)
        router.add("GET", "/schemas/ids/{id}/subjects", self.list_subjects)
        router.add("GET", "/schemas/ids/{id}/versions", self.list_versions)
        router.add("GET", "/schemas/guids/{guid}", self.get_by_guid)
        router.add("GET", "/schemas/guids/{guid}/ids", self.list_ids)

    async def list_types(self, _: RegistryRequest) -> HttpResponse:
        """GET /schemas/types."""
        return json_response(self._parser.formats.SCHEMA_TYPES)

    async def list_schemas(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas."""
        prefix, aliases = request.subject_prefix(""), request.flag("aliases")
        deleted, latest_only = request.flag("deleted"), request.flag("latestOnly")
        rule_type = request.text("ruleType") or None

        def versions_of(subjects: Sequence[Subject]) -> list[SchemaVersion]:
            versions = list_schemas(
                self._state, subjects, deleted=deleted, latest_only=latest_only, rule_type=rule_type
            )
            return self._access.filter_versions(request, versions)

        offset, limit = request.page(_LISTED_MAX)
        limit = min(limit, _LISTED_MAX) if limit > 0 else _LISTED_MAX
        key = (request.principal, request.peer, prefix, aliases, deleted, latest_only, rule_type)
        subjects = schema_subjects(self._state, prefix, aliases=aliases)
        page = await self._pages.cut(key, subjects, versions_of, (offset, limit))
        return json_response([version_fields(version, self._parser, request) for version in page])

    def _find(self, request: RegistryRequest) -> tuple[int, str, SchemaContent]:
        schema_id = parse_id(request.values["id"])
        context, content = find_by_id(self._state, schema_id, request.chosen_subject())
        self._access.require_id(request, (context, schema_id))
        return schema_id, context, content

    async def get_by_id(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/ids/{id}."""
        schema_id, context, content = self._find(request)
        fields: dict[str, Any] = content_fields(content, context, self._parser, request)
        use = self._first_use(request, context, schema_id)
        if use is not None and use.timestamp_ms is not None:
            fields["ts"] = use.timestamp_ms
        if use is not None and request.text("subject"):
            fields |= {"subject": str(use.subject), "version": use.version}
        if request.flag("includeSubjects"):  # Karapace's
            fields["subjects"] = sorted({str(version.subject) for version in self._uses(request)})
        if request.flag("fetchMaxId"):
            fields["maxId"] = self._state.context(context).id_max
        return json_response(fields)

    def _first_use(self, request: RegistryRequest, context: str, schema_id: int) -> SchemaVersion | None:
        uses = self._access.filter_versions(request, list(self._state.uses(context, schema_id, deleted=True)))
        chosen = request.chosen_subject()
        if chosen is not None and chosen.name:
            # The subject of the request before others that share the id.
            uses.sort(key=_IsOther(chosen.name))
        return uses[0] if uses else None

    async def get_text(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/ids/{id}/schema."""
        _, context, content = self._find(request)
        return HttpResponse(body=schema_text(content, context, self._parser, request).encode())

    async def list_subjects(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/ids/{id}/subjects."""
        names = sorted({str(version.subject) for version in self._uses(request)})
        return json_response(cut_page(names, *request.page()))

    async def list_versions(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/ids/{id}/versions."""
        rows = [{"subject": str(version.subject), "version": version.version} for version in self._uses(request)]
        return json_response(cut_page(rows, *request.page()))

    def _uses(self, request: RegistryRequest) -> list[SchemaVersion]:
        schema_id, context, _ = self._find(request)
        chosen = request.chosen_subject()
        uses = [
            version
            for version in self._state.uses(context, schema_id, deleted=request.flag("deleted"))
            if chosen is None or not chosen.name or version.subject.name == chosen.name
        ]
        return self._access.filter_versions(request, uses)

    async def get_by_guid(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/guids/{guid}."""
        guid = request.values["guid"]
        context, schema_id = self._access.require_id(request, *find_by_guid(self._state, guid))
        content = self._state.content_of(context, schema_id, uuid.UUID(guid).bytes)
        return json_response(content_fields(content, context, self._parser, request))

    async def list_ids(self, request: RegistryRequest) -> HttpResponse:
        """GET /schemas/guids/{guid}/ids."""
        places = find_by_guid(self._state, request.values["guid"])
        self._access.require_id(request, *places)
        return json_response([{"context": context, "id": schema_id} for context, schema_id in places])


class _IsOther:
    """A sort key: False, which comes first, for versions of one subject."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, version: SchemaVersion) -> bool:
        return version.subject.name != self._name

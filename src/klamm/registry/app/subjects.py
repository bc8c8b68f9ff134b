"""Routes below /subjects: list, get, register, look up, delete, tag."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.answers import registration_fields, schema_text, version_fields
from klamm.registry.app.changes import Changes
from klamm.registry.app.paging import ListPages
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.rights import SubjectOperation
from klamm.registry.service import RegistryService
from klamm.registry.store.contracts import merge_metadata
from klamm.registry.store.deletion import decide_delete_subject, decide_delete_version
from klamm.registry.store.lookup import (
    cut_page,
    find_by_metadata,
    find_version,
    list_names,
    list_referrer_ids,
    list_versions,
)
from klamm.registry.store.refusals import RegistryRefusal, schema_not_found, subject_not_found
from klamm.registry.store.registration import SchemaRequest
from klamm.registry.store.requests import parse_schema_request, parse_tag_request, parse_version
from klamm.registry.store.state import SchemaVersion
from klamm.registry.store.subjects import ALL_CONTEXTS, Subject


class SubjectRoutes:
    """Subjects and their versions."""

    def __init__(self, service: RegistryService, changes: Changes, access: RequestAccess) -> None:
        self._service = service
        self._access = access
        self._state = service.state
        self._changes = changes
        self._pages = ListPages(service.state)

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        subject, version = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
        router.add("GET", "/subjects", self.list_subjects)
        router.add("POST", subject, self.look_up)
        router.add("DELETE", subject, self.delete_subject)
        router.add("GET", f"{subject}/metadata", self.get_by_metadata)
        router.add("GET", f"{subject}/versions", self.list_versions)
        router.add("POST", f"{subject}/versions", self.register)
        router.add("GET", version, self.get_version)
        router.add("DELETE", version, self.delete_version)
        router.add("GET", f"{version}/schema", self.get_text)
        router.add("GET", f"{version}/referencedby", self.list_referrers)
        router.add("POST", f"{version}/tags", self.change_tags)

    async def list_subjects(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects."""
        prefix = request.subject_prefix(ALL_CONTEXTS)
        deleted, deleted_only = request.flag("deleted"), request.flag("deletedOnly")

        def names_of(subjects: Sequence[Subject]) -> list[str]:
            names = list_names(self._state, subjects, deleted=deleted, deleted_only=deleted_only)
            return self._access.filter_subjects(request, names)

        key = (request.principal, request.peer, prefix, deleted, deleted_only)
        subjects = self._state.order.matching(prefix)
        return json_response(await self._pages.cut(key, subjects, names_of, request.page()))

    async def list_versions(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects/{subject}/versions."""
        subject = self._access.locate(request)
        negative = request.flag("deletedAsNegative")
        deleted = request.flag("deleted") or negative
        versions = list_versions(self._state, subject, deleted=deleted, deleted_only=request.flag("deletedOnly"))
        numbers = [-version.version if negative and version.deleted else version.version for version in versions]
        return json_response(cut_page(numbers, *request.page()))

    def _find(self, request: RegistryRequest) -> SchemaVersion:
        number = parse_version(request.values["version"])
        subject = self._access.locate(request)
        return find_version(self._state, subject, number, deleted=request.flag("deleted"))

    async def get_version(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects/{subject}/versions/{version}."""
        return json_response(version_fields(self._find(request), self._service.parser, request))

    async def get_text(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects/{subject}/versions/{version}/schema."""
        version = self._find(request)
        text = schema_text(version.content, version.subject.context, self._service.parser, request)
        return HttpResponse(body=text.encode())

    async def list_referrers(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects/{subject}/versions/{version}/referencedby."""
        ids = list_referrer_ids(self._state, self._find(request), deleted=request.flag("deleted"))
        return json_response(cut_page(ids, *request.page()))

    async def get_by_metadata(self, request: RegistryRequest) -> HttpResponse:
        """GET /subjects/{subject}/metadata: the newest version that has all pairs of key and value."""
        pairs = dict(zip(request.query.get("key", []), request.query.get("value", []), strict=False))
        subject = self._access.locate(request)
        version = find_by_metadata(self._state, subject, pairs, deleted=request.flag("deleted"))
        return json_response(version_fields(version, self._service.parser, request))

    async def look_up(self, request: RegistryRequest) -> HttpResponse:
        """POST /subjects/{subject}: the version of a schema."""
        schema = parse_schema_request(request.json())
        subject = self._access.locate(request)
        self._access.require_references(request, schema.references, subject.context)
        deleted = request.flag("deleted")
        if not self._state.versions(subject, deleted=deleted):
            raise subject_not_found(subject)
        find_steps = self._service.registration.find_steps
        steps = find_steps(subject, schema, normalize=request.flag("normalize"), deleted=deleted)
        version = await self._service.checks.run(steps)
        if version is None:
            raise schema_not_found()
        return json_response(version_fields(version, self._service.parser, request))

    async def register(self, request: RegistryRequest) -> HttpResponse:
        """POST /subjects/{subject}/versions."""
        subject = self._access.follow(request, SubjectOperation.WRITE)
        return await self._register(request, subject, parse_schema_request(request.json()))

    async def _register(self, request: RegistryRequest, subject: Subject, schema: SchemaRequest) -> HttpResponse:
        normalize, force = request.flag("normalize"), request.flag("force")
        service = self._service
        self._access.require_references(request, schema.references, subject.context)
        # A schema that is there needs no leader: most serializers register what is registered.
        existing_steps = service.registration.find_existing_steps(subject, schema, normalize=normalize)
        version = await service.checks.run(existing_steps)
        if version is None:
            if service.is_leading():
                steps = service.registration.prepare_steps(subject, schema, normalize=normalize, force=force)
                # A refusal is the decision's: it checks the subject and the mode first.
                with suppress(RegistryRefusal):
                    await service.checks.run(steps)
            decide = partial(service.registration.decide, subject, schema, normalize=normalize, force=force)
            decided: SchemaVersion = await self._changes.perform(request, decide)
            version = self._state.version(subject, decided.version) or decided
        return json_response(registration_fields(version, schema, service.parser, request))

    async def change_tags(self, request: RegistryRequest) -> HttpResponse:
        """POST /subjects/{subject}/versions/{version}/tags: a new version with other tags, metadata or rules."""
        version = self._find(request)
        self._access.require(request, SubjectOperation.WRITE, version.subject)
        old = version.content
        changed = parse_tag_request(request.json())
        schema = replace(
            changed,
            text=old.text,
            schema_type=old.schema_type,
            references=old.references,
            metadata=merge_metadata(old.metadata, changed.metadata),
            rule_set=old.rule_set if changed.rule_set is None else changed.rule_set,
        )
        return await self._register(request, version.subject, schema)

    async def delete_subject(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /subjects/{subject}."""
        subject = self._access.follow(request, SubjectOperation.DELETE)
        decide = partial(decide_delete_subject, self._state, subject, permanent=request.flag("permanent"))
        return await self._answer(request, decide)

    async def delete_version(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /subjects/{subject}/versions/{version}."""
        number = parse_version(request.values["version"])
        subject = self._access.follow(request, SubjectOperation.DELETE)
        decide = partial(decide_delete_version, self._state, subject, number, permanent=request.flag("permanent"))
        return await self._answer(request, decide)

    async def _answer(self, request: RegistryRequest, decide: Any) -> HttpResponse:
        return json_response(await self._changes.perform(request, decide))

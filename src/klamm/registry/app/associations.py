"""Routes below /associations: which subjects the keys and values of a topic have."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.answers import version_fields
from klamm.registry.app.changes import Changes
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.rights import SubjectOperation
from klamm.registry.service import RegistryService
from klamm.registry.store import RegistryDecision
from klamm.registry.store.association_requests import (
    ResourceRequest,
    parse_batch,
    parse_filter,
    parse_operations,
    parse_resource,
)
from klamm.registry.store.association_table import ANY_NAMESPACE, Association, AssociationFilter
from klamm.registry.store.associations import AssociatedSchema, Associating
from klamm.registry.store.lookup import cut_page
from klamm.registry.store.refusals import RegistryRefusal, invalid_association
from klamm.registry.store.subjects import DEFAULT_CONTEXT, parse_context, parse_subject

_MULTI_STATUS: Final = 207


class AssociationRoutes:
    """Associations of topics and subjects."""

    def __init__(self, service: RegistryService, changes: Changes, access: RequestAccess) -> None:
        self._service = service
        self._changes = changes
        self._access = access
        self._table = service.state.associations
        self._associating = Associating(service.state, service.registration)

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        resource = "/associations/resources/{resource_id}"
        router.add("POST", "/associations", self.create)
        router.add("POST", "/associations:batchGet", self.get_batch)
        router.add("POST", "/associations:batchMutate", self.change_batch)
        router.add("POST", "/associations:batch", self.change_batch)
        router.add("GET", resource, self.list_of_resource)
        router.add("PUT", resource, self.create_or_update)
        router.add("DELETE", resource, self.delete)
        router.add("GET", "/associations/resources/{namespace}/{name}", self.list_of_name)
        router.add("GET", "/associations/subjects/{subject}", self.list_of_subject)

    # Lists

    async def list_of_subject(self, request: RegistryRequest) -> HttpResponse:
        """GET /associations/subjects/{subject}."""
        subject = request.subject()
        self._access.require(request, SubjectOperation.READ, subject)
        return self._list(request, self._table.of_subject(subject, _filter(request)))

    async def list_of_resource(self, request: RegistryRequest) -> HttpResponse:
        """GET /associations/resources/{resource_id}."""
        return self._list(request, self._table.of_resource(request.values["resource_id"], _filter(request)))

    async def list_of_name(self, request: RegistryRequest) -> HttpResponse:
        """GET /associations/resources/{namespace}/{name}; `-` is any namespace."""
        namespace, name = request.values["namespace"], request.values["name"]
        return self._list(request, self._table.of_name(namespace, name, _filter(request)))

    def _list(self, request: RegistryRequest, associations: list[Association]) -> HttpResponse:
        page = cut_page(self._readable(request, associations), *request.page())
        return json_response([association.to_json() for association in page])

    def _readable(self, request: RegistryRequest, associations: list[Association]) -> list[Association]:
        names = {str(association.subject) for association in associations}
        readable = set(self._access.filter_subjects(request, sorted(names)))
        return [association for association in associations if str(association.subject) in readable]

    async def get_batch(self, request: RegistryRequest) -> HttpResponse:
        """POST /associations:batchGet: the associations of several resources, by id or by name."""
        results: list[dict[str, Any]] = []
        for body in parse_batch(request.json()):
            try:
                results.append({"result": self._get_resource(request, body)})
            except RegistryRefusal as refusal:
                results.append(_error(refusal))
        return json_response({"results": results}, _MULTI_STATUS)

    def _get_resource(self, request: RegistryRequest, body: Mapping[str, Any]) -> dict[str, Any]:
        types = body.get("associationTypes")
        wanted = parse_filter(
            str(body.get("resourceType") or ""),
            [str(name) for name in types] if isinstance(types, list) else [],
            str(body.get("lifecycle") or ""),
        )
        resource_id, name = str(body.get("resourceId") or ""), str(body.get("resourceName") or "")
        namespace = str(body.get("resourceNamespace") or ANY_NAMESPACE)
        if resource_id:
            associations = self._table.of_resource(resource_id, wanted)
        elif name:
            associations = self._table.of_name(namespace, name, wanted)
        else:
            raise invalid_association("resourceId", "resourceId or resourceName must be provided")
        associations = self._readable(request, associations)
        fields: dict[str, Any] = {"resourceName": name, "resourceNamespace": namespace, "resourceId": resource_id}
        if associations:
            first = associations[0]
            resource = (first.resource.name, first.resource.namespace, first.resource_id)
            fields = dict(zip(fields, resource, strict=True)) | {"resourceType": first.resource.resource_type}
        fields = {field: text for field, text in fields.items() if text}
        include = request.flag("includeSchemas")
        return fields | {"associations": [self._print(AssociatedSchema(item), latest=include) for item in associations]}

    # Changes

    async def create(self, request: RegistryRequest) -> HttpResponse:
        """POST /associations: new associations of one topic."""
        return await self._create(request, request.json(), create=True)

    async def create_or_update(self, request: RegistryRequest) -> HttpResponse:
        """PUT /associations/resources/{resource_id}: new or changed associations of one topic."""
        body, resource_id = request.json(), request.values["resource_id"]
        if body.get("resourceId") not in (None, "", resource_id):
            raise invalid_association("resourceId", "must be the same as in the path")
        return await self._create(request, body | {"resourceId": resource_id}, create=False)

    async def _create(self, request: RegistryRequest, body: Mapping[str, Any], *, create: bool) -> HttpResponse:
        resource = parse_resource(body, _context(request), dry_run=request.flag("dryRun"))
        await self._prepare(request, resource)
        decide = partial(self._associating.decide, resource, create=create, now_ms=_now_ms(), make_guid=_make_guid)
        return json_response(self._answer(resource, await self._perform(request, decide)))

    async def change_batch(self, request: RegistryRequest) -> HttpResponse:
        """POST /associations:batchMutate: a request per topic, each of which succeeds or fails alone."""
        results: list[dict[str, Any]] = []
        for body in parse_batch(request.json()):
            try:
                operations = parse_operations(body, _context(request), dry_run=request.flag("dryRun"))
                for kind, resource in operations:
                    if kind == "DELETE":
                        self._require_delete(request, resource)
                    else:
                        await self._prepare(request, resource)
                decide = partial(
                    self._associating.decide_operations, operations, now_ms=_now_ms(), make_guid=_make_guid
                )
                results.append({"result": self._answer(operations[0][1], await self._perform(request, decide))})
            except RegistryRefusal as refusal:
                results.append(_error(refusal))
        return json_response({"results": results}, _MULTI_STATUS)

    async def delete(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /associations/resources/{resource_id}; with ?cascadeLifecycle=true subjects that the topic owns go."""
        resource_id, cascade = request.values["resource_id"], request.flag("cascadeLifecycle")
        wanted = _filter(request)
        for association in self._table.of_resource(resource_id, wanted):
            operation = SubjectOperation.DELETE if cascade and association.frozen else SubjectOperation.WRITE
            self._access.require(request, operation, association.subject)
        decide = partial(self._associating.decide_delete, resource_id, wanted, cascade=cascade)
        await self._perform(request, decide)
        return HttpResponse(204)

    async def _perform(self, request: RegistryRequest, decide: Callable[[], RegistryDecision]) -> Any:
        # A dry run decides like the leader, and writes nothing.
        return decide().answer if request.flag("dryRun") else await self._changes.perform(request, decide)

    async def _prepare(self, request: RegistryRequest, resource: ResourceRequest) -> None:
        """Check the rights, and parse large schemas outside of the event loop."""
        for wanted in resource.associations:
            subject = wanted.subject or resource.own_subject(wanted.association_type)
            self._access.require(request, SubjectOperation.WRITE, subject)
            if wanted.schema is not None:
                self._access.require_references(request, wanted.schema.references, subject.context)
                steps = self._service.registration.prepare_steps(
                    subject, wanted.schema, normalize=wanted.normalize, force=False
                )
                # A refusal is the decision's, in the order of its checks.
                with suppress(RegistryRefusal):
                    await self._service.checks.run(steps)

    def _require_delete(self, request: RegistryRequest, resource: ResourceRequest) -> None:
        types = tuple(wanted.association_type for wanted in resource.associations)
        for association in self._table.of_resource(resource.resource_id, AssociationFilter("", types)):
            self._access.require(request, SubjectOperation.WRITE, association.subject)

    # Answers

    def _answer(self, resource: ResourceRequest, items: list[AssociatedSchema]) -> dict[str, Any]:
        fields = {
            "resourceName": resource.name,
            "resourceNamespace": resource.namespace,
            "resourceId": resource.resource_id,
            "resourceType": resource.resource_type,
        }
        return {name: text for name, text in fields.items() if text} | {
            "associations": [self._print(item) for item in items]
        }

    def _print(self, item: AssociatedSchema, *, latest: bool = False) -> dict[str, Any]:
        association, version = item
        fields: dict[str, Any] = {
            "subject": str(association.subject),
            "associationType": association.association_type,
            "lifecycle": association.lifecycle,
            "frozen": association.frozen,
        }
        live = self._service.state.versions(association.subject) if latest else []
        if version is None and live:
            version = live[-1]
        if version is not None:
            fields["schema"] = version_fields(version, self._service.parser)
        return fields


def _context(request: RegistryRequest) -> str:
    """Return the context of subjects that name none."""
    named = request.text("context")
    # As `:.context:` too, which is how subjects are qualified.
    if named.startswith(":."):
        return parse_subject(named).context
    return parse_context(named) if named else request.context or DEFAULT_CONTEXT


def _filter(request: RegistryRequest) -> AssociationFilter:
    types = request.query.get("associationType", [])
    return parse_filter(request.text("resourceType"), list(types), request.text("lifecycle"))


def _error(refusal: RegistryRefusal) -> dict[str, Any]:
    return {"error": {"error_code": refusal.error_code, "message": refusal.message}}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _make_guid() -> str:
    return str(uuid.uuid4())

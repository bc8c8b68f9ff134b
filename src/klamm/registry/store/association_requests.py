"""Bodies of requests about associations, checked.

| of a new association | given | becomes |
|---|---|---|
| lifecycle | nothing | STRONG with a schema, WEAK without |
| frozen | nothing | true if STRONG, false if WEAK; nothing else is allowed |
| subject | nothing | `:.<namespace>:<name>-<type>` if STRONG; a WEAK one has to name another subject |
| associationType | nothing | `value` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.registry.store.association_table import STRONG, WEAK, AssociationFilter
from klamm.registry.store.log_records import ResourceKey
from klamm.registry.store.refusals import invalid_association
from klamm.registry.store.registration import SchemaRequest
from klamm.registry.store.requests import parse_schema_request
from klamm.registry.store.subjects import Subject, check_subject, parse_subject

TOPIC: Final = "topic"
_TYPES: Final = ("key", "value")
_NAME_LENGTH_MAX: Final = 256
_REQUESTS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class AssociationRequest:
    """One association as a client sends it; None where the client sent nothing."""

    association_type: str
    subject: Subject | None = None
    lifecycle: str | None = None
    frozen: bool | None = None
    schema: SchemaRequest | None = None
    normalize: bool = False

    def with_defaults(self, resource: ResourceRequest) -> AssociationRequest:
        """Return the association as it is when it is new."""
        if self.schema is not None and self.lifecycle == WEAK:
            raise invalid_association("lifecycle", "cannot be WEAK when schema is provided")
        lifecycle = self.lifecycle or (WEAK if self.schema is None else STRONG)
        frozen = lifecycle == STRONG
        if self.frozen not in (None, frozen):
            raise _wrong_frozen(lifecycle, frozen=bool(self.frozen))
        own = resource.own_subject(self.association_type)
        if lifecycle == WEAK:
            if self.subject is None:
                raise invalid_association("subject", "must be provided for WEAK associations")
            if self.subject == own:
                raise invalid_association("subject", f"WEAK associations cannot use subject '{own}'")
        elif self.subject not in (None, own):
            raise invalid_association("subject", f"frozen associations must use subject '{own}'")
        return replace(self, lifecycle=lifecycle, frozen=frozen, subject=self.subject or own)


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A topic and the associations that a request creates, changes or deletes."""

    name: str
    namespace: str
    resource_id: str
    resource_type: str
    associations: tuple[AssociationRequest, ...]

    def own_subject(self, association_type: str) -> Subject:
        """Return the subject that only this topic may own."""
        return Subject(f".{self.namespace}", f"{self.name}-{association_type}")

    def key(self, association_type: str) -> ResourceKey:
        """Return the name under which the topic has an association."""
        return ResourceKey(self.name, self.namespace, self.resource_type, association_type)


def parse_resource(body: Mapping[str, Any], context: str, *, dry_run: bool) -> ResourceRequest:
    """Parse a request to create or change associations; subjects that name no context are in `context`."""
    resource = _parse_resource(body, dry_run=dry_run)
    items = body.get("associations")
    if not isinstance(items, list) or not items:
        raise invalid_association("associations", "cannot be null or empty")
    associations = tuple(_parse_association(_object(item, "associations"), context) for item in items)
    check_types(associations)
    return replace(resource, associations=associations)


def parse_operations(body: Mapping[str, Any], context: str, *, dry_run: bool) -> list[tuple[str, ResourceRequest]]:
    """Parse one request of a batch: CREATE, UPSERT and DELETE in order, neighbours of one kind together."""
    resource = _parse_resource(body, dry_run=dry_run)
    items = body.get("associations")
    if not isinstance(items, list) or not items:
        raise invalid_association("associations", "cannot be null or empty")
    operations: list[tuple[str, ResourceRequest]] = []
    associations: list[AssociationRequest] = []
    for item in items:
        fields = _object(item, "associations")
        kind = fields.get("opType")
        if kind not in ("CREATE", "UPSERT", "DELETE"):
            raise invalid_association("opType", "must be CREATE, UPSERT or DELETE")
        association = (
            AssociationRequest(_parse_type(fields)) if kind == "DELETE" else _parse_association(fields, context)
        )
        associations.append(association)
        if operations and operations[-1][0] == kind:
            last = operations.pop()[1]
            operations.append((kind, replace(last, associations=(*last.associations, association))))
        else:
            operations.append((kind, replace(resource, associations=(association,))))
    check_types(associations)
    return operations


def parse_batch(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the requests of a batch."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise invalid_association("requests", "cannot be null or empty")
    if len(requests) > _REQUESTS_MAX:
        raise invalid_association("requests", f"has more than {_REQUESTS_MAX} entries")
    return [_object(request, "requests") for request in requests]


def parse_filter(resource_type: str, association_types: list[str], lifecycle: str) -> AssociationFilter:
    """Return which associations a query lists."""
    if lifecycle not in ("", STRONG, WEAK):
        raise invalid_association("lifecycle", "must be STRONG or WEAK")
    return AssociationFilter(resource_type, tuple(association_types), lifecycle)


def check_types(associations: tuple[AssociationRequest, ...] | list[AssociationRequest]) -> None:
    """Refuse two associations of one type in one request."""
    types = [association.association_type for association in associations]
    for name in _TYPES:
        if types.count(name) > 1:
            raise invalid_association(
                "associationType", f"may only appear once per request, but '{name}' appears more than once"
            )


def _wrong_frozen(lifecycle: str, *, frozen: bool) -> Exception:
    return invalid_association(
        "frozen", f"association with lifecycle of {lifecycle} cannot be frozen={str(frozen).lower()}"
    )


def _parse_resource(body: Mapping[str, Any], *, dry_run: bool) -> ResourceRequest:
    name, namespace = _parse_name(body, "resourceName"), _parse_name(body, "resourceNamespace")
    resource_id = body.get("resourceId") or ""
    # A dry run is for a topic that is about to be created, which has no id yet.
    if not isinstance(resource_id, str) or (not resource_id and not dry_run):
        raise invalid_association("resourceId", "cannot be null or empty")
    if (body.get("resourceType") or TOPIC) != TOPIC:
        raise invalid_association("resourceType", f"must be '{TOPIC}'")
    return ResourceRequest(name, namespace, resource_id, TOPIC, ())


def _parse_name(body: Mapping[str, Any], field: str) -> str:
    name = body.get(field)
    if not isinstance(name, str) or not name:
        raise invalid_association(field, "cannot be null or empty")
    if len(name) > _NAME_LENGTH_MAX:
        raise invalid_association(field, f"exceeds max length of {_NAME_LENGTH_MAX}")
    for char in name:
        # With the dot, which Confluent's registry refuses: topics have it in their names.
        if not (char.isalnum() or char in "_-."):
            raise invalid_association(field, f"illegal character '{char}'")
    return name


def _parse_type(fields: Mapping[str, Any]) -> str:
    name = fields.get("associationType") or "value"
    if name not in _TYPES:
        raise invalid_association("associationType", "must be either 'key' or 'value'")
    return str(name)


def _parse_association(fields: Mapping[str, Any], context: str) -> AssociationRequest:
    text, lifecycle, frozen, schema = (fields.get(name) for name in ("subject", "lifecycle", "frozen", "schema"))
    subject = None
    if text is not None:
        if not isinstance(text, str) or not text:
            raise invalid_association("subject", "must not be empty")
        subject = parse_subject(text, context)
        check_subject(subject)
    if lifecycle not in (None, STRONG, WEAK):
        raise invalid_association("lifecycle", "must be STRONG or WEAK")
    if not isinstance(frozen, bool | None):
        raise invalid_association("frozen", "must be true or false")
    if lifecycle == WEAK and frozen:
        raise _wrong_frozen(WEAK, frozen=True)
    return AssociationRequest(
        _parse_type(fields),
        subject,
        lifecycle,
        frozen,
        None if schema is None else parse_schema_request(_object(schema, "schema")),
        normalize=fields.get("normalize") is True,
    )


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise invalid_association(field, "must be an object")
    return value

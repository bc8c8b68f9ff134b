"""Changes of associations: which subject the key or the value of a topic has.

A STRONG association makes the topic the owner of the subject. It is created with its first schema, it is frozen, and
it ends with the topic: a delete with `cascadeLifecycle` deletes the subject, too. A WEAK association leads to a subject
that is there already and that several topics may use. All associations of one topic have the same lifecycle. A subject
keeps a live version as long as it is associated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from klamm.registry.store import log_records as log
from klamm.registry.store.association_requests import AssociationRequest, ResourceRequest
from klamm.registry.store.association_table import STRONG, Association, AssociationFilter
from klamm.registry.store.deletion import delete_owned_subject
from klamm.registry.store.log_records import LogEntry, LogKey, RegistryDecision
from klamm.registry.store.refusals import (
    association_frozen,
    association_not_found,
    invalid_association,
    no_live_version,
    resource_associated,
    subject_associated,
    subject_owned,
)
from klamm.registry.store.registration import Registration
from klamm.registry.store.scopes import effective_mode, require_writable
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.subjects import Subject


class AssociatedSchema(NamedTuple):
    """An association, and the version that its request has registered."""

    association: Association
    version: SchemaVersion | None = None


class Associating:
    """Decides about associations in one state; the time and new GUIDs come from outside."""

    def __init__(self, state: RegistryState, registration: Registration) -> None:
        self._state = state
        self._registration = registration

    def decide(
        self,
        request: ResourceRequest,
        *,
        create: bool,
        now_ms: int,
        make_guid: Callable[[], str],
        without: frozenset[str] = frozenset(),
    ) -> RegistryDecision:
        """Create associations, or with `create` False also change them; the answer is a list of AssociatedSchema.

        `without` are the types of associations that the same request deletes.
        """
        existing = {
            association.association_type: association
            for association in self._of_resource(request)
            if association.association_type not in without
        }
        entries: list[LogEntry] = []
        answer: list[AssociatedSchema] = []
        schemas = _NewSchemas()
        for wanted in request.associations:
            before = existing.get(wanted.association_type)
            association, decision = self._decide_one(request, wanted, before, create=create)
            version = None
            if decision is not None:
                version, written = schemas.add(decision)
                entries += written
            if before is None:
                association = replace(association, guid=make_guid(), create_ms=now_ms)
            if association != before:
                entries.append(association.entry())
            existing[wanted.association_type] = association
            answer.append(AssociatedSchema(association, version))
        if len({association.lifecycle for association in existing.values()}) > 1:
            raise invalid_association("lifecycle", "all associations of a resource must have the same lifecycle")
        return RegistryDecision(tuple(entries), answer)

    def _of_resource(self, request: ResourceRequest) -> list[Association]:
        wanted = AssociationFilter(request.resource_type)
        if request.resource_id:
            return self._state.associations.of_resource(request.resource_id, wanted)
        # A dry run before the topic exists: the newest topic of that name.
        named = self._state.associations.of_name(request.namespace, request.name, wanted)
        if not named:
            return []
        newest = max(named, key=_creation).resource_id
        return [association for association in named if association.resource_id == newest]

    def _decide_one(
        self, request: ResourceRequest, wanted: AssociationRequest, before: Association | None, *, create: bool
    ) -> tuple[Association, RegistryDecision | None]:
        """Return the association and the registration of its schema."""
        if before is not None:
            return self._decide_change(request, wanted, before, create=create)
        imported = self._is_imported(request, wanted)
        if not create and not imported:
            if wanted.schema is not None:
                raise invalid_association(
                    "schema",
                    "cannot be provided when adding an association to an existing topic;"
                    " an association with a schema must be created with the topic",
                )
            if wanted.lifecycle == STRONG:
                raise invalid_association(
                    "lifecycle",
                    "cannot be STRONG when creating an association; STRONG associations must be created with the topic",
                )
        wanted = wanted.with_defaults(request)
        subject, lifecycle = wanted.subject, wanted.lifecycle
        assert subject is not None
        assert lifecycle is not None
        require_writable(self._state, subject)
        live = bool(self._state.versions(subject))
        if wanted.schema is None and not live:
            # Frozen without any schema is the likelier mistake, and says more.
            if lifecycle == STRONG and not imported:
                raise invalid_association("schema", "must be provided when creating a frozen association")
            raise no_live_version(subject)
        if lifecycle == STRONG and not imported:
            if wanted.schema is None:
                raise invalid_association("schema", "must be provided when creating a frozen association")
            if live:
                raise invalid_association(
                    "subject", "cannot create a frozen association when schemas already exist in the subject"
                )
        self._check_others(subject, lifecycle)
        resource = request.key(wanted.association_type)
        association = Association(resource, request.resource_id, subject, "", lifecycle)
        return association, self._register(wanted, subject)

    def _is_imported(self, request: ResourceRequest, wanted: AssociationRequest) -> bool:
        """Whether the schema was imported before: in this mode the topic and its subject are copies."""
        subject = wanted.subject or request.own_subject(wanted.association_type)
        return wanted.schema is None and effective_mode(self._state, subject) == "IMPORT"

    def _decide_change(
        self, request: ResourceRequest, wanted: AssociationRequest, before: Association, *, create: bool
    ) -> tuple[Association, RegistryDecision | None]:
        if create:
            wanted = wanted.with_defaults(request)
            same = (wanted.subject, wanted.lifecycle) == (before.subject, before.lifecycle)
            # A repeated request gets the answer of the first; with another schema it is not the same request.
            registered = wanted.schema is None or self._registration.find(
                before.subject, wanted.schema, normalize=wanted.normalize
            )
            if not same or not registered:
                raise resource_associated(wanted.association_type, request.resource_id or request.name)
            return before, None
        if wanted.subject not in (None, before.subject):
            raise invalid_association("subject", "subject of association cannot be changed")
        if wanted.frozen not in (None, before.frozen):
            raise invalid_association("frozen", "frozen attribute of association cannot be changed")
        if wanted.lifecycle not in (None, before.lifecycle):
            if before.frozen:
                raise association_frozen(before.association_type, before.subject)
            raise invalid_association("lifecycle", "STRONG associations must be created with the topic")
        if wanted.schema is not None and not before.frozen:
            raise invalid_association("lifecycle", "cannot be WEAK when schema is provided")
        return before, self._register(wanted, before.subject)

    def _register(self, wanted: AssociationRequest, subject: Subject) -> RegistryDecision | None:
        if wanted.schema is None:
            return None
        return self._registration.decide(subject, wanted.schema, normalize=wanted.normalize)

    def _check_others(self, subject: Subject, lifecycle: str) -> None:
        others = self._state.associations.of_subject(subject)
        if others and lifecycle == STRONG:
            raise subject_associated(subject)
        if any(association.lifecycle == STRONG for association in others):
            raise subject_owned(subject)

    def decide_operations(
        self, operations: Sequence[tuple[str, ResourceRequest]], *, now_ms: int, make_guid: Callable[[], str]
    ) -> RegistryDecision:
        """Decide one request of a batch, all of it or nothing; the answer is a list of AssociatedSchema."""
        entries: list[LogEntry] = []
        answer: list[AssociatedSchema] = []
        deleted = [request for kind, request in operations if kind == "DELETE"]
        types = tuple(item.association_type for request in deleted for item in request.associations)
        # Deletes first: what is left must have one lifecycle.
        for request in deleted:
            for item in request.associations:
                wanted = AssociationFilter(request.resource_type, (item.association_type,))
                decision = self.decide_delete(request.resource_id, wanted, cascade=False)
                entries += decision.entries
                answer += map(AssociatedSchema, decision.answer)
        for kind, request in operations:
            if kind != "DELETE":
                create, without = kind == "CREATE", frozenset(types)
                decision = self.decide(request, create=create, now_ms=now_ms, make_guid=make_guid, without=without)
                entries += decision.entries
                answer += decision.answer
        return RegistryDecision(tuple(entries), answer)

    def decide_delete(self, resource_id: str, wanted: AssociationFilter, *, cascade: bool) -> RegistryDecision:
        """Delete associations of a resource; with `cascade` the subjects that it owns go, too."""
        associations = self._state.associations.of_resource(resource_id, wanted)
        if not associations:
            raise association_not_found(resource_id)
        for association in associations:
            if association.frozen and not cascade:
                raise association_frozen(association.association_type, association.subject)
            require_writable(self._state, association.subject)
        entries: list[LogEntry] = []
        for association in associations:
            entries.append(LogEntry(association.log_key, None))
            if association.frozen:
                entries += delete_owned_subject(self._state, association.subject)
        return RegistryDecision(_merge_id_floors(entries), associations)


class _NewSchemas:
    """Schemas that one decision registers: none of them is in the state when the next is decided."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, Any], int] = {}
        """By context and content."""
        self._contexts: set[LogKey] = set()

    def add(self, decision: RegistryDecision) -> tuple[SchemaVersion, list[LogEntry]]:
        """Return the version and its records, with an id of its own unless the content has one."""
        version: SchemaVersion = decision.answer
        if not decision.entries:
            return version, []
        context = version.subject.context
        content = (context, version.content.identity)
        if content not in self._ids:
            taken = [schema_id for (name, _), schema_id in self._ids.items() if name == context]
            self._ids[content] = max([version.schema_id, *(schema_id + 1 for schema_id in taken)])
        if version.schema_id != self._ids[content]:
            version = replace(version, schema_id=self._ids[content])
        entries = []
        for key, value in decision.entries:
            if key.keytype == log.CONTEXT:
                if key in self._contexts:
                    continue
                self._contexts.add(key)
            if key == LogKey(log.SCHEMA, str(version.subject), version.version) and value is not None:
                entries.append(LogEntry(key, value | {"id": version.schema_id}))
            else:
                entries.append(LogEntry(key, value))
        return version, entries


def _merge_id_floors(entries: Sequence[LogEntry]) -> tuple[LogEntry, ...]:
    """Return the records with one NOOP in front, which has the largest ids of all contexts that lose schemas."""
    floors: dict[str, int] = {}
    for key, value in entries:
        if key.keytype == log.NOOP:
            floors |= (value or {}).get(log.ID_FLOORS, {})
    rest = tuple(entry for entry in entries if entry.key.keytype != log.NOOP)
    return (LogEntry(LogKey(log.NOOP), {log.ID_FLOORS: floors}), *rest) if floors else rest


def _creation(association: Association) -> tuple[int, str]:
    return association.create_ms or 0, association.resource_id

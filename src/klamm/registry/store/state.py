"""Everything that the records of `_schemas` say, in memory; changed by `replay` alone.

Reader's rules, as other registries have them: records of unknown kinds and damaged ones are skipped, never an end; of
two schemas with one id in a context the first counts; a reference may be replayed after the schema that has it, since
compaction moves records, so references are resolved when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

from klamm.registry.store import log_records as log
from klamm.registry.store.association_table import AssociationTable
from klamm.registry.store.compact_index import CompactIndex
from klamm.registry.store.content import SchemaContent
from klamm.registry.store.log_records import LogEntry, LogKey
from klamm.registry.store.subject_order import SubjectOrder
from klamm.registry.store.subjects import DEFAULT_CONTEXT, Subject, parse_subject


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a subject; `timestamp_ms` is the time of its record."""

    subject: Subject
    version: int
    schema_id: int
    content: SchemaContent
    deleted: bool = False
    timestamp_ms: int | None = None


def _identify_use(version: SchemaVersion) -> tuple[Subject, int]:
    return version.subject, version.version


def _identify_id(schema_id: int) -> int:
    return schema_id


@dataclass(slots=True)
class ContextSchemas:
    """The schemas of one context; ids are counted in each context from 1."""

    uses: CompactIndex[int, SchemaVersion] = field(default_factory=partial(CompactIndex, _identify_use))
    """The versions of an id."""
    ids: CompactIndex[bytes, int] = field(default_factory=partial(CompactIndex, _identify_id))
    """By GUID."""
    id_max: int = 0
    """The largest id ever seen, also of deleted schemas: ids are never used again."""
    id_reserved: int = 0
    """The largest id that was given to a schema on its way to the topic; soft state of the writer."""

    @property
    def next_id(self) -> int:
        """The id of the next new schema."""
        return max(self.id_max, self.id_reserved) + 1


class RegistryState:
    """Schemas, configs, modes and contexts. One task replays."""

    def __init__(self) -> None:
        self.contexts: dict[str, ContextSchemas] = {}
        self.subjects: CompactIndex[Subject, SchemaVersion] = CompactIndex(attrgetter("version"))
        """Versions of each subject in ascending order, deleted ones too."""
        self.order = SubjectOrder(self.subjects)
        self.configs: dict[Subject | None, dict[str, Any]] = {}
        """By subject or context; None is the global config."""
        self.modes: dict[Subject | None, str] = {}
        self.declared_contexts: set[str] = set()
        self.associations = AssociationTable()
        self.referrers: dict[tuple[Subject, int], dict[tuple[Subject, int], None]] = {}
        """The versions that refer to a version."""
        self.key_bytes: dict[LogKey, bytes] = {}
        """Keys with other bytes than ours; new records use the bytes found, or compaction would keep both."""
        self.id_floors: dict[str, int] = {}
        """By context, what the topic says about the largest id ever given; see `log_records.ID_FLOORS`."""
        self.id_floors_lost = False
        """Whether another registry has overwritten them."""
        self.records = 0
        self.skipped = 0

    # Reading

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions of a subject in ascending order; soft-deleted ones only with `deleted`."""
        return [version for version in self.subjects.values(subject) if deleted or not version.deleted]

    def version(self, subject: Subject, number: int) -> SchemaVersion | None:
        """Return a version, deleted or not."""
        return self.subjects.find(subject, number)

    def context(self, name: str) -> ContextSchemas:
        """Return the schemas of a context; an empty one is not kept."""
        return self.contexts.get(name) or ContextSchemas()

    def context_names(self) -> list[str]:
        """Return all contexts, the default one first."""
        used = [name for name, schemas in self.contexts.items() if len(schemas.uses)]
        return sorted({DEFAULT_CONTEXT, *self.declared_contexts, *used})

    def uses(self, context: str, schema_id: int, *, deleted: bool = False) -> Iterator[SchemaVersion]:
        """Yield the versions that have an id."""
        for version in self.context(context).uses.values(schema_id):
            if deleted or not version.deleted:
                yield version

    def content(self, context: str, schema_id: int) -> SchemaContent | None:
        """Return what an id stands for; of versions that differ in their metadata the first counts."""
        version = self.context(context).uses.first(schema_id)
        return None if version is None else version.content

    def content_of(self, context: str, schema_id: int, guid: bytes) -> SchemaContent:
        """Return the content of an id that has a GUID: versions of one id may differ in their metadata."""
        uses = self.uses(context, schema_id, deleted=True)
        return next(version.content for version in uses if version.content.guid == guid)

    def id_of(self, context: str, content: SchemaContent) -> int | None:
        """Return the id that stands for a content in a context."""
        for schema_id in self.context(context).ids.values(content.guid):
            other = self.content(context, schema_id)
            if other is not None and other.schema_type == content.schema_type:
                return schema_id
        return None

    def ids(self, context: str) -> set[int]:
        """Return all ids of a context."""
        return set(self.context(context).uses)

    def ids_of(self, context: str, guid: bytes) -> set[int]:
        """Return the ids that stand for a content in a context."""
        return set(self.context(context).ids.values(guid))

    def list_places(self, guid: bytes) -> list[tuple[str, int]]:
        """Return the contexts and ids of a GUID."""
        return [(name, schema_id) for name, schemas in self.contexts.items() for schema_id in schemas.ids.values(guid)]

    def count_ids(self) -> int:
        """Return how many ids there are in all contexts."""
        return sum(len(schemas.uses) for schemas in self.contexts.values())

    def reserve_id(self, context: str, schema_id: int) -> None:
        """Keep an id from being given again until `release_ids`; for decisions that are written together."""
        schemas = self.contexts.setdefault(context, ContextSchemas())
        schemas.id_reserved = max(schemas.id_reserved, schema_id)

    def release_ids(self) -> None:
        """Forget reservations: what was written is replayed, what was not may be given again."""
        for schemas in self.contexts.values():
            schemas.id_reserved = 0

    def id_floors_entry(self, context: str | None = None) -> LogEntry:
        """Return the record that keeps ids from being given again, with the largest id of a context now."""
        floors = dict(self.id_floors)
        if context is not None:
            floors[context] = self.context(context).id_max
        return LogEntry(LogKey(log.NOOP), {log.ID_FLOORS: floors} if floors else None)

    def encode(self, entry: LogEntry) -> tuple[bytes, bytes | None]:
        """Return key and value of a record, with the key bytes that the topic has for it."""
        return self.key_bytes.get(entry.key) or log.encode_key(entry.key), log.encode_value(entry.value)

    # Replay

    def replay(self, key: bytes | None, value: bytes | None, timestamp_ms: int | None = None) -> str | None:
        """Apply one record; return why it was skipped, None when it was not. Never raises for any bytes."""
        self.records += 1
        parsed = log.parse_key(key)
        if parsed is None:
            self.skipped += 1
            return "the key is of no known type, or damaged"
        assert key is not None
        if parsed.keytype == log.NOOP:
            self._apply_id_floors(log.parse_id_floors(value))
            return None
        try:
            fields = log.parse_value(value)
            reason = self._apply(parsed, fields, timestamp_ms)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            reason = f"the value is damaged: {error}"
        if reason is not None:
            self.skipped += 1
            return f"{parsed.keytype} of {parsed.subject or parsed.context}: {reason}"
        if key != log.encode_key(parsed):
            self.key_bytes[parsed] = key
        return None

    def _apply_id_floors(self, floors: dict[str, int]) -> None:
        self.id_floors_lost = any(floors.get(context, 0) < floor for context, floor in self.id_floors.items())
        for context, floor in floors.items():
            schemas = self.contexts.setdefault(context, ContextSchemas())
            schemas.id_max = max(schemas.id_max, floor)
            self.id_floors[context] = max(self.id_floors.get(context, 0), floor)

    def _apply(self, key: LogKey, value: dict[str, Any] | None, timestamp_ms: int | None) -> str | None:
        if key.keytype == log.SCHEMA:
            assert key.subject is not None
            assert key.version is not None
            return self._apply_schema(parse_subject(key.subject), key.version, value, timestamp_ms)
        if key.keytype == log.CONTEXT:
            assert key.context is not None
            (self.declared_contexts.discard if value is None else self.declared_contexts.add)(key.context)
            return None
        if key.keytype == log.ASSOCIATION:
            self.associations.apply(key, value, timestamp_ms)
            return None
        subject = None if key.subject is None else parse_subject(key.subject)
        if key.keytype == log.CONFIG:
            if value is None:
                self.configs.pop(subject, None)
            else:
                # Confluent's registry repeats the subject of the key.
                self.configs[subject] = {
                    name: item for name, item in value.items() if item is not None and name != "subject"
                }
        elif key.keytype == log.MODE:
            if value is None:
                self.modes.pop(subject, None)
            else:
                self.modes[subject] = str(value["mode"]).upper()
        elif value is not None and subject is not None:
            if key.keytype == log.DELETE_SUBJECT:
                self._soft_delete(subject, log.parse_int(value["version"]))
            else:
                self._clear(subject)
        return None

    def _apply_schema(
        self, subject: Subject, number: int, value: dict[str, Any] | None, timestamp_ms: int | None
    ) -> str | None:
        if value is None:
            self._remove(subject, number)
            return None
        schema_id = log.parse_int(value["id"])
        if schema_id < 0:
            return f"the id is {schema_id}"
        content = log.parse_content(value)
        schemas = self.contexts.get(subject.context)
        if schemas is None:
            schemas = self.contexts[subject.context] = ContextSchemas()
        schemas.id_max = max(schemas.id_max, schema_id)
        first = self.content(subject.context, schema_id)
        if first is not None and (first.text, first.schema_type) != (content.text, content.schema_type):
            # Clients keep the schema of an id for ever: an id never changes its meaning.
            return f"id {schema_id} is another schema"
        if first is not None and first.identity == content.identity:
            content = first
        before = self.version(subject, number)
        if before is not None:
            timestamp_ms = before.timestamp_ms if before.schema_id == schema_id else timestamp_ms
            self._remove(subject, number)
        version = SchemaVersion(subject, number, schema_id, content, bool(value.get("deleted")), timestamp_ms)
        last = self.subjects.last(subject)
        self.subjects.put(subject, version)
        if last is None:
            self.order.note(subject)
        elif last.version > number:
            self.subjects.sort(subject)
        schemas.uses.put(schema_id, version)
        schemas.ids.put(content.guid, schema_id)
        for target in _targets(version):
            self.referrers.setdefault(target, {})[subject, number] = None
        return None

    def _remove(self, subject: Subject, number: int) -> None:
        version = self.subjects.remove(subject, number)
        if version is None:
            return
        if subject not in self.subjects:
            self.order.note(subject)
        for target in _targets(version):
            referrers = self.referrers.get(target, {})
            referrers.pop((subject, number), None)
            if not referrers:
                self.referrers.pop(target, None)
        schemas = self.contexts[subject.context]
        # An id without versions stands for nothing, and is not given again either.
        schemas.uses.remove(version.schema_id, (subject, number))
        # Versions of one id may differ in their metadata, and then have other GUIDs.
        if all(other.content.guid != version.content.guid for other in schemas.uses.values(version.schema_id)):
            schemas.ids.remove(version.content.guid, version.schema_id)

    def _soft_delete(self, subject: Subject, up_to: int) -> None:
        for version in self.versions(subject):
            if version.version <= up_to:
                deleted = replace(version, deleted=True)
                self.subjects.put(subject, deleted)
                self.contexts[subject.context].uses.put(version.schema_id, deleted)

    def _clear(self, scope: Subject) -> None:
        """Forget soft-deleted versions of a subject or, with an empty name, of a context."""
        for subject in [subject for subject in self.subjects if in_scope(subject, scope)]:
            for version in self.versions(subject, deleted=True):
                if version.deleted:
                    self._remove(subject, version.version)


def in_scope(subject: Subject, scope: Subject | None) -> bool:
    """Whether a subject is the scope, in its context, or anywhere if the scope is None."""
    if scope is None:
        return True
    return subject == scope or (scope.is_context and subject.context == scope.context)


def _targets(version: SchemaVersion) -> Iterator[tuple[Subject, int]]:
    for reference in version.content.references:
        yield parse_subject(reference.subject, version.subject.context), reference.version

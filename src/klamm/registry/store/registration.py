"""Registering a schema: which id and version it gets, and what is written.

Idempotent: a live version with the same content is the answer, without a record. Content that the context has already
keeps its id, in whatever subject. A soft-deleted version with the same content is replaced by the next version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from klamm.registry.schemas.parsed import TagChanges
from klamm.registry.store import log_records as log
from klamm.registry.store.compatibility import find_incompatibilities_steps, find_reserved_fields, require_valid_names
from klamm.registry.store.content import JsonObject, SchemaContent, SchemaReference
from klamm.registry.store.contracts import apply_config, merge_rule_sets, remove_rules, with_version_property
from klamm.registry.store.log_records import LogEntry, LogKey, RegistryDecision, schema_entry
from klamm.registry.store.parsing import AnyParsedSchema, SchemaParser
from klamm.registry.store.refusals import (
    VERSION_MAX,
    RegistryRefusal,
    empty_schema,
    incompatible,
    invalid_schema,
    not_permitted,
    reserved_fields,
)
from klamm.registry.store.scopes import IMPORTING, effective_config, effective_mode, require_writable, validates_new
from klamm.registry.store.spellings import SpellingIndex
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.steps import PureCall, Steps, run_steps
from klamm.registry.store.subjects import DEFAULT_CONTEXT, Subject, check_subject

_RECENT_MAX: Final = 64
_RECENT_CHARS_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema as a client sends it; None where the client sent nothing."""

    text: str = ""
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    metadata: JsonObject | None = None
    rule_set: JsonObject | None = None
    schema_id: int | None = None
    version: int | None = None
    tags_to_add: TagChanges = field(default_factory=dict)
    tags_to_remove: TagChanges = field(default_factory=dict)
    rules_to_merge: JsonObject | None = None
    rules_to_remove: tuple[str, ...] = ()

    @property
    def tag_changes(self) -> tuple[Any, ...]:
        """Return the changes of tags as a key."""
        return tuple(self.tags_to_add.items()), tuple(self.tags_to_remove.items())


@dataclass(frozen=True, slots=True)
class CandidateSchema:
    """A request's schema, parsed, with what it inherits."""

    content: SchemaContent
    parsed: AnyParsedSchema


class Registration:
    """Decides about registering schemas in one state."""

    def __init__(self, state: RegistryState, parser: SchemaParser, default_level: str) -> None:
        self._state = state
        self._parser = parser
        self._default_level = default_level
        self._spellings = SpellingIndex(state, parser)
        self._recent: OrderedDict[Any, AnyParsedSchema] = OrderedDict()
        """Schemas of the last requests."""
        self._recent_chars = 0

    # Look-up

    def find(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, deleted: bool = False
    ) -> SchemaVersion | None:
        """Return the version of a subject with the same schema; tried as sent, then with what it would inherit."""
        return run_steps(self.find_steps(subject, request, normalize=normalize, deleted=deleted))

    def find_steps(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, deleted: bool = False
    ) -> Steps[SchemaVersion | None]:
        """`find` in steps."""
        versions = self._state.versions(subject, deleted=deleted)
        if not (versions and request.text):
            return None
        config = effective_config(self._state, subject, self._default_level)
        normalize = normalize or bool(config.get("normalize"))
        candidate = yield from self.parse_steps(subject, request, normalize=normalize, is_new=False)
        inherited = self._inherit(candidate.content, subject, config, None)
        contents = (candidate.content,) if inherited is candidate.content else (candidate.content, inherited)
        for content in contents:
            if (version := self._find_content(versions, content)) is not None:
                return version
        same = yield from self._find_printed(versions, candidate.parsed, contents)
        return same or (yield from self._find_resolved(candidate, versions))

    def _find_content(self, versions: list[SchemaVersion], content: SchemaContent) -> SchemaVersion | None:
        """Return the newest version with this content: one with its id, or with more metadata than was sent."""
        ids = self._state.ids_of(versions[0].subject.context, content.guid)
        for version in reversed(versions):
            other = version.content
            if (version.schema_id in ids or other.metadata is not None) and _matches(other, content):
                return version
        return None

    def _find_printed(
        self, versions: list[SchemaVersion], candidate: AnyParsedSchema, sent: tuple[SchemaContent, ...]
    ) -> Steps[SchemaVersion | None]:
        """Return a version that is the same schema, printed otherwise.

        Karapace sorts the properties of Avro; Protobuf may be sent as text or as descriptor.
        """
        linked = yield from self._parser.link_steps(candidate)
        wanted = sent if linked == sent[0].text else tuple(_with_text(content, linked) for content in sent)
        guids = {content.guid for content in wanted}
        for version in reversed(versions):
            content = version.content
            if content.schema_type != wanted[0].schema_type:
                continue
            # Most versions are known to be another schema; metadata may have a version that was not sent.
            if content.linked_guid is not None and content.linked_guid not in guids and content.metadata is None:
                continue
            try:
                parsed = yield from self._parser.parse_steps(content, version.subject.context)
            except RegistryRefusal:
                continue
            text = yield from self._parser.link_steps(parsed)
            printed = content if text == content.text else _with_text(content, text)
            if not content.references:
                content.linked_guid = printed.guid
            if printed is content and linked == sent[0].text:
                continue
            if any(_matches(printed, other) for other in wanted):
                return version
        return None

    def _find_resolved(self, candidate: CandidateSchema, versions: list[SchemaVersion]) -> Steps[SchemaVersion | None]:
        """Return a version whose references, written out, make it the same schema: clients may inline them."""
        if candidate.content.references:
            return None
        for version in reversed(versions):
            content = version.content
            if not content.references or content.schema_type != candidate.content.schema_type:
                continue
            try:
                parsed = yield from self._parser.parse_steps(content, version.subject.context)
            except RegistryRefusal:
                continue
            compare = partial(_mean_the_same, parsed, candidate.parsed)
            if (yield PureCall(compare, len(content.text) + len(candidate.content.text))):
                return version
        return None

    # Registration

    def decide(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool = False, force: bool = False
    ) -> RegistryDecision:
        """Register a schema; the answer is its `SchemaVersion`."""
        check_subject(subject)
        state = self._state
        mode = effective_mode(state, subject)
        existing = self.find_existing(subject, request, normalize=normalize)
        if existing is not None:
            return RegistryDecision((), existing)
        require_writable(state, subject)
        imports = mode in IMPORTING
        if request.schema_id is not None and not imports:
            raise not_permitted(f"Subject {subject} is not in import mode")
        if request.schema_id is None and mode != "READWRITE":
            raise not_permitted(f"Subject {subject} is not in read-write mode")
        config = effective_config(state, subject, self._default_level)
        normalize = normalize or bool(config.get("normalize"))
        request = self._repeat_previous(subject, request)
        is_new = not imports and validates_new(config)
        candidate = self.parse(subject, request, normalize=normalize, is_new=is_new)
        if imports:
            return self._import(subject, request, candidate.content)
        if not normalize:
            candidate = run_steps(self._respell_steps(candidate, subject))
        content = self._inherit(candidate.content, subject, config, request.version)
        live = state.versions(subject)
        for version in live:
            if version.content.identity == content.identity:
                return RegistryDecision((), version)
        self._check(subject, CandidateSchema(content, candidate.parsed), live, config, force=force)
        number = self._next_version(subject)
        if number > VERSION_MAX:
            raise not_permitted(f"The versions of subject {subject} are used up: {number - 1} was the last")
        if request.version is not None and request.version != number:
            raise invalid_schema(f"the version is {request.version}, and the next version is {number}")
        schema_id = state.id_of(subject.context, content)
        if schema_id is None:
            schema_id = state.context(subject.context).next_id
            if schema_id > log.INT_MAX:
                raise not_permitted(f"The ids of context {subject.context} are used up: {schema_id - 1} was the last")
        # Look-ups compare all versions: those that are registered here need not be parsed again.
        self._parser.keep(content, subject.context, candidate.parsed)
        return self._write(SchemaVersion(subject, number, schema_id, content))

    def prepare_steps(self, subject: Subject, request: SchemaRequest, *, normalize: bool, force: bool) -> Steps[None]:
        """Do what is expensive of `decide` in advance: schemas that are parsed and compared here are remembered."""
        config = effective_config(self._state, subject, self._default_level)
        normalize = normalize or bool(config.get("normalize"))
        request = self._repeat_previous(subject, request)
        imports = effective_mode(self._state, subject) in IMPORTING
        is_new = not imports and validates_new(config)
        candidate = yield from self.parse_steps(subject, request, normalize=normalize, is_new=is_new)
        if not (imports or normalize):
            yield from self._respell_steps(candidate, subject)
        if not (imports or force):
            content = self._inherit(candidate.content, subject, config, request.version)
            live = self._state.versions(subject)
            yield from find_incompatibilities_steps(self._parser, candidate.parsed, content.metadata, live, config)

    def find_existing(self, subject: Subject, request: SchemaRequest, *, normalize: bool) -> SchemaVersion | None:
        """Return the live version that registering this schema answers without a record; None if it writes one."""
        return run_steps(self.find_existing_steps(subject, request, normalize=normalize))

    def find_existing_steps(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool
    ) -> Steps[SchemaVersion | None]:
        """`find_existing` in steps."""
        plain = not (request.tags_to_add or request.tags_to_remove or request.rules_to_merge or request.rules_to_remove)
        if not (plain and request.text):
            return None
        existing = yield from self.find_steps(subject, request, normalize=normalize)
        if existing is None or request.schema_id not in (None, existing.schema_id):
            return None
        # An import may give the same schema a second version.
        imported = request.schema_id is not None and request.version is not None
        return None if imported and request.version != existing.version else existing

    def parse(self, subject: Subject, request: SchemaRequest, *, normalize: bool, is_new: bool) -> CandidateSchema:
        """Parse a request's schema into the form that is stored."""
        return run_steps(self.parse_steps(subject, request, normalize=normalize, is_new=is_new))

    def parse_steps(
        self, subject: Subject, request: SchemaRequest, *, normalize: bool, is_new: bool
    ) -> Steps[CandidateSchema]:
        """`parse` in steps; what is parsed is kept for a while, since a request is looked up, prepared and decided."""
        if not request.text:
            raise empty_schema()
        # -1 is the newest version at the time of the request.
        references = [self._pin(reference, subject.context) for reference in request.references]
        if normalize:
            references = sorted(set(references))
        sent = SchemaContent(request.schema_type, request.text, references)
        resolved = yield from self._parser.resolve_steps(references, subject.context)
        # With what the references are at the moment: a version may be deleted for good, and registered anew.
        key = (sent.identity, tuple(resolved.items()), normalize, is_new, request.tag_changes)
        parsed = self._recent.get(key)
        if parsed is None:
            parsed = yield from self._parser.parse_new_steps(sent, resolved, is_new=is_new)
            if normalize or request.tags_to_add or request.tags_to_remove:
                rewrite = partial(_rewrite, parsed, request, normalize=normalize)
                try:
                    parsed = yield PureCall(rewrite, len(request.text))
                except self._parser.formats.InvalidSchemaError as error:
                    raise invalid_schema(str(error)) from None
            self._remember(key, parsed)
        try:
            content = SchemaContent(
                request.schema_type, parsed.canonical, references, request.metadata, request.rule_set
            )
        except UnicodeEncodeError as error:
            raise invalid_schema(f"the schema has a text that is not Unicode: {error}") from None
        return CandidateSchema(content, parsed)

    def _remember(self, key: Any, parsed: AnyParsedSchema) -> None:
        # Another request may have parsed the same schema meanwhile.
        if key not in self._recent:
            self._recent[key] = parsed
            self._recent_chars += len(parsed.canonical)
        while len(self._recent) > _RECENT_MAX or (len(self._recent) > 1 and self._recent_chars > _RECENT_CHARS_MAX):
            self._recent_chars -= len(self._recent.popitem(last=False)[1].canonical)

    def _pin(self, reference: SchemaReference, context: str) -> SchemaReference:
        if reference.version != -1:
            return reference
        version = self._parser.find(reference, context)
        return reference if version is None else reference._replace(version=version.version)

    def _repeat_previous(self, subject: Subject, request: SchemaRequest) -> SchemaRequest:
        """Return the request with the schema of the newest version if it has none: only metadata or rules change."""
        live = self._state.versions(subject)
        if not request.text:
            if not live:
                raise empty_schema()
            previous = live[-1].content
            request = replace(
                request, text=previous.text, schema_type=previous.schema_type, references=previous.references
            )
        if request.rules_to_merge or request.rules_to_remove:
            rules = request.rule_set if request.rule_set is not None or not live else live[-1].content.rule_set
            rules = remove_rules(merge_rule_sets(rules, request.rules_to_merge), request.rules_to_remove)
            request = replace(request, rule_set=rules)
        return request

    def _inherit(
        self, content: SchemaContent, subject: Subject, config: Mapping[str, Any], version: int | None
    ) -> SchemaContent:
        live = self._state.versions(subject)
        metadata, rule_set = content.metadata, content.rule_set
        if live:
            metadata = live[-1].content.metadata if metadata is None else metadata
            rule_set = live[-1].content.rule_set if rule_set is None else rule_set
        metadata, rule_set = apply_config(metadata, rule_set, config)
        metadata = with_version_property(metadata, version)
        if metadata is content.metadata and rule_set is content.rule_set:
            return content
        return content.replace(metadata=metadata, rule_set=rule_set)

    def _check(
        self,
        subject: Subject,
        candidate: CandidateSchema,
        live: list[SchemaVersion],
        config: Mapping[str, Any],
        *,
        force: bool,
    ) -> None:
        parsed, metadata = candidate.parsed, candidate.content.metadata
        require_valid_names(parsed, config)
        if force:
            return
        if messages := find_reserved_fields(parsed, metadata, live[-1] if live else None, config):
            raise reserved_fields(subject, messages)
        steps = find_incompatibilities_steps(self._parser, parsed, metadata, live, config)
        if messages := run_steps(steps):
            raise incompatible(subject, messages)

    def _respell_steps(self, candidate: CandidateSchema, subject: Subject) -> Steps[CandidateSchema]:
        """Return the schema with the text by which the context has it, if that is spelled otherwise."""
        content = candidate.content
        if self._state.id_of(subject.context, content) is not None:
            return candidate
        text = yield from self._spellings.find_text_steps(content, subject.context, candidate.parsed)
        if text is None:
            return candidate
        return CandidateSchema(_with_text(content, text), candidate.parsed)

    def _next_version(self, subject: Subject) -> int:
        last = self._state.subjects.last(subject)
        return 1 if last is None else last.version + 1

    def _import(self, subject: Subject, request: SchemaRequest, content: SchemaContent) -> RegistryDecision:
        schema_id = request.schema_id
        assert schema_id is not None
        first = self._state.content(subject.context, schema_id)
        if first is not None and first.identity != content.identity:
            raise RegistryRefusal(42207, f"Overwrite new schema with id {schema_id} is not permitted.")
        number = request.version or self._next_version(subject)
        if not 0 < number <= VERSION_MAX:
            raise invalid_schema(f"the version is {number}")
        before = self._state.version(subject, number)
        if before is not None and not before.deleted and before.schema_id != schema_id:
            raise RegistryRefusal(42207, f"Overwrite version {number} of subject {subject} is not permitted.")
        return self._write(SchemaVersion(subject, number, schema_id, content))

    def _write(self, version: SchemaVersion) -> RegistryDecision:
        subject = version.subject
        entries: list[LogEntry] = []
        if subject.context != DEFAULT_CONTEXT and subject.context not in self._state.declared_contexts:
            value = {"tenant": log.TENANT, "context": subject.context}
            entries.append(LogEntry(LogKey(log.CONTEXT, context=subject.context), value))
        entries.append(schema_entry(version))
        # The deleted version with the same id goes, unless a schema refers to it: `deleted=true` would show it twice.
        for before in self._state.versions(subject, deleted=True):
            same = before.deleted and before.schema_id == version.schema_id and before.version != version.version
            if same and (subject, before.version) not in self._state.referrers:
                entries.append(LogEntry(LogKey(log.SCHEMA, str(subject), before.version), None))
        return RegistryDecision(tuple(entries), version)


def _rewrite(parsed: AnyParsedSchema, request: SchemaRequest, *, normalize: bool) -> AnyParsedSchema:
    if request.tags_to_add or request.tags_to_remove:
        parsed = parsed.with_tags(request.tags_to_add, request.tags_to_remove)
    return parsed.normalize() if normalize else parsed


def _mean_the_same(one: AnyParsedSchema, other: AnyParsedSchema) -> bool:
    return one.meaning == other.meaning


def _with_text(content: SchemaContent, text: str) -> SchemaContent:
    return SchemaContent(content.schema_type, text, content.references, content.metadata, content.rule_set)


def _matches(stored: SchemaContent, wanted: SchemaContent) -> bool:
    if stored.identity == wanted.identity:
        return True
    # The version that a client chose is in the metadata that is stored, and a look-up does not repeat it.
    plain = with_version_property(stored.metadata, None)
    if plain is stored.metadata:
        return False
    return stored.replace(metadata=plain or wanted.metadata, rule_set=stored.rule_set).identity == wanted.identity

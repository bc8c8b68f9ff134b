"""Schemas parsed with their references, when a request needs them; replay alone parses nothing.

A registry with 50,000 schemas starts in seconds because most of them are never parsed; those that are stay in a cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from klamm.registry.store.content import SchemaContent, SchemaReference
from klamm.registry.store.refusals import RegistryRefusal, invalid_schema
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.steps import PureCall, Steps, run_steps
from klamm.registry.store.subjects import parse_subject

_CACHED_MAX: Final = 2000
_CACHED_CHARS_MAX: Final = 16 << 20
"""Of schema texts; parsed schemas take several times as much."""
_REFERENCES_MAX: Final = 500


class Difference(Protocol):
    """A change that a level forbids."""

    def describe(self) -> str:
        """Return the text that clients show."""


class AnyParsedSchema(Protocol):
    """A parsed schema of any format."""

    @property
    def schema_type(self) -> str:
        """AVRO, JSON or PROTOBUF."""

    @property
    def canonical(self) -> str:
        """The text that is stored."""

    def normalize(self) -> AnyParsedSchema:
        """Return the schema in normal form."""

    def format(self, name: str) -> str:
        """Return the text in another form, or as it is stored when the format has no such form."""

    def tags(self) -> Mapping[Any, Iterable[str]]:
        """Return the inline tags by entity, which has an `entity_type` and an `entity_path`."""

    @property
    def meaning(self) -> str:
        """Equal for schemas that differ only in spelling, or in whether references are written out."""

    @property
    def linked_text(self) -> str:
        """The text with every name resolved."""

    def field_names(self) -> Iterable[str]:
        """Return the names of the fields at the top."""

    def with_tags(self, add: Mapping[str, Iterable[str]], remove: Mapping[str, Iterable[str]]) -> AnyParsedSchema:
        """Return the schema with tags added to and removed from entities, by their path."""


class SchemaFormats(Protocol):
    """The formats; `klamm.registry.schemas` is one."""

    @property
    def InvalidSchemaError(self) -> type[Exception]:  # noqa: N802 - a class in a module
        """Raised for a text that is no schema."""

    @property
    def SCHEMA_TYPES(self) -> Sequence[str]:  # noqa: N802 - a constant in a module
        """The names of the formats."""

    def parse_schema(self, schema_type: str, text: str, references: Mapping[str, Any], *, is_new: bool) -> Any:
        """Parse a schema; `references` are by name, the innermost first."""

    def reduce_spelling(self, schema_type: str, text: str) -> str | None:
        """Return a text that is equal for all spellings of a schema; None if there is only one."""

    def check_compatibility(self, new: Any, old: Any, level: str, policy: str) -> Sequence[Any]:
        """Return the changes from `old` to `new` that the level forbids."""


class SchemaParser:
    """Parses schemas of one state."""

    def __init__(self, state: RegistryState, formats: SchemaFormats) -> None:
        self._state = state
        self.formats = formats
        self._cache: OrderedDict[tuple[str, str, bytes], tuple[AnyParsedSchema, int]] = OrderedDict()
        self._cached_chars = 0
        self._comparisons: WeakKeyDictionary[
            AnyParsedSchema, dict[tuple[str, str], dict[AnyParsedSchema, Sequence[Difference]]]
        ] = WeakKeyDictionary()
        """By new schema, level and policy, and old schema."""

    def parse(self, content: SchemaContent, context: str) -> AnyParsedSchema:
        """Parse a stored schema of a context; 42201 when it or a reference is not valid."""
        return run_steps(self.parse_steps(content, context))

    def parse_steps(self, content: SchemaContent, context: str) -> Steps[AnyParsedSchema]:
        """`parse` in steps."""
        # By content: an id may be deleted, and given to nothing else, but not so its GUID.
        key = (context, *content.identity)
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached[0]
        references = yield from self.resolve_steps(content.references, context)
        parsed = yield from self.parse_new_steps(content, references, is_new=False)
        self.keep(content, context, parsed)
        return parsed

    def keep(self, content: SchemaContent, context: str, parsed: AnyParsedSchema) -> None:
        """Remember what a stored schema is parsed to."""
        key = (context, *content.identity)
        if key in self._cache:
            return
        self._cache[key] = parsed, len(content.text)
        self._cached_chars += len(content.text)
        while len(self._cache) > _CACHED_MAX or self._cached_chars > _CACHED_CHARS_MAX:
            self._cached_chars -= self._cache.popitem(last=False)[1][1]

    def parse_new_steps(
        self, content: SchemaContent, references: Mapping[str, AnyParsedSchema], *, is_new: bool
    ) -> Steps[AnyParsedSchema]:
        """Parse a schema of a request, which is not kept."""
        parse = partial(self.formats.parse_schema, content.schema_type, content.text, references, is_new=is_new)
        try:
            parsed: AnyParsedSchema = yield PureCall(parse, len(content.text))
        except (self.formats.InvalidSchemaError, UnicodeEncodeError) as error:
            raise invalid_schema(str(error)) from None
        return parsed

    def link_steps(self, parsed: AnyParsedSchema) -> Steps[str]:
        """Return the text of a schema with every name resolved."""
        text: str = yield PureCall(partial(_read_linked_text, parsed), len(parsed.canonical))
        return text

    def parse_version(self, version: SchemaVersion) -> AnyParsedSchema:
        """Parse a stored version."""
        return self.parse(version.content, version.subject.context)

    def resolve_steps(self, references: Iterable[SchemaReference], context: str) -> Steps[dict[str, AnyParsedSchema]]:
        """Return the referenced schemas by name, direct and indirect, the innermost first."""
        resolved: dict[str, AnyParsedSchema] = {}
        yield from self._collect(references, context, resolved, ())
        return resolved

    def compare_steps(
        self, new: AnyParsedSchema, olds: Sequence[AnyParsedSchema], level: str, policy: str
    ) -> Steps[list[Sequence[Difference]]]:
        """Return the changes that a level forbids, of each up to the first that has any; () if none of them has.

        They are remembered as long as the new schema is.
        """
        remembered = self._comparisons.setdefault(new, {}).setdefault((level, policy), {})
        unknown = []
        for old in olds:
            if old not in remembered:
                unknown.append(old)
            elif remembered[old]:
                break
        if unknown:
            check = partial(self.formats.check_compatibility, level=level, policy=policy)
            chars = len(unknown) * len(new.canonical) + sum(len(old.canonical) for old in unknown)
            compared = yield PureCall(partial(_compare_until, check, new, unknown), chars)
            remembered.update(zip(unknown, compared, strict=False))
        differences = []
        for old in olds:
            differences.append(remembered[old])
            if differences[-1]:
                return differences
        return []

    def find(self, reference: SchemaReference, context: str) -> SchemaVersion | None:
        """Return the version that a reference names; -1 is the newest live one."""
        subject = parse_subject(reference.subject, context)
        if reference.version == -1:
            live = self._state.versions(subject)
            return live[-1] if live else None
        # Also a soft-deleted one: it cannot be deleted for good as long as it is referenced.
        return self._state.version(subject, reference.version)

    def _collect(
        self,
        references: Iterable[SchemaReference],
        context: str,
        resolved: dict[str, AnyParsedSchema],
        path: tuple[SchemaReference, ...],
    ) -> Steps[None]:
        for reference in references:
            if reference in path:
                raise invalid_schema(f"the references form a cycle at {reference.name}")
            if reference.name in resolved:
                continue
            if len(resolved) >= _REFERENCES_MAX:
                raise invalid_schema(f"more than {_REFERENCES_MAX} references")
            version = self.find(reference, context)
            if version is None:
                raise RegistryRefusal(
                    42201,
                    f'Invalid schema: No schema reference found for subject "{reference.subject}"'
                    f" and version {reference.version}",
                )
            inner = version.subject.context
            yield from self._collect(version.content.references, inner, resolved, (*path, reference))
            resolved[reference.name] = yield from self.parse_steps(version.content, inner)


def _compare_until(
    check: Callable[[AnyParsedSchema, AnyParsedSchema], Sequence[Difference]],
    new: AnyParsedSchema,
    olds: Sequence[AnyParsedSchema],
) -> list[Sequence[Difference]]:
    """Return the differences of each, up to the first that has any."""
    compared = []
    for old in olds:
        compared.append(check(new, old))
        if compared[-1]:
            break
    return compared


def _read_linked_text(parsed: AnyParsedSchema) -> str:
    return parsed.linked_text

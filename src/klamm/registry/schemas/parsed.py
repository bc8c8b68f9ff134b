"""What the formats have in common: a parsed schema, and what makes two of them incompatible."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

from klamm.registry.schemas.comparison import CompatibilityPolicy, Incompatibility

JSON_DEPTH_MAX = 200
"""Nested arrays and objects in the text of a schema. Rules walk schemas recursively, several frames a level."""


TagChanges = Mapping[str, tuple[str, ...]]
"""Tags by the path of an entity of the schema."""


class InvalidSchemaError(ValueError):
    """The text is no schema of its type; the message says where and why."""


@dataclass(frozen=True, slots=True)
class SchemaEntity:
    """A record or a field that tags are attached to, as the API names it."""

    entity_type: str
    """`sr_record` or `sr_field`."""
    entity_path: str
    """Names joined by dots, from the outermost record on."""


class ParsedSchema(ABC):
    """A valid schema with its references resolved. Instances do not change and may be cached."""

    schema_type: ClassVar[str]

    def __init__(self, canonical: str, references: Mapping[str, ParsedSchema]) -> None:
        self.canonical = canonical
        """The text that is stored; equal schemas of a format have equal canonical texts."""
        self.references = dict(references)
        """The direct references by the name that the text uses."""

    @property
    @abstractmethod
    def full_name(self) -> str:
        """The name that RecordNameStrategy uses as subject; empty if the schema has none."""

    @abstractmethod
    def normalize(self) -> Self:
        """Return the schema with what has no meaning (order of properties, inherited names) written in one way."""

    @abstractmethod
    def format(self, name: str) -> str:
        """Return the text in a variant of `?format=`; the canonical text for an unknown variant, as the API does."""

    @abstractmethod
    def tags(self) -> dict[SchemaEntity, frozenset[str]]:
        """Return the inline tags (`confluent:tags`) by entity."""

    @abstractmethod
    def with_tags(self, add: TagChanges, remove: TagChanges) -> Self:
        """Return the schema with inline tags added and removed, by entity path."""

    @abstractmethod
    def check_reads(self, writer: Self, policy: CompatibilityPolicy) -> list[Incompatibility]:
        """Return why this schema cannot read data of the writer's schema; an empty list if it can."""

    @property
    @abstractmethod
    def meaning(self) -> str:
        """A text that is equal for schemas that differ only in spelling, or in whether references are written out."""

    @property
    def linked_text(self) -> str:
        """The text with every name resolved; equal for texts that differ only in how they name types."""
        return self.canonical

    def field_names(self) -> Iterable[str]:
        """Return the names of the top-level fields, which `validateFields` and `confluent:reserved` refer to."""
        return ()


def change_tags(tags: Iterable[str], path: str, add: TagChanges, remove: TagChanges) -> list[str]:
    """Return an entity's tags after a change; tags that it had keep their order."""
    changed = dict.fromkeys([*tags, *add.get(path, ())])
    return [tag for tag in changed if tag not in set(remove.get(path, ()))]


def check_paths(changes: TagChanges, known: Iterable[str]) -> None:
    """Refuse tags for an entity that the schema does not have."""
    missing = set(changes) - set(known)
    if missing:
        raise InvalidSchemaError(f"no record or field {', '.join(sorted(missing))}")


def load_json(text: str) -> Any:
    """Parse JSON, with numbers and nesting limited to what other parsers of the same text take."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)
    except RecursionError:
        raise InvalidSchemaError(f"nested deeper than {JSON_DEPTH_MAX} levels") from None
    except ValueError as error:
        raise InvalidSchemaError(f"not JSON: {error}") from None
    check_depth(document)
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        # It would be printed as Infinity, which is no JSON.
        raise ValueError(f"{text} is too large for a number")
    return value


def check_depth(document: Any) -> None:
    """Refuse what is nested too deeply, level by level and without recursion."""
    level = [document]
    for _ in range(JSON_DEPTH_MAX):
        children: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                children += [child for child in node.values() if isinstance(child, (dict, list))]
            elif isinstance(node, list):
                children += [child for child in node if isinstance(child, (dict, list))]
        if not children:
            return
        level = children
    raise InvalidSchemaError(f"nested deeper than {JSON_DEPTH_MAX} levels")


def dump_json(document: Any) -> str:
    """Print JSON without spaces and without escapes of non-ASCII characters, as the Java libraries do."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def sort_keys(value: Any) -> Any:
    """Return a JSON value with the keys of its objects sorted."""
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value

"""Avro: `nodes` parses, `printer` prints, `rules` compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from klamm.registry.schemas.avro.nodes import AvroParser, AvroType
from klamm.registry.schemas.avro.printer import print_avro, print_normalized
from klamm.registry.schemas.avro.rules import check_avro
from klamm.registry.schemas.comparison import CompatibilityPolicy, Incompatibility
from klamm.registry.schemas.parsed import (
    InvalidSchemaError,
    ParsedSchema,
    SchemaEntity,
    TagChanges,
    change_tags,
    check_paths,
    load_json,
)

TAGS = "confluent:tags"


class AvroSchema(ParsedSchema):
    """An Avro schema; references are schemas whose named types it uses."""

    schema_type: ClassVar[str] = "AVRO"

    def __init__(
        self, root: AvroType, names: Mapping[str, AvroType], references: Mapping[str, ParsedSchema], canonical: str
    ) -> None:
        super().__init__(canonical, references)
        self.root = root
        self.names = names
        """Its named types and those of its references, by full name."""

    @classmethod
    def parse(cls, text: str, references: Mapping[str, ParsedSchema], *, is_new: bool) -> AvroSchema:
        """Parse JSON; a bare name of a primitive is a schema too, with or without quotes."""
        external = _external_names(references)
        parser = AvroParser(external, is_new=is_new)
        root = parser.parse(_load(text))
        return cls(root, parser.names, references, print_avro(root, external))

    @property
    def full_name(self) -> str:
        """The name of a record, enum or fixed; of other types the kind."""
        return self.root.name or self.root.kind

    def normalize(self) -> AvroSchema:
        """Return the schema with full names and sorted properties."""
        external = _external_names(self.references)
        return AvroSchema(self.root, self.names, self.references, print_normalized(self.root, external))

    def format(self, name: str) -> str:
        """`resolved`: types of references are written out where they are used first."""
        return print_avro(self.root, ()) if name == "resolved" else self.canonical

    def tags(self) -> dict[SchemaEntity, frozenset[str]]:
        """Return tags of records by full name and of fields by `record.field`."""
        tags = {entity: frozenset(_inline_tags(properties)) for entity, properties in self._entities()}
        return {entity: values for entity, values in tags.items() if values}

    def _entities(self) -> Iterator[tuple[SchemaEntity, dict[str, Any]]]:
        external = _external_names(self.references)
        for record in _records(self.root, set()):
            if record.name not in external:
                yield SchemaEntity("sr_record", record.name), record.properties
                for item in record.fields:
                    yield SchemaEntity("sr_field", f"{record.name}.{item.name}"), item.properties

    def with_tags(self, add: TagChanges, remove: TagChanges) -> AvroSchema:
        """Return a schema with changed tags; a path without type names the record or the field."""
        # Types are shared between schemas and do not change: the properties of a copy do.
        copy = AvroSchema.parse(self.canonical, self.references, is_new=False)
        entities = {entity.entity_path: properties for entity, properties in copy._entities()}  # noqa: SLF001
        check_paths({**add, **remove}, entities)
        for path, properties in entities.items():
            tags = change_tags(_inline_tags(properties), path, add, remove)
            if tags:
                properties[TAGS] = tags
            else:
                properties.pop(TAGS, None)
        copy.canonical = print_avro(copy.root, _external_names(self.references))
        return copy

    def check_reads(self, writer: AvroSchema, policy: CompatibilityPolicy) -> list[Incompatibility]:
        """Return why it cannot read data of the writer's schema; the policy does not matter for Avro."""
        del policy
        return check_avro(self.root, writer.root)

    @property
    def meaning(self) -> str:
        """The normalized text with references written out."""
        return print_normalized(self.root, ())

    def field_names(self) -> Iterable[str]:
        """Return the fields of the record."""
        return [item.name for item in self.root.fields]


def _load(text: str) -> Any:
    # Java's parser takes `string` for `"string"`; `null` is the type, too.
    bare = text.strip()
    return bare if bare.isidentifier() else load_json(text)


def _external_names(references: Mapping[str, ParsedSchema]) -> dict[str, AvroType]:
    names: dict[str, AvroType] = {}
    for reference in references.values():
        if not isinstance(reference, AvroSchema):
            raise InvalidSchemaError(f"an Avro schema cannot refer to a schema of type {reference.schema_type}")
        # Two references may use a third one: the same name twice is the same type.
        names = {**reference.names, **names}
    return names


def _records(avro_type: AvroType, seen: set[int]) -> Iterator[AvroType]:
    if id(avro_type) in seen:
        return
    seen.add(id(avro_type))
    if avro_type.kind in ("record", "error"):
        yield avro_type
    for part in [item.type for item in avro_type.fields] + avro_type.branches:
        yield from _records(part, seen)
    if avro_type.items is not None:
        yield from _records(avro_type.items, seen)


def _inline_tags(properties: Mapping[str, Any]) -> list[str]:
    values = properties.get(TAGS)
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []

"""JSON Schema: `documents` resolves references, `facts` reads the drafts, `rules` compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

import jsonschema_rs

from klamm.registry.schemas.comparison import CompatibilityPolicy, Incompatibility
from klamm.registry.schemas.json_schema.documents import JsonDocument
from klamm.registry.schemas.json_schema.rules import check_json_schema
from klamm.registry.schemas.parsed import (
    InvalidSchemaError,
    ParsedSchema,
    SchemaEntity,
    TagChanges,
    change_tags,
    check_paths,
    dump_json,
    load_json,
    sort_keys,
)

TAGS = "confluent:tags"

_VALIDATORS = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}
# What jsonschema-rs puts before an address that is not absolute.
_NO_BASE = "json-schema:///"


class JsonSchema(ParsedSchema):
    """A JSON Schema of any draft; references are documents that a `$ref` names."""

    schema_type: ClassVar[str] = "JSON"

    def __init__(self, document: JsonDocument, references: Mapping[str, ParsedSchema], canonical: str) -> None:
        super().__init__(canonical, references)
        self.document = document

    @classmethod
    def parse(cls, text: str, references: Mapping[str, ParsedSchema], *, is_new: bool) -> JsonSchema:
        """Parse JSON and validate it with the meta-schema of its draft; every `$ref` of a new one has a target."""
        root = load_json(text)
        if not isinstance(root, (dict, bool)):
            raise InvalidSchemaError("a JSON Schema is an object, true or false")
        documents: dict[str, JsonDocument] = {}
        for name, reference in references.items():
            if not isinstance(reference, JsonSchema):
                raise InvalidSchemaError(f"a JSON Schema cannot refer to a schema of type {reference.schema_type}")
            documents[name] = reference.document
        document = JsonDocument(root, documents)
        if is_new:
            compile_validator(document)
        return cls(document, references, dump_json(root))

    @property
    def full_name(self) -> str:
        """The title."""
        title = self.document.root.get("title") if isinstance(self.document.root, dict) else None
        return title if isinstance(title, str) else ""

    def normalize(self) -> JsonSchema:
        """Return the schema with sorted keys."""
        document = JsonDocument(sort_keys(self.document.root), _documents(self.references))
        return JsonSchema(document, self.references, dump_json(document.root))

    def format(self, name: str) -> str:
        """There are no variants."""
        del name
        return self.canonical

    def tags(self) -> dict[SchemaEntity, frozenset[str]]:
        """Return tags of objects (`object`) and of their properties (`object.name`, `object.name.object.inner`)."""
        tags = {entity: frozenset(_inline_tags(value)) for entity, value in _entities(self.document.root, "")}
        return {entity: values for entity, values in tags.items() if values}

    def with_tags(self, add: TagChanges, remove: TagChanges) -> JsonSchema:
        """Return a schema with changed tags."""
        root = load_json(self.canonical)
        entities = [(entity.entity_path, value) for entity, value in _entities(root, "")]
        check_paths({**add, **remove}, (path for path, _ in entities))
        for path, value in entities:
            tags = change_tags(_inline_tags(value), path, add, remove)
            if tags:
                value[TAGS] = tags
            else:
                value.pop(TAGS, None)
        return JsonSchema(JsonDocument(root, _documents(self.references)), self.references, dump_json(root))

    def check_reads(self, writer: JsonSchema, policy: CompatibilityPolicy) -> list[Incompatibility]:
        """Return why it does not allow all values of the writer's schema."""
        return check_json_schema(self.document, writer.document, policy)

    @property
    def meaning(self) -> str:
        """The normalized text, and what its references mean."""
        references = {name: schema.meaning for name, schema in self.references.items()}
        return dump_json(sort_keys([self.document.root, references]))

    def field_names(self) -> Iterable[str]:
        """Return the names of `properties`."""
        properties = self.document.root.get("properties") if isinstance(self.document.root, dict) else None
        return list(properties) if isinstance(properties, dict) else []


class _Retriever:
    """Gives jsonschema-rs the referenced documents; without it, the library would fetch addresses from the network."""

    def __init__(self, document: JsonDocument) -> None:
        self._document = document

    def __call__(self, address: str) -> Any:
        document = self._document.find_document(address.removeprefix(_NO_BASE))
        if document is None:
            _refuse_address(address)
        return document.root


def _refuse_address(address: str) -> NoReturn:
    raise ValueError(f"{address.removeprefix(_NO_BASE)} is not among the references of the schema")


def compile_validator(document: JsonDocument) -> Any:
    """Return a validator of values (`validate`, `is_valid`); refuses a schema that its draft does not allow."""
    try:
        return _VALIDATORS[document.draft](document.root, retriever=_Retriever(document))
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchemaError(" ".join(str(error).split())) from None


def _documents(references: Mapping[str, ParsedSchema]) -> dict[str, JsonDocument]:
    return {name: schema.document for name, schema in references.items() if isinstance(schema, JsonSchema)}


def _entities(value: Any, path: str) -> Iterator[tuple[SchemaEntity, dict[str, Any]]]:
    """Return the objects and properties that are written in a schema; `$ref` is not followed."""
    if not isinstance(value, dict):
        return
    prefix = f"{path}." if path else ""
    for keyword in ("allOf", "anyOf", "oneOf"):
        branches = value.get(keyword)
        for index, branch in enumerate(branches if isinstance(branches, list) else ()):
            yield from _entities(branch, f"{prefix}{keyword.lower()}.{index}")
    if isinstance(value.get("items"), dict):
        yield from _entities(value["items"], f"{prefix}array")
    properties = value.get("properties")
    if isinstance(properties, dict):
        yield SchemaEntity("sr_record", f"{prefix}object"), value
        for name, part in properties.items():
            if isinstance(part, dict):
                yield SchemaEntity("sr_field", f"{prefix}object.{name}"), part
                yield from _entities(part, f"{prefix}object.{name}")


def _inline_tags(value: Mapping[str, Any]) -> list[str]:
    tags = value.get(TAGS)
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []

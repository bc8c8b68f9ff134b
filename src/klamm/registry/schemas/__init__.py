"""Schemas as values: parsing, canonical text, normalized text, references and compatibility, without I/O.

    formats      parse_schema and check_compatibility for any schema type
    parsed       what a parsed schema offers
    comparison   levels, policies, and the comparison of recursive types in bounded time
    avro         Avro
    json_schema  JSON Schema, drafts 4 to 2020-12
    protobuf     Protobuf: proto2, proto3, editions

Each format has its compatibility rules as a table in the docstring of its `rules` module.
"""

from klamm.registry.schemas.comparison import CompatibilityLevel, CompatibilityPolicy, Incompatibility
from klamm.registry.schemas.formats import SCHEMA_TYPES, check_compatibility, parse_schema, reduce_spelling
from klamm.registry.schemas.parsed import InvalidSchemaError, ParsedSchema, SchemaEntity

__all__ = [
    "SCHEMA_TYPES",
    "CompatibilityLevel",
    "CompatibilityPolicy",
    "Incompatibility",
    "InvalidSchemaError",
    "ParsedSchema",
    "SchemaEntity",
    "check_compatibility",
    "parse_schema",
    "reduce_spelling",
]

"""Serializers and deserializers of records with schemas, for the Python client.

    settings      settings by the names of Confluent's serializers
    subjects      which subject a schema belongs to
    writing       what serializers have in common: subject, id, framing
    reading       what deserializers have in common: the schema that a record names
    reading_rules its rules, those between two versions included
    avro, json_schema, protobuf   one pair each; `any_schema` reads records of all three
    errors        why a schema is not written

The bytes are those of Confluent's serializers, in both framings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.registry.serializers.any_schema import RegistryDeserializer
    from klamm.registry.serializers.avro import AvroDeserializer, AvroSerializer
    from klamm.registry.serializers.errors import SchemaNotRegisteredError, SchemaRejectedError
    from klamm.registry.serializers.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
    from klamm.registry.serializers.protobuf import ProtobufDeserializer, ProtobufSerializer

_HOMES = {
    "AvroDeserializer": "avro",
    "AvroSerializer": "avro",
    "JsonSchemaDeserializer": "json_schema",
    "JsonSchemaSerializer": "json_schema",
    "ProtobufDeserializer": "protobuf",
    "ProtobufSerializer": "protobuf",
    "RegistryDeserializer": "any_schema",
    "SchemaNotRegisteredError": "errors",
    "SchemaRejectedError": "errors",
}

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JsonSchemaDeserializer",
    "JsonSchemaSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "RegistryDeserializer",
    "SchemaNotRegisteredError",
    "SchemaRejectedError",
]


def __getattr__(name: str) -> Any:
    """Return a class when it is first used: each kind of schema needs a library of its own."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

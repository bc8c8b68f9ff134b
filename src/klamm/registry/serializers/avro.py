"""Avro: values are what fastavro takes and returns, dicts for records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from klamm.registry.serializers.reading import SchemaDeserializer
from klamm.registry.serializers.settings import RegistryLike
from klamm.registry.serializers.writing import SchemaSerializer
from klamm.registry.store.content import SchemaReference


class AvroSerializer(SchemaSerializer):
    """Serializes values with an Avro schema.

    serializer = AvroSerializer("http://127.0.0.1:8081", schema)
    producer = Producer(bootstrap_servers="localhost:9092", value_serializer=serializer)

    The schema is registered for the subject of the topic unless auto.register.schemas is false; without a `schema`,
    use.latest.version takes the newest. `to_dict` turns an object into what fastavro takes. `references` are
    (name, subject, version) of schemas that the schema names. Settings are keywords (use_latest_version=True) or a
    mapping of Confluent's names, `config`.
    """

    kind: ClassVar[str] = "AVRO"

    def __init__(
        self,
        registry: RegistryLike,
        schema: str | None = None,
        *,
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        to_dict: Callable[[Any], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(registry, schema, references, to_dict, config, settings)


class AvroDeserializer(SchemaDeserializer):
    """Deserializes records of Avro schemas.

    With a `schema`, records of other versions are resolved to it: fields that it does not have are left out, fields
    that only it has get their defaults. `from_dict` makes an object of the value.
    """

    kind: ClassVar[str | None] = "AVRO"

    def __init__(
        self,
        registry: RegistryLike,
        schema: str | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(registry, schema, from_dict, config, settings)

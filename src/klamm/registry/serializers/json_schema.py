"""JSON Schema: values are what JSON has, validated when they are written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from klamm.registry.serializers.reading import SchemaDeserializer
from klamm.registry.serializers.settings import RegistryLike
from klamm.registry.serializers.writing import SchemaSerializer
from klamm.registry.store.content import SchemaReference


class JsonSchemaSerializer(SchemaSerializer):
    """Serializes values as JSON that a JSON Schema allows; arguments as those of AvroSerializer.

    Strategies that need a record's name take the schema's title.
    """

    kind: ClassVar[str] = "JSON"

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


class JsonSchemaDeserializer(SchemaDeserializer):
    """Deserializes JSON and validates it with the schema that the record names, and with `schema` if one is given."""

    kind: ClassVar[str | None] = "JSON"

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

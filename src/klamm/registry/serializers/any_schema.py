"""Records of any kind of schema, by the schema that each record names."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from klamm.registry.codecs.compilation import SchemaCodec
from klamm.registry.serializers.reading import SchemaDeserializer
from klamm.registry.serializers.reading_rules import Decode
from klamm.registry.serializers.settings import RegistryLike


class RegistryDeserializer(SchemaDeserializer):
    """Deserializes records of Avro, JSON Schema and Protobuf, mixed if need be.

    `as_json` returns JSON values for all of them: dates as text, Protobuf messages as objects.
    """

    kind: ClassVar[str | None] = None

    def __init__(
        self,
        registry: RegistryLike,
        *,
        as_json: bool = False,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(registry, None, None, config, settings)
        self._as_json = as_json

    def _decode_function(self, writer: SchemaCodec | None, reader: SchemaCodec | None) -> Decode:
        if not self._as_json or writer is None:
            return super()._decode_function(writer, reader)
        return functools.partial(writer.to_json, tagged=False)

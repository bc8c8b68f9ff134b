"""Embedded formats by Content-Type and Accept: `application/vnd.kafka.{format}.v2+json`."""

from __future__ import annotations

from enum import Enum
from typing import Final

V2_JSON: Final = "application/vnd.kafka.v2+json"
JSON: Final = "application/json"
_GENERAL: Final = (V2_JSON, "application/vnd.kafka+json", JSON)


class EmbeddedFormat(Enum):
    """How keys and values stand in JSON: as they are, as text, as base64, or encoded with a schema."""

    BINARY = "binary"
    JSON = "json"
    STRING = "string"
    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"

    @property
    def needs_schema(self) -> bool:
        """Whether a schema of the registry is needed."""
        return self in (EmbeddedFormat.AVRO, EmbeddedFormat.JSONSCHEMA, EmbeddedFormat.PROTOBUF)

    @property
    def schema_type(self) -> str:
        """The registry's name of the format of schemas."""
        return {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}[self.value]

    @property
    def media_type(self) -> str:
        """The media type of records in this format."""
        return f"application/vnd.kafka.{self.value}.v2+json"


V2_FORMATS: Final = tuple(embedded for embedded in EmbeddedFormat if embedded is not EmbeddedFormat.STRING)
"""Formats of v2; text is a format of v3 only."""

_BY_MEDIA_TYPE: Final = {embedded.media_type: embedded for embedded in V2_FORMATS}
TAKEN_V2: Final = (V2_JSON, *_BY_MEDIA_TYPE, *_GENERAL[1:], "application/octet-stream")
ANSWERED_V2: Final = _GENERAL
ANSWERED_RECORDS: Final = (V2_JSON, *_BY_MEDIA_TYPE, *_GENERAL[1:])


def format_of(media_type: str) -> EmbeddedFormat | None:
    """Return the format that a media type names; None when it names none, as `application/json`."""
    return _BY_MEDIA_TYPE.get(media_type)

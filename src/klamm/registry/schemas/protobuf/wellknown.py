"""Files that every Protobuf schema may import without a reference."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2

from klamm.registry.schemas.protobuf.parser import parse_proto

_PROTOBUF = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
    "wrappers", "compiler/plugin",
)  # fmt: skip
_TYPES = (
    "calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval", "latlng",
    "localized_text", "money", "month", "phone_number", "postal_address", "quaternion", "timeofday",
)  # fmt: skip

_META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
option go_package = "../confluent";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_DECIMAL = """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
_VARIANT = """
syntax = "proto3";
package confluent.type;
message Variant {
  bytes metadata = 1;
  bytes value = 2;
}
"""
_TEXTS = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/type/variant.proto": _VARIANT,
    "confluent/types/decimal.proto": 'syntax = "proto3";\nimport public "confluent/type/decimal.proto";\n',
}

WELL_KNOWN = frozenset(
    {
        *_TEXTS,
        *(f"google/protobuf/{name}.proto" for name in _PROTOBUF),
        *(f"google/type/{name}.proto" for name in _TYPES),
    }
)
"""Paths of the files."""


@cache
def load_well_known(path: str) -> Any:
    """Return a file; one of `google/` is complete, one of `confluent/` still to be linked."""
    if path in _TEXTS:
        file = parse_proto(_TEXTS[path])
        file.name = path
        return file
    module = importlib.import_module(path.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file

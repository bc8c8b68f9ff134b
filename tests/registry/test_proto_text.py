"""Protobuf files as text: three languages, imports, the text that is stored, and its variants."""

import base64

import pytest
from google.protobuf import descriptor_pb2, message_factory

from klamm.registry.schemas import InvalidSchemaError, SchemaEntity, check_compatibility, parse_schema


def parse(text, references=None):
    return parse_schema("PROTOBUF", text, references or {}, is_new=True)


def decode(parsed):
    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(parsed.format("serialized")))


WRITTEN = """
// A comment
syntax = 'proto3'; package com.acme;
import "google/protobuf/timestamp.proto";
option java_package = "com" ".acme";
message Order { /* another */
  reserved 10 to 20, 30; reserved "old";
  int64 id = 1;
  optional string drink = 2 [deprecated=true, json_name = "beverage"];
  repeated Inner inners = 3; map<string, .com.acme.Order.Inner> more = 4;
  oneof choice { Kind kind = 5; google.protobuf.Timestamp at = 6; }
  message Inner { int32 n = 1; }
}
enum Kind { COLD = 0; HOT = 1; WARM = -1; }
service Shop { rpc Buy (Order) returns (stream Order); }
"""
CANONICAL = """syntax = "proto3";
package com.acme;

import "google/protobuf/timestamp.proto";

option java_package = "com.acme";

message Order {
  reserved 10 to 20, 30;
  reserved "old";
  int64 id = 1;
  optional string drink = 2 [json_name = "beverage", deprecated = true];
  repeated Inner inners = 3;
  map<string, .com.acme.Order.Inner> more = 4;
  oneof choice {
    Kind kind = 5;
    google.protobuf.Timestamp at = 6;
  }
  message Inner {
    int32 n = 1;
  }
}

enum Kind {
  COLD = 0;
  HOT = 1;
  WARM = -1;
}

service Shop {
  rpc Buy (Order) returns (stream Order);
}
"""


def test_canonical_text_has_one_layout_and_keeps_what_is_written():
    parsed = parse(WRITTEN)
    assert parsed.canonical == CANONICAL
    assert parse(parsed.canonical).canonical == CANONICAL
    assert parsed.full_name == "com.acme.Order"
    assert list(parsed.field_names()) == ["id", "drink", "inners", "more", "kind", "at"]


def test_normalized_text_has_one_order():
    shuffled = """
    syntax = "proto3"; package a;
    import "google/protobuf/timestamp.proto"; import "google/protobuf/any.proto";
    option java_package = "x"; option cc_enable_arenas = true;
    message M {
      reserved 12; reserved 10 to 11; reserved "z", "y";
      N n = 3; int32 b = 2 [json_name = "q", deprecated = true]; oneof o { int32 e = 5; int32 d = 4; } int32 a = 1;
      google.protobuf.Timestamp t = 6; google.protobuf.Any any = 7;
    }
    message N {}
    enum E { ZERO = 0; TWO = 2; ONE = 1; }
    """
    normalized = parse(shuffled).normalize()
    assert normalized.canonical == (
        """syntax = "proto3";
package a;

import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";

option cc_enable_arenas = true;
option java_package = "x";

message M {
  reserved 10 to 12;
  reserved "y", "z";
  int32 a = 1;
  int32 b = 2 [json_name = "q", deprecated = true];
  .a.N n = 3;
  oneof o {
    int32 d = 4;
    int32 e = 5;
  }
  .google.protobuf.Timestamp t = 6;
  .google.protobuf.Any any = 7;
}

message N {
}

enum E {
  ZERO = 0;
  ONE = 1;
  TWO = 2;
}
"""
    )
    assert normalized.normalize().canonical == normalized.canonical


def test_descriptors_are_taken_and_stored_as_text():
    parsed = parse(WRITTEN)
    descriptor = decode(parsed)
    descriptor.name = "some/path.proto"
    from_descriptor = parse(base64.b64encode(descriptor.SerializeToString()).decode())
    assert from_descriptor.canonical.startswith('syntax = "proto3";\npackage com.acme;\n')
    assert from_descriptor.normalize().canonical == parsed.normalize().canonical
    assert from_descriptor.format("serialized") == parsed.format("serialized")
    assert decode(parsed).message_type[0].field[2].type_name == ".com.acme.Order.Inner"


PROTO2 = """syntax = "proto2";

message M {
  option message_set_wire_format = false;
  extensions 100 to 199;
  extensions 1000 to max [verification = UNVERIFIED];
  required string s = 1 [default = "a\\"b\\n\\\\ é"];
  optional bytes b = 2 [default = "\\000\\377x"];
  optional double d = 3 [default = -1.5];
  optional float inf = 4 [default = -inf];
  optional E e = 5 [default = TWO];
  repeated int32 packed = 6 [packed = true];
  optional group Part = 7 {
    optional int32 n = 1;
  }
  enum E {
    option allow_alias = true;
    reserved -5 to -1, 100 to max;
    ONE = 1;
    TWO = 2;
    DUE = 2;
  }
}

extend M {
  optional int32 more = 100;
  repeated string others = 101;
}
"""
EDITION = """edition = "2023";
package a;

option features.field_presence = IMPLICIT;

message M {
  reserved old, older;
  int32 a = 1 [features.field_presence = EXPLICIT];
  repeated int32 b = 2 [features.repeated_field_encoding = EXPANDED];
  int32 optional = 3;
}
"""
CUSTOM = """syntax = "proto3";
package a;

import "google/protobuf/descriptor.proto";
import "confluent/meta.proto";

option (file_level) = "x";

message M {
  option (confluent.message_meta) = { doc: "about", params: [{ key: "k" value: "v" }] };
  string f = 1 [(note).text = "n", (note).sub.deep = 7, (confluent.field_meta) = { tags: ["PII", "X"] }];
}

message Note {
  string text = 1;
  Sub sub = 2;
  message Sub {
    int32 deep = 1;
  }
}

extend google.protobuf.FileOptions {
  string file_level = 50000;
}

extend google.protobuf.FieldOptions {
  Note note = 50001;
}
"""


@pytest.mark.parametrize("text", [CANONICAL, PROTO2, EDITION, CUSTOM])
def test_texts_and_descriptors_have_the_same_meaning(text):
    parsed = parse(text)
    assert parsed.canonical == text
    from_descriptor = parse(parsed.format("serialized"))
    assert from_descriptor.format("serialized") == parsed.format("serialized")
    assert parse(from_descriptor.canonical).format("serialized") == parsed.format("serialized")
    assert from_descriptor.normalize().canonical == parsed.normalize().canonical
    normalized = parsed.normalize()
    assert parse(normalized.canonical).canonical == normalized.canonical
    assert parse(normalized.canonical).normalize().canonical == normalized.canonical
    assert parse(from_descriptor.canonical).canonical == from_descriptor.canonical


def test_interpreted_options_are_printed_by_their_full_names():
    normalized = parse(CUSTOM).normalize().canonical
    assert 'option (a.file_level) = "x";' in normalized
    assert '(a.note) = { text: "n" sub { deep: 7 } }' in normalized
    assert '(confluent.field_meta) = { tags: "PII" tags: "X" }' in normalized


def test_extensions_can_be_left_out():
    text = parse(CUSTOM).format("ignore_extensions")
    assert "extend" not in text
    assert "(" not in text
    assert "string f = 1;" in text
    parse(text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("hello", "base64"),
        ("message M {", "line 2, column 12: expected"),
        ("message M { int32 a = 1 }", "line 2, column 25: expected ';', not '}'"),
        ("message M { int32 a; }", "expected '='"),
        ("message M { int32 a = 0; }", "field number 0"),
        ("message M { int32 a = 536870912; }", "field number"),
        ("message M { int32 a = 19500; }", "19000 to 19999"),
        ("message M { int32 a = 1; int32 b = 1; }", "duplicate field number"),
        ("message M { int32 a = 1; string a = 2; }", "duplicate"),
        ("message M { int32 a_b = 1; int32 aB = 2; }", "json_name"),
        ("message M { reserved 1; int32 a = 1; }", "is reserved"),
        ('message M { reserved "a"; int32 a = 1; }', "is reserved"),
        ("message M { reserved 1 to 5, 3; }", "overlap"),
        ("message M { reserved 5 to 1; }", "empty"),
        ("message M { N n = 1; }", "type N is not defined"),
        ("message M { required int32 a = 1; }", "required"),
        ("message M { int32 a = 1 [default = 3]; }", "default"),
        ("message M { optional group G = 1 {} }", "expected"),
        ("message M { map<float, int32> a = 1; }", "map|key"),
        ("message M { repeated map<string, int32> a = 1; }", "label"),
        ("message M { oneof o { repeated int32 a = 1; } }", "label"),
        ("message M { oneof o { } }", "oneof"),
        ("message M {} message M {}", "duplicate symbol"),
        ("enum E { }", "at least one value"),
        ("enum E { A = 1; }", "must be zero"),
        ("enum E { A = 0; B = 0; }", "same number"),
        ("enum E { reserved 1; A = 0; B = 1; }", "reserved"),
        ("enum E { A = 0; } enum F { A = 0; }", "duplicate symbol"),
        ("enum E { A = 4294967296; }", "32-bit"),
        ('import "other.proto";', "other.proto is not among the references"),
        ('import "../../etc/passwd";', "not among the references"),
        ('import "google/protobuf/any.proto"; import "google/protobuf/any.proto";', "twice"),
        ("option nonsense = 1;", "nonsense"),
        ("option java_package = 1;", "java_package"),
        ('message M { string s = 1 [json_name = "\\q"]; }', "escape"),
        ("package a; package b;", "one package"),
        ("message M { int32 a = 1; } @", "unexpected character '@'"),
        ("message M {" * 40 + "}" * 40, "nested deeper"),
        ("message A { message B {" * 2_000, "nested deeper"),
        ("option x = {" + "a {" * 1000 + "}" * 1001 + ";", "nested"),
    ],
)
def test_invalid_files_are_refused(body, message):
    text = body if not body.strip() or body == "hello" else f'syntax = "proto3";\n{body}'
    with pytest.raises(InvalidSchemaError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ['syntax = "proto4";', 'edition = "1999";', 'syntax = "proto2"; message M { int32 a = 1; }',
     'edition = "2023"; message M { optional int32 a = 1; }', 'edition = "2023"; message M { reserved "a"; }',
     "AAAA", "////"],
)  # fmt: skip
def test_other_languages_are_refused(text):
    with pytest.raises(InvalidSchemaError):
        parse(text)


def test_keywords_are_names_where_they_can_be():
    body = "string message = 1; int32 option = 2; bool reserved = 3; enum enum { A = 0; }"
    text = f'syntax = "proto3"; message message {{ {body} }}'
    assert list(parse(text).field_names()) == ["message", "option", "reserved"]


def test_names_are_found_in_the_innermost_scope():
    text = """syntax = "proto3"; package a.b;
    message Inner { int32 outer = 1; }
    message M { message Inner { int32 inner = 1; } Inner x = 1; .a.b.Inner y = 2; b.Inner z = 3; a.b.M m = 4; }"""
    types = [field.type_name for field in decode(parse(text)).message_type[1].field]
    assert types == [".a.b.M.Inner", ".a.b.Inner", ".a.b.Inner", ".a.b.M"]


def test_imports_are_references_direct_and_indirect():
    head = 'syntax = "proto3"; package x;'
    base = parse(f"{head} message Base {{ int32 a = 1; }}")
    middle = parse(f'{head} import public "base.proto"; message Middle {{ Base b = 1; }}', {"base.proto": base})
    references = {"base.proto": base, "dir/middle.proto": middle}
    body = "x.Middle m = 1; x.Base b = 2;"
    both = parse(f'syntax = "proto3"; import "dir/middle.proto"; message Top {{ {body} }}', references)
    assert [field.type_name for field in decode(both).message_type[0].field] == [".x.Middle", ".x.Base"]
    private = parse(f'{head} import "base.proto"; message Middle {{ Base b = 1; }}', {"base.proto": base})
    with pytest.raises(InvalidSchemaError, match=r"x\.Base is not defined"):
        parse('syntax = "proto3"; import "m.proto"; message Top { x.Base b = 1; }', {"m.proto": private})
    with pytest.raises(InvalidSchemaError, match="AVRO"):
        parse('syntax = "proto3";', {"a": parse_schema("AVRO", '"int"', {}, is_new=True)})


@pytest.mark.parametrize(
    ("path", "type_name"),
    [
        ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp"),
        ("google/protobuf/wrappers.proto", "google.protobuf.Int32Value"),
        ("google/type/money.proto", "google.type.Money"),
        ("google/type/datetime.proto", "google.type.DateTime"),
        ("confluent/meta.proto", "confluent.Meta"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
        ("confluent/types/decimal.proto", "confluent.type.Decimal"),
    ],
)
def test_well_known_files_need_no_reference(path, type_name):
    parsed = parse(f'syntax = "proto3"; import "{path}"; message M {{ {type_name} x = 1; }}')
    assert decode(parsed).message_type[0].field[0].type_name == f".{type_name}"


def test_tags_are_read_and_changed():
    assert parse(CUSTOM).tags() == {SchemaEntity("sr_field", "a.M.f"): frozenset({"PII", "X"})}
    plain = parse('syntax = "proto3"; package a; message M { string ssn = 1; int32 n = 2; }')
    tagged = plain.with_tags({"a.M.ssn": ["PII"], ".a.M": ["PERSON"]}, {})
    assert tagged.tags() == {
        SchemaEntity("sr_record", "a.M"): frozenset({"PERSON"}),
        SchemaEntity("sr_field", "a.M.ssn"): frozenset({"PII"}),
    }
    assert 'string ssn = 1 [(confluent.field_meta) = { tags: "PII" }];' in tagged.canonical
    assert tagged.with_tags({}, {"a.M": ["PERSON"]}).tags().keys() == {SchemaEntity("sr_field", "a.M.ssn")}
    assert plain.tags() == {}
    with pytest.raises(InvalidSchemaError, match="no record or field"):
        plain.with_tags({"a.M.other": ["X"]}, {})


def test_spelling_is_no_meaning():
    assert parse(WRITTEN).meaning == parse(CANONICAL).meaning == parse(parse(WRITTEN).format("serialized")).meaning
    assert parse(PROTO2).meaning != parse(EDITION).meaning


def test_options_that_no_file_defines_are_kept():
    """Confluent's registry and Karapace accept them, so topics have such schemas."""
    text = """syntax = "proto3";

option (of_file).x = "y";

message M {
  option (of_message) = { a: [1, 2] };
  oneof choice {
    option (of_oneof) = true;
    int32 a = 1;
    int32 b = 2 [(of_field) = 3, deprecated = true];
  }
}
"""
    schema = parse_schema("PROTOBUF", text, {}, is_new=True)
    assert schema.canonical == text
    assert "option (of_oneof) = true;" in schema.normalize().canonical
    assert parse_schema("PROTOBUF", schema.format("serialized"), {}, is_new=True).canonical.count("(of_") == 4
    changed = parse_schema("PROTOBUF", text.replace("int32 b", "string b"), {}, is_new=True)
    assert [incompatibility.kind for incompatibility in check_compatibility(changed, schema, "BACKWARD")] == [
        "FIELD_SCALAR_KIND_CHANGED"
    ]
    descriptor = schema.linked.pool.FindMessageTypeByName("M")
    assert message_factory.GetMessageClass(descriptor)(b=5).SerializeToString() == b"\x10\x05"

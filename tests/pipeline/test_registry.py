"""Framing, schemas and codecs without Spark, against a registry over HTTP.

Bytes are written out by hand where the formats are told, so that both directions cannot be wrong in the same way.
"""

import datetime as dt
import json
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.registry.columns import _column, make_writer
from klamm.registry.client import Registry, RegistryError, UnknownSchema, parse_settings
from klamm.registry.codecs.compilation import Decoder, compile_schema
from klamm.registry.framing import BadRecord, SchemaFrame, header, prefix, read_path, unframe, write_path
from pipeline.small_registry import small_registry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "drink", "type": "string"}],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { string x = 1; message Inner { int32 n = 1; } }
message Order {
  int64 id = 1;
  optional string drink = 2;
  repeated int32 sizes = 3;
  map<string, int64> counts = 4;
  Kind kind = 5;
  google.protobuf.Timestamp at = 6;
  uint64 wide = 7;
  Other.Inner inner = 8;
}
enum Kind { COLD = 0; HOT = 1; }
"""
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "drink": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}},
        "more": {},
    },
    "required": ["id", "drink"],
    "definitions": {"tag": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.fixture
def registry():
    with small_registry() as running:
        yield running


def client(registry, **options):
    return Registry(parse_settings(registry.url), pause=lambda _: None, **options)


def codec(registry, number, message=None):
    here = client(registry)
    return compile_schema(here, here.schema(number), message)


def read(registry, reader, data, named=None):
    return Decoder(client(registry), reader).decode(unframe(data, named))


# Framing


def test_the_first_bytes_name_the_schema():
    assert prefix(0x01020304) == b"\0\1\2\3\4"
    assert unframe(b"\0\1\2\3\4rest") == SchemaFrame(0x01020304, b"rest")


def test_a_header_names_it_and_wins():
    guid = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert header(guid) == b"\1" + bytes.fromhex("00112233445566778899aabbccddeeff")
    assert unframe(b"rest", header(guid)) == SchemaFrame(guid, b"rest", b"")
    assert unframe(b"rest", prefix(7)) == SchemaFrame(7, b"rest", b"")


@pytest.mark.parametrize(
    ("data", "named", "words"),
    [(b"\0\0", None, "too few"), (b"{'a': 1}", None, "first byte is 123"), (b"x", b"\1short", "names no schema")],
)
def test_bytes_that_name_no_schema(data, named, words):
    with pytest.raises(BadRecord, match=words):
        unframe(data, named)


@pytest.mark.parametrize(
    ("path", "data"), [((0,), b"\0"), ((1,), b"\2\2"), ((1, 0), b"\4\2\0"), ((100, 3), b"\4\xc8\1\6")]
)
def test_which_message_of_a_file(path, data):
    assert write_path(path) == data
    assert read_path(SchemaFrame(1, data + b"payload")) == (path, b"payload")
    assert read_path(SchemaFrame(uuid.uuid4(), b"payload", data)) == (path, b"payload")


@pytest.mark.parametrize("data", [b"", b"\4\2", b"\xff" * 9, b"\xff\xff\xff\xff\x0f"])
def test_a_path_without_an_end(data):
    with pytest.raises(BadRecord):
        read_path(SchemaFrame(1, data))


# Asking


def test_a_schema_is_asked_for_once(registry):
    number = registry.register("orders-value", json.dumps(ORDER))
    here = client(registry)
    for _ in range(3):
        assert json.loads(here.schema(number).text) == ORDER
        assert here.schema(uuid.UUID(int=number)).id == number
    assert set(registry.requests.values()) == {1}


def test_what_is_unknown_is_asked_again_only_after_a_while(registry):
    now = [100.0]
    here = client(registry, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="has no schema 9"):
            here.schema(9)
    assert registry.requests["/schemas/ids/9"] == 1
    registry.register("late", '"string"', number=9)
    now[0] += 60
    assert here.schema(9).text == '"string"'


def test_a_registry_that_is_busy_is_asked_again(registry):
    registry.register("s", '"string"')
    registry.fails = 2
    assert client(registry).schema(1).text == '"string"'
    registry.fails = 100
    with pytest.raises(RegistryError, match=r"does not answer.*503 not now"):
        client(registry).schema(1)


def test_a_registry_that_is_not_there():
    with small_registry() as gone:
        pass
    with pytest.raises(RegistryError, match="does not answer"):
        client(gone).schema(1)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="names the registry"):
        parse_settings("localhost:8081")
    with pytest.raises(ConfigError, match="not a registry setting"):
        parse_settings({"schema.registry.url": "http://x", "basic.auth": "y"})
    assert parse_settings("http://a:1/, http://b:2").urls == ("http://a:1", "http://b:2")


# Avro


def test_avro_by_hand(registry):
    number = registry.register("o", json.dumps(ORDER))
    order = codec(registry, number)
    assert order.arrow == pa.struct([("id", pa.int64()), ("drink", pa.string())])
    data = b"\0\0\0\0\1" + b"\x06" + b"\x06tea"  # 3 zigzag, then a length and letters
    assert read(registry, order, data) == {"id": 3, "drink": "tea"}
    assert order.encode({"id": 3, "drink": "tea"}) == data[5:]


def test_avro_of_an_older_schema_is_read_as_the_newer_says(registry):
    old = registry.register("o", json.dumps(ORDER))
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "size", "type": ["null", "int"], "default": None}]}
    reader = codec(registry, registry.register("o", json.dumps(newer)))
    data = prefix(old) + codec(registry, old).encode({"id": 1, "drink": "milk"})
    assert read(registry, reader, data) == {"id": 1, "drink": "milk", "size": None}


def test_avro_types(registry):
    fields = {
        "when": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "noon": {"type": "int", "logicalType": "time-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "mark": {"type": "string", "logicalType": "uuid"},
        "kind": {"type": "enum", "name": "Kind", "symbols": ["HOT", "COLD"]},
        "many": {"type": "array", "items": ["null", "double"]},
        "named": {"type": "map", "values": {"type": "record", "name": "In", "fields": [{"name": "n", "type": "int"}]}},
        "either": ["null", "string", "long"],
    }
    text = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields.items()]}
    )
    decoder = codec(registry, registry.register("r", text))
    when = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
    value = {
        "when": when,
        "day": when.date(),
        "noon": 43_200_000,
        "price": Decimal("12.34"),
        "mark": "00112233-4455-6677-8899-aabbccddeeff",
        "kind": "COLD",
        "many": [1.5, None],
        "named": {"a": {"n": 1}},
        "either": 7,
    }
    data = prefix(1) + decoder.encode(value)
    shown = pa.array([read(registry, decoder, data)], decoder.arrow).to_pylist()
    assert shown == [{**value, "named": [("a", {"n": 1})], "either": {"member0": None, "member1": 7}}]


def test_avro_references(registry):
    inner = {"type": "record", "name": "shop.Price", "fields": [{"name": "cents", "type": "int"}]}
    outer = {"type": "record", "name": "shop.Item", "fields": [{"name": "price", "type": "shop.Price"}]}
    registry.register("price", json.dumps(inner))
    number = registry.register(
        "item", json.dumps(outer), references=[{"name": "shop.Price", "subject": "price", "version": 1}]
    )
    item = codec(registry, number)
    assert read(registry, item, prefix(number) + item.encode({"price": {"cents": 5}})) == {"price": {"cents": 5}}


@pytest.mark.parametrize("payload", [b"", b"\x06\x06te", b"\x06\x06teamore", b"\x06\x03\xff\xff"])
def test_avro_that_is_damaged(registry, payload):
    order = codec(registry, registry.register("o", json.dumps(ORDER)))
    with pytest.raises(BadRecord):
        read(registry, order, prefix(1) + payload)


def test_an_avro_record_in_itself_is_refused(registry):
    text = json.dumps({"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]})
    with pytest.raises(ConfigError, match="is recursive"):
        _ = codec(registry, registry.register("t", text)).arrow


# JSON Schema


def test_json_values(registry):
    decoder = codec(registry, registry.register("j", json.dumps(JSON), "JSON"))
    assert decoder.arrow == pa.struct(
        [
            ("id", pa.int64()),
            ("drink", pa.string()),
            ("tags", pa.list_(pa.struct([("name", pa.string())]))),
            ("more", pa.string()),
        ]
    )
    data = b'\0\0\0\0\1{"id": 4, "drink": null, "tags": [{"name": "x"}], "more": {"a": [1]}, "unknown": 1}'
    assert read(registry, decoder, data) == {"id": 4, "drink": None, "tags": [{"name": "x"}], "more": '{"a":[1]}'}
    assert decoder.encode({"id": 4, "drink": None, "tags": None}) == b'{"id":4,"drink":null}'


@pytest.mark.parametrize("payload", [b"{", b'{"id": "4", "drink": "x"}', b'{"id": 4}', b"\xff"])
def test_json_that_is_not_what_its_schema_says(registry, payload):
    decoder = codec(registry, registry.register("j", json.dumps(JSON), "JSON"))
    with pytest.raises(BadRecord):
        read(registry, decoder, prefix(1) + payload)


def test_json_that_is_refused_when_written(registry):
    decoder = codec(registry, registry.register("j", json.dumps(JSON), "JSON"))
    with pytest.raises(BadRecord, match="does not fit"):
        decoder.encode({"id": "four", "drink": "x"})


def test_json_references(registry):
    registry.register("tag", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}), "JSON")
    text = json.dumps({"type": "object", "properties": {"tag": {"$ref": "tag.json"}}})
    decoder = codec(
        registry, registry.register("j", text, "JSON", [{"name": "tag.json", "subject": "tag", "version": 1}])
    )
    assert decoder.arrow == pa.struct([("tag", pa.struct([("n", pa.int64())]))])
    assert read(registry, decoder, prefix(2) + b'{"tag": {"n": 1}}') == {"tag": {"n": 1}}
    with pytest.raises(BadRecord):
        read(registry, decoder, prefix(2) + b'{"tag": {"n": "one"}}')


# Protobuf


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "text"])
def test_protobuf_values(compiles):
    with small_registry(compiles=compiles) as registry:
        order = codec(registry, registry.register("p", PROTO, "PROTOBUF"), "Order")
        at = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
        value = {
            "id": -1,
            "drink": None,
            "sizes": [1, 2],
            "counts": {"a": 1},
            "kind": "HOT",
            "at": at,
            "wide": Decimal(2**64 - 1),
            "inner": {"n": 7},
        }
        assert order.path == b"\2\2"
        data = prefix(1) + order.path + order.encode(value)
        (shown,) = pa.array([read(registry, order, data)], order.arrow).to_pylist()
        assert shown == {**value, "counts": [("a", 1)]}
        by_header = header(uuid.UUID(int=1)) + order.path
        assert read(registry, order, data[7:], by_header)["inner"] == {"n": 7}


def test_protobuf_by_hand(registry):
    order = codec(registry, registry.register("p", PROTO, "PROTOBUF"), "shop.Order")
    data = b"\0\0\0\0\1" + b"\2\2" + b"\x08\x03" + b"\x12\x03tea"
    decoded = read(registry, order, data)
    assert (decoded["id"], decoded["drink"], decoded["at"]) == (3, "tea", None)
    inner = codec(registry, 1, "Other.Inner")
    assert inner.path == b"\4\0\0"
    assert read(registry, inner, b"\0\0\0\0\1" + b"\4\0\0" + b"\x08\x05") == {"n": 5}


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "text"])
def test_protobuf_references(compiles):
    with small_registry(compiles=compiles) as registry:
        registry.register("price", 'syntax = "proto3"; message Price { int32 cents = 1; }', "PROTOBUF")
        number = registry.register(
            "item",
            'syntax = "proto3"; import "price.proto"; message Item { Price price = 1; }',
            "PROTOBUF",
            [{"name": "price.proto", "subject": "price", "version": 1}],
        )
        item = codec(registry, number)
        data = prefix(number) + item.path + item.encode({"price": {"cents": 5}})
        assert read(registry, item, data) == {"price": {"cents": 5}}


@pytest.mark.parametrize("payload", [b"\2\2\x08", b"\2\2\x12\x02\xff\xff", b"\2\x20\x08\1", b"\4\2\0"])
def test_protobuf_that_is_damaged(registry, payload):
    order = codec(registry, registry.register("p", PROTO, "PROTOBUF"), "Order")
    with pytest.raises(BadRecord):
        read(registry, order, prefix(1) + payload)


def test_a_message_that_is_not_in_the_file(registry):
    with pytest.raises(ConfigError, match="no message Cup, only Other, Order"):
        codec(registry, registry.register("p", PROTO, "PROTOBUF"), "Cup")
    with pytest.raises(ConfigError, match="only Protobuf has messages"):
        codec(registry, registry.register("a", '"string"'), "Cup")


# All kinds


def test_a_record_of_another_kind(registry):
    order = codec(registry, registry.register("o", json.dumps(ORDER)))
    other = registry.register("j", json.dumps(JSON), "JSON")
    with pytest.raises(BadRecord, match="is JSON, expected AVRO"):
        read(registry, order, prefix(other) + b"{}")


@pytest.mark.parametrize(("kind", "text"), [("AVRO", '{"type": "nonsense"}'), ("JSON", "{"), ("PROTOBUF", "{")])
def test_a_schema_that_is_none(kind, text, capfd):
    with small_registry(compiles=False) as registry, pytest.raises(BadRecord, match="schema 1 is no"):
        codec(registry, registry.register("s", text, kind))


def test_columns_are_neither_written_nor_read_under_rules(registry):
    number = registry.register("users-value", '"string"')
    rule = {"name": "encryptPII", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}
    registry.schemas[number]["ruleSet"] = {"domainRules": [rule]}
    with pytest.raises(BadRecord, match="rule encryptPII of the type ENCRYPT"):
        make_writer(registry.url, subject="users-value", alone="name")
    with pytest.raises(BadRecord, match="rule encryptPII of the type ENCRYPT"):
        read(registry, codec(registry, number), prefix(number) + b"\x06Ada")


def test_a_value_too_large_for_its_column_is_a_broken_record():
    column = _column([{"id": 1}, {"id": 2**70}], [None, None], pa.struct([("id", pa.int64())]), True).to_pylist()
    assert column[0] == {"record": {"id": 1}, "error": None}
    assert column[1]["record"] is None
    assert "does not fit its column" in column[1]["error"]

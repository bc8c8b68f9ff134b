"""Serializers and deserializers against a registry of this process: subjects, ids, framings, errors."""

import asyncio
import datetime as dt
import json
import threading
from decimal import Decimal

import pytest

from klamm.client.serde import LookupNeeded, RecordContext, RecordSerializers, deserializer, serializer
from klamm.model.errors import ConfigError
from klamm.registry.client import RegistryUnreachable
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import BadRecord, prefix, unframe
from klamm.registry.serializers import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    RegistryDeserializer,
    SchemaNotRegisteredError,
    SchemaRejectedError,
)

from .generated_messages import make_classes
from .in_process import InProcessRegistry

USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "namespace": "shop",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
    }
)
NEWER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "namespace": "shop",
        "fields": [
            {"name": "name", "type": "string"},
            {"name": "age", "type": "int"},
            {"name": "city", "type": ["null", "string"], "default": None},
        ],
    }
)
OTHER = '{"type": "record", "name": "User", "namespace": "shop", "fields": [{"name": "x", "type": "string"}]}'
TITLED = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["id"],
    }
)
PROTO = """syntax = "proto3";
package shop;
message Other { string x = 1; message Inner { int32 n = 1; } }
message Order { int64 id = 1; string drink = 2; map<string, int64> counts = 3; }
"""
ADA = {"name": "Ada", "age": 36}


@pytest.fixture
def registry():
    client = InProcessRegistry()
    yield client
    client.close()


# Subjects and ids


def test_the_schema_is_registered_once(registry):
    serialize = AvroSerializer(registry, USER)
    data = [serialize.serialize("users", ADA) for _ in range(3)]
    assert data[0] == b"\0\0\0\0\1" + b"\x06Ada" + b"\x48"
    assert set(data) == {data[0]}
    assert registry.requests == {"POST /subjects/users-value/versions": 1}
    assert AvroDeserializer(registry).deserialize("users", data[0]) == ADA


def test_keys_and_values_have_subjects_of_their_own(registry):
    serialize = AvroSerializer(registry, '"string"')
    assert serialize.serialize("t", "k", part="key") == serialize.serialize("t", "k")
    assert registry.call("GET", "/subjects") == ["t-key", "t-value"]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "users-value"),
        ("record", "shop.User"),
        ("topic-record", "users-shop.User"),
        ("TOPIC_RECORD", "users-shop.User"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.User"),
        (lambda context, name: f"mine-{context.part}-{name}", "mine-value-shop.User"),
    ],
)
def test_subject_name_strategies(registry, strategy, subject):
    AvroSerializer(registry, USER, subject_name_strategy=strategy).serialize("users", ADA)
    assert registry.call("GET", "/subjects") == [subject]


def test_a_strategy_by_name_needs_a_name(registry):
    serialize = AvroSerializer(registry, '["string", "int"]', subject_name_strategy="record")
    with pytest.raises(BadRecord, match=r"has no name, which its subject.name.strategy needs"):
        serialize.serialize("t", "x")


def test_a_context_is_part_of_the_subject(registry):
    def strategy(context, name):
        return f":.team:{context.topic}-{context.part}"

    data = AvroSerializer(registry, USER, subject_name_strategy=strategy).serialize("users", ADA)
    registry.put("another", '"string"')  # id 1 of the default context
    assert AvroDeserializer(registry, subject_name_strategy=strategy).deserialize("users", data) == ADA
    with pytest.raises(BadRecord):
        AvroDeserializer(registry).deserialize("users", data)


def test_lookup_only(registry):
    serialize = AvroSerializer(registry, USER, auto_register_schemas=False)
    with pytest.raises(
        SchemaNotRegisteredError, match=r"subject users-value of topic users .*klamm schema put"
    ) as info:
        serialize.serialize("users", ADA)
    assert (info.value.topic, info.value.subject) == ("users", "users-value")
    number = registry.put("users-value", USER)["id"]
    assert serialize.serialize("users", ADA)[:5] == prefix(number)


def test_the_newest_version(registry):
    now = [0.0]
    with pytest.raises(SchemaNotRegisteredError, match="no subject users-value for topic users"):
        AvroSerializer(registry, use_latest_version=True).serialize("users", ADA)
    first = registry.put("users-value", USER)["id"]
    serialize = AvroSerializer(registry, use_latest_version=True)
    serialize._clock = lambda: now[0]
    assert serialize.serialize("users", ADA)[:5] == prefix(first)
    second = registry.put("users-value", NEWER)["id"]
    assert serialize.serialize("users", ADA)[:5] == prefix(first)
    now[0] = registry.settings.latest_ttl_s
    assert serialize.serialize("users", ADA)[:5] == prefix(second)


def test_an_expired_newest_version_is_used_on_while_the_registry_is_away(registry):
    now = [0.0]
    registry.put("users-value", USER)
    serialize = AvroSerializer(registry, use_latest_version=True)
    serialize._clock = lambda: now[0]
    data = serialize.serialize("users", ADA)
    now[0], registry.failures = registry.settings.latest_ttl_s, 1000
    assert serialize.serialize("users", ADA) == data


def test_newest_with_metadata_and_a_schema_by_id(registry):
    tagged = registry.put("users-value", USER, metadata={"properties": {"stage": "live"}})["id"]
    registry.put("users-value", NEWER, metadata={"properties": {"stage": "draft"}})
    chosen = AvroSerializer(registry, use_latest_with_metadata={"stage": "live"})
    assert chosen.serialize("users", ADA)[:5] == prefix(tagged)
    assert AvroSerializer(registry, use_schema_id=tagged).serialize("users", ADA)[:5] == prefix(tagged)


def test_normalize(registry):
    spread = '{"type": "record", "name": "User", "namespace": "shop", "fields": [{"type": "int", "name": "n"}]}'
    AvroSerializer(registry, spread, normalize_schemas=True).serialize("t", {"n": 1})
    other = '{"fields": [{"name": "n", "type": "int"}], "name": "shop.User", "type": "record"}'
    AvroSerializer(registry, other, normalize_schemas=True).serialize("t", {"n": 1})
    assert registry.call("GET", "/subjects/t-value/versions") == [1]


def test_references(registry):
    registry.put("user", USER)
    order = (
        '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "user", "type": "shop.User"}]}'
    )
    serialize = AvroSerializer(registry, order, references=[("shop.User", "user", 1)])
    data = serialize.serialize("orders", {"user": ADA})
    assert AvroDeserializer(registry).deserialize("orders", data) == {"user": ADA}


def test_an_incompatible_schema_is_rejected(registry):
    AvroSerializer(registry, USER).serialize("users", ADA)
    with pytest.raises(SchemaRejectedError, match=r"topic users .* subject users-value: .*klamm schema diff") as info:
        AvroSerializer(registry, OTHER).serialize("users", {"x": ""})
    assert (info.value.status, info.value.error_code) == (409, 40901)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_register_schemas": True, "use_latest_version": True}, "exclude each other"),
        ({"use_latest_version": True, "use_schema_id": 1}, "exclude each other"),
        ({"subject_name_strategy": "subject"}, "there are topic, record, topic-record"),
        ({"schema_id_serializer": "suffix"}, "there are prefix and header"),
        ({"normalize_schemas": "perhaps"}, "true or false"),
        ({"no_such_setting": 1}, "no.such.setting is not a setting"),
    ],
)
def test_settings_that_are_refused(registry, settings, message):
    with pytest.raises(ConfigError, match=message):
        AvroSerializer(registry, USER, **settings)


def test_a_schema_that_is_none_is_refused_at_once(registry):
    with pytest.raises(ConfigError, match="this is not an Avro schema"):
        AvroSerializer(registry, '{"type": "nonsense"}')
    with pytest.raises(ConfigError, match=r"use.latest.version"):
        AvroSerializer(registry)


def test_settings_in_one_mapping():
    serialize = AvroSerializer(
        {
            "schema.registry.url": "http://a:1/path,http://user:p%40ss@b:2",
            "schema.registry.max.retries": "0",
            "auto.register.schemas": "false",
        },
        USER,
    )
    settings = serialize.registry.settings
    assert (settings.urls, settings.basic, settings.retries) == (("http://a:1/path", "http://b:2"), "user:p@ss", 0)


# Framing


@pytest.mark.parametrize("drops_guid", [False, True])
def test_framing_by_header(registry, drops_guid):
    serialize = AvroSerializer(registry, USER, schema_id_serializer="header")
    headers = [("trace", b"1")]
    data = serialize.serialize("users", ADA, headers=headers)
    guid = registry.call("GET", "/schemas/ids/1")["guid"].replace("-", "")
    assert data == b"\x06Ada\x48"
    assert headers == [("trace", b"1"), ("__value_schema_id", b"\1" + bytes.fromhex(guid))]
    assert AvroDeserializer(registry).deserialize("users", data, headers=headers) == ADA
    with pytest.raises(ConfigError, match="list of headers"):
        serialize.serialize("users", ADA)


def test_old_registries_give_the_guid_by_id(registry):
    registry.put("users-value", USER)
    answer = registry._send

    def without_guid(url, body, method):
        parsed = answer(url, body, method)
        if "/subjects/" in url:
            parsed.pop("guid", None)
        return parsed

    registry._send = without_guid
    headers = []
    AvroSerializer(registry, USER, schema_id_serializer="header").serialize("users", ADA, headers=headers)
    assert len(headers[0][1]) == 17
    registry._schemas.clear()
    registry.drops_guid = True
    with pytest.raises(ConfigError, match="no GUIDs"):
        AvroSerializer(registry, USER, schema_id_serializer="header").serialize("other", ADA, headers=[])


def test_a_key_may_be_framed_otherwise_than_the_value(registry):
    serialize = AvroSerializer(
        registry, '"string"', config={"key.schema.id.serializer": "header", "value.schema.id.serializer": "prefix"}
    )
    headers = []
    assert serialize.serialize("t", "k", part="key", headers=headers) == b"\2k"
    assert serialize.serialize("t", "k", headers=headers)[:1] == b"\0"
    assert [name for name, _ in headers] == ["__key_schema_id"]


# Values


def test_none_stays_none(registry):
    assert AvroSerializer(registry, USER).serialize("users", None) is None
    assert AvroDeserializer(registry).deserialize("users", None) is None
    assert not registry.requests


def test_objects(registry):
    class Person:
        def __init__(self, name, age):
            self.name, self.age = name, age

    data = AvroSerializer(registry, USER, to_dict=vars).serialize("users", Person("Ada", 36))
    person = AvroDeserializer(registry, from_dict=lambda value: Person(**value)).deserialize("users", data)
    assert vars(person) == ADA


def test_a_value_that_does_not_fit(registry):
    with pytest.raises(BadRecord, match="subject users-value: does not fit Avro schema 1"):
        AvroSerializer(registry, USER).serialize("users", {"name": "Ada"})
    with pytest.raises(BadRecord, match=r"subject o-value: does not fit JSON Schema 2: value\['id'\]"):
        JsonSchemaSerializer(registry, TITLED).serialize("o", {"id": "one"})


def test_records_of_an_old_schema_are_resolved(registry):
    data = AvroSerializer(registry, USER).serialize("users", ADA)
    assert AvroDeserializer(registry, NEWER).deserialize("users", data) == {**ADA, "city": None}
    registry.put("users-value", NEWER)
    assert AvroDeserializer(registry, use_latest_version=True).deserialize("users", data) == {**ADA, "city": None}


def test_bytes_are_written_as_they_are(registry):
    serialize = AvroSerializer(registry, '"bytes"')
    assert serialize.serialize("t", b"raw") == prefix(1) + b"raw"
    assert AvroDeserializer(registry).deserialize("t", prefix(1) + b"raw") == b"raw"


def test_json_values(registry):
    serialize = JsonSchemaSerializer(registry, TITLED, subject_name_strategy="record")
    data = serialize.serialize("orders", {"id": 1, "note": "Grüße"})
    assert data == prefix(1) + '{"id":1,"note":"Grüße"}'.encode()
    assert registry.call("GET", "/subjects") == ["Order"]
    assert JsonSchemaDeserializer(registry).deserialize("orders", data)["note"] == "Grüße"
    stricter = '{"properties": {"note": {"maxLength": 2}}}'
    with pytest.raises(BadRecord, match="not a value"):
        JsonSchemaDeserializer(registry, stricter).deserialize("orders", data)


def test_messages_of_generated_classes(registry):
    _, order_class, line_class, price_class = make_classes()
    order = order_class(drink="tea", price=price_class(cents=250))
    data = ProtobufSerializer(registry, order_class).serialize("orders", order)
    assert data[5:7] == b"\2\2"  # one index, the second message of the file
    assert registry.call("GET", "/subjects") == ["orders-value", "shop/price.proto"]
    assert ProtobufDeserializer(registry, order_class).deserialize("orders", data) == order
    dynamic = ProtobufDeserializer(registry).deserialize("orders", data)
    assert (dynamic.DESCRIPTOR.full_name, dynamic.drink, dynamic.price.cents) == ("shop.Order", "tea", 250)
    line = ProtobufSerializer(registry, line_class).serialize("lines", line_class(n=3))
    assert line[5:8] == b"\4\2\0"
    with pytest.raises(BadRecord, match=r"a Line is not a message shop.Order"):
        ProtobufSerializer(registry, order_class).serialize("orders", line_class())


def test_imports_that_are_not_registered(registry):
    _, order_class, _, _ = make_classes()
    with pytest.raises(SchemaNotRegisteredError, match=r"subject shop/price.proto of topic orders"):
        ProtobufSerializer(registry, order_class, auto_register_schemas=False).serialize("orders", order_class())


def test_mappings_as_messages(registry):
    serialize = ProtobufSerializer(registry, schema=PROTO, message="Order", subject_name_strategy="record")
    data = serialize.serialize("orders", {"id": 1, "drink": "tea", "counts": {"a": 1}})
    assert registry.call("GET", "/subjects") == ["shop.Order"]
    message = ProtobufDeserializer(registry).deserialize("orders", data)
    assert (message.id, message.drink, dict(message.counts)) == (1, "tea", {"a": 1})


def test_records_of_any_kind_as_json(registry):
    dated = (
        '{"type": "record", "name": "D", "fields": [{"name": "on", "type": {"type": "int", "logicalType": "date"}}]}'
    )
    read = RegistryDeserializer(registry, as_json=True)
    data = AvroSerializer(registry, dated).serialize("a", {"on": dt.date(2026, 1, 2)})
    assert read.deserialize("a", data) == {"on": "2026-01-02"}
    assert RegistryDeserializer(registry).deserialize("a", data) == {"on": dt.date(2026, 1, 2)}
    order = JsonSchemaSerializer(registry, TITLED).serialize("j", {"id": 1})
    assert read.deserialize("j", order) == {"id": 1}
    message = ProtobufSerializer(registry, schema=PROTO, message="Order").serialize("p", {"id": 1})
    assert read.deserialize("p", message) == {"id": "1", "drink": "", "counts": {}}


def test_records_that_cannot_be_read(registry):
    read = AvroDeserializer(registry)
    with pytest.raises(BadRecord, match="written with another registry, or the schema was deleted"):
        read.deserialize("t", prefix(99) + b"x")
    assert registry.requests["GET /schemas/ids/99"] == 1
    with pytest.raises(BadRecord, match="has no schema 99"):
        read.deserialize("t", prefix(99) + b"x")
    assert registry.requests["GET /schemas/ids/99"] == 1
    with pytest.raises(BadRecord, match="no schema is named"):
        read.deserialize("t", b'{"a": 1}')
    number = registry.put("j", TITLED, schemaType="JSON")["id"]
    with pytest.raises(BadRecord, match="is JSON, and this deserializer reads AVRO"):
        read.deserialize("t", prefix(number) + b"{}")


# In a client


def test_a_record_waits_for_its_schema_off_the_loop(registry):
    work = RecordSerializers(None, serializer(AvroSerializer(registry, USER), "value.serializer"))
    with pytest.raises(LookupNeeded):
        work("users", ADA, None, None)

    async def main():
        return await work.wait_async("users", ADA, b"k", {"trace": b"1"})

    value, key, headers = asyncio.run(main())
    assert (value[:5], key, headers) == (prefix(1), b"k", {"trace": b"1"})
    assert threading.current_thread() not in registry.threads
    assert work("users", ADA, None, None)[0] == value


def test_headers_of_both_serializers_are_added(registry):
    both = AvroSerializer(registry, '"string"', schema_id_serializer="header")
    work = RecordSerializers(serializer(both, "key.serializer"), serializer(both, "value.serializer"))
    _, _, headers = work.wait("t", "v", "k", {"trace": b"1"})
    assert [name for name, _ in headers] == ["trace", "__key_schema_id", "__value_schema_id"]
    read = deserializer(AvroDeserializer(registry), "key.deserializer")
    with pytest.raises(LookupNeeded) as needed:
        read("t", b"\2k", headers)
    needed.value.look_up()
    assert read("t", b"\2k", headers) == "k"


def test_an_outage_is_not_the_records_fault(registry):
    number = registry.put("users-value", USER)["id"]
    registry.failures = 1000
    read = AvroDeserializer(registry)
    with pytest.raises(LookupNeeded) as needed:
        read.deserialize_record(RecordContext("users", "value"), prefix(number) + b"\x06Ada\x48")
    with pytest.raises(RegistryUnreachable):
        needed.value.look_up()
    registry.failures = 0
    assert read.deserialize("users", prefix(number) + b"\x06Ada\x48") == ADA


def test_threads_share_one_request(registry):
    registry.put("users-value", USER)
    entered, release = threading.Event(), threading.Event()
    answer = registry._send

    def slowly(url, body, method):
        entered.set()
        assert release.wait(60)
        return answer(url, body, method)

    registry._send = slowly
    schemas = []
    threads = [threading.Thread(target=lambda: schemas.append(registry.schema(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    release.set()
    for thread in threads:
        thread.join(60)
    assert len(schemas) == 4
    assert registry.requests["GET /schemas/ids/1"] == 1


def test_the_cache_is_bounded():
    client = InProcessRegistry(**{"cache.capacity": 2})
    try:
        for number in range(3):
            client.put(f"s{number}", f'{{"type": "fixed", "name": "F{number}", "size": 1}}')
            client.schema(number + 1)
        assert len(client._schemas) == 2
        client.schema(1)
        assert client.requests["GET /schemas/ids/1"] == 2
    finally:
        client.close()


# JSON of Avro


def test_both_forms_of_json(registry):
    text = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "u", "type": ["null", "long", "string", {"type": "array", "items": "int"}]},
                {"name": "d", "type": ["null", {"type": "int", "logicalType": "date"}]},
                {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
                {"name": "b", "type": "bytes", "default": "\u00ff"},
                {"name": "f", "type": "double", "default": 1.0},
            ],
        }
    )
    data = AvroSerializer(registry, text).serialize(
        "t", {"u": [1], "d": dt.date(2026, 1, 2), "m": Decimal("12.50"), "b": b"\0\xff", "f": float("-inf")}
    )
    codec, frame = compile_schema(registry, registry.schema(1)), unframe(data)
    plain = {"u": [1], "d": "2026-01-02", "m": "12.50", "b": "\0\u00ff", "f": "-Infinity"}
    tagged = {"u": {"array": [1]}, "d": {"int": 20455}, "m": "\x04\u00e2", "b": "\0\u00ff", "f": "-Infinity"}
    assert codec.to_json(frame) == plain
    assert codec.to_json(frame, tagged=True) == tagged
    assert codec.from_json(plain) == codec.from_json(tagged, tagged=True) == frame.payload
    assert codec.from_json({"u": {"string": "x"}, "d": None, "m": 1.5})[:4] == b"\4\2x\0"
    for value, reason in (
        ({"u": True, "d": None, "m": "1"}, "value.u is True"),
        ({"u": None, "m": "1"}, "value has no field d"),
        ({"u": None, "d": "2026-13-01", "m": "1"}, "expected a date"),
        ({"u": None, "d": None, "m": "1", "z": 1}, "expected a field of R"),
    ):
        with pytest.raises(BadRecord, match=reason):
            codec.from_json(value)

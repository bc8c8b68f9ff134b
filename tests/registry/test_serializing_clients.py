"""Our serializers in our clients, through a broker; and beside confluent-kafka's: the same bytes, read by either."""

import asyncio
import datetime as dt
import functools
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirAvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as TheirProtobufDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from klamm.client import AsyncConsumer, AsyncProducer, Consumer, Producer, SerializationError, read_topic
from klamm.registry.client import Registry, RegistryUnreachable, parse_settings
from klamm.registry.framing import prefix
from klamm.registry.serializers import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    RegistryDeserializer,
)
from klamm.testing import unique

from .generated_messages import make_classes

USER = """{"type": "record", "name": "User", "namespace": "shop", "fields": [
    {"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}"""
WITH_CITY = """{"type": "record", "name": "User", "namespace": "shop", "fields": [
    {"name": "name", "type": "string"}, {"name": "age", "type": "int"},
    {"name": "city", "type": ["null", "string"], "default": null}]}"""
ORDER = (
    """{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "user", "type": "shop.User"}]}"""
)
RICH = json.dumps(
    {
        "type": "record",
        "name": "Rich",
        "fields": [
            {"name": "on", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "more", "type": {"type": "map", "values": ["null", "long"]}},
            {"name": "either", "type": ["null", "string", "double"]},
        ],
    }
)
RICH_VALUE = {
    "on": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    "cost": Decimal("12.50"),
    "kind": "B",
    "tags": ["x", "ÿ"],
    "more": {"a": 1, "b": None},
    "either": 1.5,
}
JSON = json.dumps(
    {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
)
JSON_VALUE = {"id": 1, "note": "Grüße \u2028", "more": [1.5, None, True]}


@pytest.fixture
def theirs(registry):
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture
def their_reader(registry):
    """Another client: one that has registered a Protobuf schema caches the text of the answer as a descriptor."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def compare(ours, their_serializer, our_deserializer, their_deserializer, value, expected=None):
    """Both serializers write the same bytes and headers; both deserializers read them."""
    topic = unique("t")
    for field in (MessageField.VALUE, MessageField.KEY):
        context = SerializationContext(topic, field, [])
        headers = []
        data = ours.serialize(topic, value, str(field), headers)
        assert their_serializer(value, context) == data
        assert context.headers == headers
        assert their_deserializer(data, context) == (expected or value)
        assert our_deserializer.deserialize(topic, data, str(field), headers) == (expected or value)


FRAMINGS = [
    pytest.param({}, {}, id="prefix"),
    pytest.param(
        {"schema_id_serializer": "header"}, {"schema.id.serializer": header_schema_id_serializer}, id="header"
    ),
]


@pytest.mark.parametrize(("our_settings", "their_settings"), FRAMINGS)
@pytest.mark.parametrize(
    ("schema", "value"), [(RICH, RICH_VALUE), ('"string"', "longer"), ('"bytes"', b"\0\xff\0longer")]
)
def test_avro_beside_confluent(registry, theirs, our_settings, their_settings, schema, value):
    compare(
        AvroSerializer(registry.url, schema, **our_settings),
        TheirAvroSerializer(theirs, schema, conf=their_settings),
        AvroDeserializer(registry.url),
        TheirAvroDeserializer(theirs),
        value,
    )


@pytest.mark.parametrize(("our_settings", "their_settings"), FRAMINGS)
def test_json_schema_beside_confluent(registry, theirs, our_settings, their_settings):
    compare(
        JsonSchemaSerializer(registry.url, JSON, **our_settings),
        JSONSerializer(JSON, theirs, conf=their_settings),
        JsonSchemaDeserializer(registry.url),
        JSONDeserializer(JSON, schema_registry_client=theirs),
        JSON_VALUE,
    )


@pytest.mark.parametrize(("our_settings", "their_settings"), FRAMINGS)
@pytest.mark.parametrize("name", ["Empty", "Order", "Line"])
def test_protobuf_beside_confluent(registry, theirs, their_reader, our_settings, their_settings, name):
    empty, order, line, price = make_classes()
    message = {"Empty": empty(), "Order": order(drink="tea", price=price(cents=3)), "Line": line(n=-1)}[name]
    compare(
        ProtobufSerializer(registry.url, type(message), **our_settings),
        TheirProtobufSerializer(type(message), theirs, {"use.deprecated.format": False, **their_settings}),
        ProtobufDeserializer(registry.url, type(message)),
        TheirProtobufDeserializer(type(message), {"use.deprecated.format": False}, their_reader),
        message,
    )


@pytest.mark.parametrize(
    ("ours", "their_strategy"),
    [("record", record_subject_name_strategy), ("topic-record", topic_record_subject_name_strategy)],
)
def test_subjects_beside_confluent(registry, theirs, ours, their_strategy):
    topic = unique("t")
    value = {"name": "Ada", "age": 1}
    data = AvroSerializer(registry.url, USER, subject_name_strategy=ours).serialize(topic, value)
    # Only looks up: it finds what ours has registered, or fails.
    lookup = {"auto.register.schemas": False, "subject.name.strategy": their_strategy}
    theirs_data = TheirAvroSerializer(theirs, USER, conf=lookup)(value, SerializationContext(topic, MessageField.VALUE))
    assert theirs_data == data


def test_references_and_newest_beside_confluent(registry, theirs):
    user, topic = unique("user"), unique("orders")
    theirs.register_schema(user, Schema(USER, "AVRO"))
    value = {"user": {"name": "x", "age": 1}}
    ours = AvroSerializer(registry.url, ORDER, references=[("shop.User", user, 1)])
    context = SerializationContext(topic, MessageField.VALUE)
    schema = Schema(ORDER, "AVRO", [SchemaReference("shop.User", user, 1)])
    data = ours.serialize(topic, value)
    assert TheirAvroSerializer(theirs, schema)(value, context) == data
    assert AvroSerializer(registry.url, use_latest_version=True).serialize(topic, value) == data
    assert TheirAvroDeserializer(theirs)(data, context) == value


# Clients


@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_the_blocking_clients(klamm_broker, registry, framing):
    topic = unique("users")
    users = [{"name": f"user {number}", "age": number} for number in range(20)]
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1)
    with Producer(
        bootstrap_servers=klamm_broker.bootstrap,
        key_serializer=JsonSchemaSerializer(registry.url, '{"type": "integer"}', schema_id_serializer=framing),
        value_serializer=AvroSerializer(registry.url, USER, schema_id_serializer=framing),
    ) as producer:
        for user in users:
            producer.send(topic, user, key=user["age"], headers={"trace": b"1"})
        producer.send(topic, None, key=1)
    with Consumer(
        bootstrap_servers=klamm_broker.bootstrap,
        key_deserializer=RegistryDeserializer(registry.url),
        value_deserializer=AvroDeserializer(registry.url),
    ) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        records = []
        while len(records) < len(users) + 1:
            records += consumer.poll(60)
    assert [record.value for record in records] == [*users, None]
    assert [record.key for record in records] == [*range(20), 1]
    assert len(records[0].headers) == (1 if framing == "prefix" else 3)


def test_the_clients_of_an_event_loop(klamm_broker, registry):
    topic = unique("orders")
    _, order_class, _, price_class = make_classes()
    orders = [order_class(drink="tea", price=price_class(cents=number)) for number in range(20)]

    async def main():
        async with AsyncProducer(
            bootstrap_servers=klamm_broker.bootstrap,
            value_serializer=ProtobufSerializer(registry.url, order_class, schema_id_serializer="header"),
        ) as producer:
            for order in orders:
                await producer.send(topic, order)
        values = []
        async with AsyncConsumer(
            bootstrap_servers=klamm_broker.bootstrap, value_deserializer=ProtobufDeserializer(registry.url)
        ) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek_to_beginning()
            while len(values) < len(orders):
                values += [record.value for record in await consumer.poll(60)]
        return values

    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1)
    values = asyncio.run(main())
    assert [value.price.cents for value in values] == list(range(20))


def test_records_that_cannot_be_read_and_an_outage(klamm_broker, registry):
    topic = unique("mixed")
    value = {"name": "Ada", "age": 36}
    data = AvroSerializer(registry.url, USER).serialize(topic, value)
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=klamm_broker.bootstrap) as producer:
        for bad in (data, b"{}", prefix(10**6), data):
            producer.send(topic, bad)
    client = Registry(parse_settings({"url": registry.url, "max.retries": 0}))
    errors = []
    with Consumer(
        bootstrap_servers=klamm_broker.bootstrap, value_deserializer=AvroDeserializer(client), on_error=errors.append
    ) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        send, client._send = client._send, refuse
        with pytest.raises(RegistryUnreachable):
            consumer.poll(60)
        assert consumer.position((topic, 0)) == 0  # nothing is skipped
        client._send = send
        values = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(60)]
    assert values == [value, value]
    assert [error.offset for error in errors] == [1, 2]
    assert all(isinstance(error, SerializationError) for error in errors)
    assert "too few to name a schema" in str(errors[0])
    assert "has no schema 1000000" in str(errors[1])


def refuse(*_):
    raise OSError("connection refused")


# Columns


def send_all(broker, topic, values):
    with broker.admin() as admin:
        admin.create_topic(topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value)


def test_a_topic_as_typed_columns(klamm_broker, registry):
    topic = unique("users")
    older = AvroSerializer(registry.url, USER)
    newer = AvroSerializer(registry.url, WITH_CITY)
    send_all(
        klamm_broker,
        topic,
        [
            older.serialize(topic, {"name": "Ada", "age": 36}),
            None,
            b"damaged",
            newer.serialize(topic, {"name": "Grace", "age": 37, "city": "New York"}),
        ],
    )
    read = functools.partial(read_topic, topic, bootstrap=klamm_broker.bootstrap, timeout_s=60)
    table = read(value="registry", registry=registry.url, on_error="skip")
    assert table.schema.names[:5] == ["key", "name", "age", "city", "topic"]
    assert table.schema.field("age").type == pa.int32()
    assert table.select(["offset", "name", "age", "city"]).to_pylist() == [
        {"offset": 0, "name": "Ada", "age": 36, "city": None},
        {"offset": 1, "name": None, "age": None, "city": None},
        {"offset": 3, "name": "Grace", "age": 37, "city": "New York"},
    ]
    with pytest.raises(SerializationError, match=r"offset 2: value.deserializer failed: the first byte is 100"):
        read(value="registry", registry=registry.url)
    by_reader = read(value=AvroDeserializer(registry.url, USER), on_error="skip")
    assert "city" not in by_reader.schema.names
    with pytest.raises(ValueError, match="needs registry="):
        read(value="registry")
    with pytest.raises(ValueError, match="write bytes, str, json, registry"):
        read(value="avro")


def test_typed_columns_of_a_poll(klamm_broker, registry):
    topic = unique("orders")
    _, order_class, _, price_class = make_classes()
    serialize = ProtobufSerializer(registry.url, order_class)
    orders = [serialize.serialize(topic, order_class(drink="tea", price=price_class(cents=n))) for n in range(6)]
    send_all(klamm_broker, topic, [*orders[:3], b"damaged", *orders[3:]])
    client = Registry(parse_settings({"url": registry.url, "max.retries": 0}))
    with Consumer(
        bootstrap_servers=klamm_broker.bootstrap, value_deserializer=RegistryDeserializer(client)
    ) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        send, client._send = client._send, refuse
        with pytest.raises(RegistryUnreachable):
            consumer.poll_arrow(60)
        assert consumer.position((topic, 0)) == 0
        client._send = send
        rows = []
        while len(rows) < 3:
            batch = consumer.poll_arrow(60)
            assert batch.schema.field("value").type.field("drink").type == pa.string()
            rows += batch.column("value").to_pylist()
        assert rows == [{"drink": "tea", "price": {"cents": n}} for n in range(3)]
        # As with poll: the rows before are returned, then the error is raised until the program moves on.
        with pytest.raises(SerializationError) as bad:
            consumer.poll_arrow(60)
        assert (bad.value.offset, bad.value.value) == (3, b"damaged")
        consumer.seek((topic, 0), bad.value.next_offset)
        while len(rows) < 6:
            rows += consumer.poll_arrow(60).column("value").to_pylist()
        assert rows[-1]["price"] == {"cents": 5}
    errors = []
    with Consumer(
        bootstrap_servers=klamm_broker.bootstrap,
        value_deserializer=RegistryDeserializer(client),
        on_error=errors.append,
    ) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        count = 0
        while count < 6:
            count += consumer.poll_arrow(60).num_rows
        assert [error.offset for error in errors] == [3]


def test_a_table_has_rows_of_one_topic(klamm_broker, registry):
    topics = [unique("a"), unique("b")]
    send_all(klamm_broker, topics[0], [AvroSerializer(registry.url, '"long"').serialize(topics[0], 1)])
    send_all(klamm_broker, topics[1], [AvroSerializer(registry.url, '"string"').serialize(topics[1], "x")])
    with Consumer(
        bootstrap_servers=klamm_broker.bootstrap, value_deserializer=AvroDeserializer(registry.url)
    ) as consumer:
        consumer.assign([(topic, 0) for topic in topics])
        consumer.seek_to_beginning()
        values = []
        while len(values) < 2:
            values += consumer.poll_arrow(60).column("value").to_pylist()
    assert set(values) == {1, "x"}

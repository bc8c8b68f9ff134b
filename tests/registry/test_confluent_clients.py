"""confluent-kafka's client of a registry and its serializers, unchanged, against ours."""

import json
import uuid

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from klamm.testing import unique

USER = """{"type": "record", "name": "User", "namespace": "shop", "fields": [
    {"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}"""
NEWER = """{"type": "record", "name": "User", "namespace": "shop", "fields": [
    {"name": "name", "type": "string"}, {"name": "age", "type": "int"},
    {"name": "city", "type": ["null", "string"], "default": null}]}"""
BROKEN = """{"type": "record", "name": "User", "namespace": "shop", "fields": [{"name": "other", "type": "string"}]}"""
ORDER = (
    """{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "user", "type": "shop.User"}]}"""
)


@pytest.fixture
def client(registry):
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def test_records_travel_through_the_broker_with_their_schema(klamm_broker, registry, client):
    topic = unique("users")
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1)
    serializer = AvroSerializer(client, USER)
    producer = SerializingProducer(
        {
            "bootstrap.servers": klamm_broker.bootstrap,
            "key.serializer": StringSerializer(),
            "value.serializer": serializer,
        }
    )
    users = [{"name": f"user {number}", "age": number} for number in range(10)]
    for user in users:
        producer.produce(topic, key=user["name"], value=user)
    assert producer.flush(30) == 0
    consumer = DeserializingConsumer(
        {
            "bootstrap.servers": klamm_broker.bootstrap,
            "group.id": unique("g"),
            "auto.offset.reset": "earliest",
            "value.deserializer": AvroDeserializer(client, NEWER),
        }
    )
    consumer.subscribe([topic])
    values = []
    while len(values) < len(users):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert values == [{**user, "city": None} for user in users]
    assert client.get_latest_version(f"{topic}-value").version == 1


def test_versions_compatibility_and_deletes(client):
    subject = unique("s")
    first = client.register_schema(subject, Schema(USER, "AVRO"))
    assert client.register_schema(subject, Schema(USER, "AVRO")) == first
    assert client.test_compatibility(subject, Schema(NEWER, "AVRO"))
    assert not client.test_compatibility(subject, Schema(BROKEN, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(BROKEN, "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 40901)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.value.error_message
    assert client.register_schema(subject, Schema(NEWER, "AVRO")) > first
    assert client.get_versions(subject) == [1, 2]
    assert subject in client.get_subjects()
    assert client.get_version(subject, 1).schema_id == first
    assert client.lookup_schema(subject, Schema(USER, "AVRO")).version == 1
    assert client.delete_version(subject, 1) == 1
    assert client.delete_subject(subject) == [2]
    assert client.delete_subject(subject, permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError, match="not found"):
        client.get_versions(subject)


def test_references(client):
    user, order = unique("user"), unique("order")
    client.register_schema(user, Schema(USER, "AVRO"))
    schema = Schema(ORDER, "AVRO", [SchemaReference("shop.User", user, 1)])
    number = client.register_schema(order, schema)
    serializer = AvroSerializer(client, schema)
    context = SerializationContext(order.removesuffix("-value"), MessageField.VALUE)
    data = serializer({"user": {"name": "x", "age": 1}}, context)
    assert AvroDeserializer(client)(data, context) == {"user": {"name": "x", "age": 1}}
    assert int.from_bytes(data[1:5], "big") == number


def test_configs_and_modes(client):
    subject = unique("s")
    client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_config(subject).compatibility_level is ConfigCompatibilityLevel.FULL
    assert client.set_compatibility(subject, "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility(subject) == "NONE"
    assert client.get_compatibility() == "BACKWARD"


def test_schemas_are_read_by_guid(registry, client):
    subject = unique("s")
    guid = client.register_schema_full_response(subject, Schema(USER, "AVRO")).guid
    # Another client: the first one remembers the text that it sent.
    with SchemaRegistryClient({"url": registry.url}) as reader:
        assert reader.get_latest_version(subject).guid == guid
        assert json.loads(reader.get_schema_by_guid(guid).schema_str) == json.loads(USER)


def round_trip(subject, serializer, deserializer, value):
    context = SerializationContext(subject, MessageField.VALUE)
    data = serializer(value, context)
    return data, deserializer(data, context)


def test_json_schema_values(client):
    topic = unique("json")
    text = json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "User",
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )
    serializer = JSONSerializer(text, client)
    data, value = round_trip(topic, serializer, JSONDeserializer(text, schema_registry_client=client), {"name": "Ada"})
    assert value == {"name": "Ada"}
    version = client.get_latest_version(f"{topic}-value")
    assert version.schema.schema_type == "JSON"
    assert int.from_bytes(data[1:5], "big") == version.schema_id
    narrower = json.loads(text)
    narrower["properties"]["age"]["minimum"] = 18
    assert not client.test_compatibility(f"{topic}-value", Schema(json.dumps(narrower), "JSON"))


def test_protobuf_messages_with_imports(client):
    topic, pool = unique("proto"), descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(
        descriptor_pb2.FileDescriptorProto(
            name="shop/money.proto",
            package="shop",
            syntax="proto3",
            message_type=[{"name": "Money", "field": [{"name": "cents", "number": 1, "type": "TYPE_INT64"}]}],
        ).SerializeToString()
    )
    pool.AddSerializedFile(
        descriptor_pb2.FileDescriptorProto(
            name="shop/order.proto",
            package="shop",
            syntax="proto3",
            dependency=["shop/money.proto", "google/protobuf/timestamp.proto"],
            message_type=[
                {
                    "name": "Order",
                    "field": [
                        {"name": "drink", "number": 1, "type": "TYPE_STRING"},
                        {"name": "price", "number": 2, "type": "TYPE_MESSAGE", "type_name": ".shop.Money"},
                        {"name": "at", "number": 3, "type": "TYPE_MESSAGE", "type_name": ".google.protobuf.Timestamp"},
                    ],
                }
            ],
        ).SerializeToString()
    )
    order_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    settings = {"use.deprecated.format": False}
    serializer = ProtobufSerializer(order_class, client, settings)
    order = order_class(drink="espresso")
    order.price.cents = 230
    deserializer = ProtobufDeserializer(order_class, settings, client)
    data, value = round_trip(topic, serializer, deserializer, order)
    assert value == order
    version = client.get_latest_version(f"{topic}-value")
    assert version.schema.schema_type == "PROTOBUF"
    assert "message Order {" in version.schema.schema_str
    assert [reference.subject for reference in version.schema.references] == ["shop/money.proto"]
    assert data[5:6] == b"\0"


def test_framing_in_headers_names_the_guid(client):
    topic = unique("headers")
    headers = []
    serializer = AvroSerializer(client, USER, conf={"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext(topic, MessageField.VALUE, headers)
    data = serializer({"name": "Ada Lovelace", "age": 36}, context)
    ((name, value),) = headers
    assert (name, value[0]) == ("__value_schema_id", 1)
    assert str(uuid.UUID(bytes=value[1:17])) == client.get_latest_version(f"{topic}-value").guid
    assert AvroDeserializer(client)(data, context) == {"name": "Ada Lovelace", "age": 36}

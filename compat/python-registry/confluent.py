"""What confluent-kafka's serializers do: confluent.py URL TOPIC prints one JSON line."""

import json
import sys

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

URL, TOPIC = sys.argv[1:]
client = SchemaRegistryClient({"url": URL})


def at(name: str) -> SerializationContext:
    return SerializationContext(f"{TOPIC}-{name}", MessageField.VALUE)


def message_types() -> tuple[type, type]:
    """A message with an import: one subject for each file."""
    pool = descriptor_pool.DescriptorPool()
    person = descriptor_pb2.FileDescriptorProto(name=f"{TOPIC}/person.proto", package="p", syntax="proto3")
    person.message_type.add(name="Person").field.add(name="name", number=1, label=1, type=9)
    order = descriptor_pb2.FileDescriptorProto(name=f"{TOPIC}/order.proto", package="p", syntax="proto3")
    order.dependency.append(person.name)
    order.message_type.add(name="Order").field.add(name="person", number=1, label=1, type=11, type_name=".p.Person")
    pool.Add(person)
    pool.Add(order)
    names = ("p.Order", "p.Person")
    classes = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    return classes[0], classes[1]


def use_avro() -> object:
    inner = '{"type":"record","name":"Inner","fields":[{"name":"x","type":"int"}]}'
    client.register_schema(f"{TOPIC}-inner", Schema(inner, "AVRO"))
    outer = '{"type":"record","name":"Outer","fields":[{"name":"inner","type":"Inner"}]}'
    schema = Schema(outer, "AVRO", [SchemaReference("Inner", f"{TOPIC}-inner", 1)])
    data = AvroSerializer(client, schema)({"inner": {"x": 7}}, at("avro"))
    return AvroDeserializer(SchemaRegistryClient({"url": URL}))(data, at("avro"))


def use_json() -> list[object]:
    text = '{"title":"User","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
    serializer = JSONSerializer(text, client)
    value = JSONDeserializer(text)(serializer({"name": "Ada"}, at("json")), at("json"))
    try:
        serializer({"other": 1}, at("json"))
    except SerializationError:
        return [value, "refused"]
    return [value, "taken"]


def use_protobuf() -> list[object]:
    order, person = message_types()
    serializer = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    data = serializer(order(person=person(name="Ada")), at("protobuf"))
    again = ProtobufSerializer(order, SchemaRegistryClient({"url": URL}), {"use.deprecated.format": False})
    assert again(order(person=person(name="Ada")), at("protobuf")) == data
    read = ProtobufDeserializer(order, {"use.deprecated.format": False})(data, at("protobuf"))
    latest = client.get_latest_version(f"{TOPIC}-protobuf-value")
    return [read.person.name, latest.version, [reference.name for reference in latest.schema.references]]


print(json.dumps({"avro": use_avro(), "json": use_json(), "protobuf": use_protobuf()}))

"""Avro, JSON Schema and Protobuf through a registry, in both interfaces."""

import json

import pytest

from klamm.testing import unique
from registry.conftest import running_registry

from .conftest import running_proxy

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "item", "type": "string"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
JSON_SCHEMA = json.dumps({"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]})
PROTOBUF = 'syntax = "proto3"; package shop; message Order { string item = 1; int32 count = 2; }'

KINDS = {
    "avro": (AVRO, {"item": "tea", "note": {"string": "hot"}}, {"item": 5}),
    "jsonschema": (JSON_SCHEMA, {"item": "tea"}, {"item": 5}),
    "protobuf": (PROTOBUF, {"item": "tea", "count": 2}, {"item": {"a": 1}}),
}
TYPES = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}


@pytest.fixture(scope="module")
def registry(klamm_broker):
    with running_registry(klamm_broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(klamm_broker, registry):
    with running_proxy(klamm_broker.bootstrap, registry=registry.url) as running:
        yield running


def media_type(kind):
    return f"application/vnd.kafka.{kind}.v2+json"


@pytest.mark.parametrize("kind", KINDS)
def test_values_pass_with_their_schema(proxy, registry, topic, kind):
    schema, value, bad = KINDS[kind]
    answer = proxy.produce(topic, value, None, embedded=kind, value_schema=schema)
    schema_id = answer["value_schema_id"]
    assert registry.get(f"/subjects/{topic}-value/versions/1")["id"] == schema_id
    proxy.produce(topic, value, embedded=kind, value_schema_id=schema_id)
    instance = proxy.create_instance(topic, format=kind)
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    records = proxy.read_until(instance, 3, accept=media_type(kind))
    assert [record["value"] for record in records] == [value, None, value]
    proxy.request("DELETE", instance)
    for body, code in (
        ({"records": [{"value": bad}], "value_schema_id": schema_id}, 42203),
        ({"records": [{"value": value}], "value_schema_id": 999_999}, 42205),
        ({"records": [{"value": value}], "value_schema": "nonsense {"}, 42205),
        ({"records": [{"key": value}], "value_schema_id": schema_id}, 42201),
    ):
        refusal = proxy.post(f"/topics/{topic}", body, media_type(kind))
        assert (refusal.status, refusal.json()["error_code"]) == (422, code), refusal.body


@pytest.mark.parametrize("kind", KINDS)
def test_v3_finds_the_schema_by_text_id_version_and_subject(proxy, registry, topic, kind):
    schema, value, bad = KINDS[kind]
    path = f"{proxy.cluster}/topics/{topic}/records"
    by_text = proxy.post(path, {"value": {"type": kind.upper(), "schema": schema, "data": value}}).json()
    assert by_text["error_code"] == 200, by_text
    described = by_text["value"]
    assert (described["type"], described["subject"]) == (kind.upper(), f"{topic}-value")
    assert described["schema_version"] == 1
    for data in (
        {"schema_id": described["schema_id"], "data": value},
        {"schema_version": 1, "data": value},
        {"data": value},
        {"subject": f"{topic}-value", "data": value},
    ):
        answer = proxy.post(path, {"value": data}).json()
        assert (answer["error_code"], answer["value"]["schema_id"]) == (200, described["schema_id"]), answer
    refusal = proxy.post(path, {"value": {"data": bad}}).json()
    assert refusal["error_code"] == 42203
    assert proxy.post(path, {"key": {"data": 1}}).json()["error_code"] == 42205
    strategy = {"subject_name_strategy": "RECORD_NAME", "data": value}
    assert proxy.post(path, {"value": strategy}).json()["error_code"] == 400


def test_the_subject_may_be_the_name_of_the_record(proxy, registry, topic):
    path = f"{proxy.cluster}/topics/{topic}/records"
    value = {"type": "AVRO", "schema": AVRO, "data": {"item": "tea", "note": None}}
    answer = proxy.post(path, {"value": value | {"subject_name_strategy": "TOPIC_RECORD_NAME"}}).json()
    assert answer["value"]["subject"] == f"{topic}-shop.Order"
    assert f"{topic}-shop.Order" in registry.get("/subjects")


def test_a_record_without_a_schema_is_named(proxy, topic):
    proxy.produce(topic, 1)
    instance = proxy.create_instance(topic, **{"format": "avro", "fetch.min.bytes": 1})
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    answer = proxy.get(f"{instance}/records?timeout=2000")
    assert (answer.status, answer.json()["error_code"]) == (422, 42203)
    proxy.request("DELETE", instance)

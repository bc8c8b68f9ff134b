"""Avro, JSON Schema and Protobuf through a registry, in both interfaces."""

import json

import pytest

from klamm.testing import unique
from registry.conftest import running_registry

from .conftest import running_proxy, wait_until

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
        ({"records": [{"value": value}], "value_schema_id": 999_999}, 42207),
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
        assert answer["value"]["schema_version"] == 1, answer
    refusal = proxy.post(path, {"value": {"data": bad}}).json()
    assert refusal["error_code"] == 42203
    assert proxy.post(path, {"key": {"data": 1}}).json()["error_code"] == 42207
    assert proxy.post(path, {"value": {"schema_version": 9, "data": value}}).json()["error_code"] == 400
    strategy = {"subject_name_strategy": "RECORD_NAME", "data": value}
    assert proxy.post(path, {"value": strategy}).json()["error_code"] == 400


def test_the_subject_may_be_the_name_of_the_record(proxy, registry, topic):
    path = f"{proxy.cluster}/topics/{topic}/records"
    value = {"type": "AVRO", "schema": AVRO, "data": {"item": "tea", "note": None}}
    answer = proxy.post(path, {"value": value | {"subject_name_strategy": "TOPIC_RECORD_NAME"}}).json()
    assert answer["value"]["subject"] == f"{topic}-shop.Order"
    assert f"{topic}-shop.Order" in registry.get("/subjects")


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_of_another_subject_is_refused(proxy, registry, topic, kind):
    schema, value, _ = KINDS[kind]
    registered = {"text": schema, "schemaType": TYPES[kind]}
    schema_id = registry.register(f"{topic}-other", **registered)["id"]
    body = {"records": [{"value": value}], "value_schema_id": schema_id}
    refusal = proxy.post(f"/topics/{topic}", body, media_type(kind))
    assert (refusal.status, refusal.json()["error_code"]) == (422, 42207), refusal.body
    assert f"subject = {topic}-value" in refusal.json()["message"]
    path = f"{proxy.cluster}/topics/{topic}/records"
    data = {"schema_id": schema_id, "data": value}
    assert proxy.post(path, {"value": data}).json()["error_code"] == 42207
    assert proxy.post(path, {"value": data | {"subject": f"{topic}-other"}}).json()["error_code"] == 200
    # Registered under the subject of the topic, the same id is taken.
    assert registry.register(f"{topic}-value", **registered)["id"] == schema_id
    assert proxy.post(f"/topics/{topic}", body, media_type(kind)).status == 200
    assert proxy.post(path, {"value": data}).json()["error_code"] == 200


def test_an_id_of_an_aliased_subject_is_taken(proxy, registry, topic):
    schema_id = registry.register(f"{topic}-shared", AVRO)["id"]
    registry.request("PUT", f"/config/{topic}-value", {"alias": f"{topic}-shared"})
    proxy.produce(topic, {"item": "tea", "note": None}, embedded="avro", value_schema_id=schema_id)


def test_rules_that_the_proxy_cannot_execute_refuse_records(proxy, registry, topic):
    rule = {"name": "encryptPII", "kind": "TRANSFORM", "mode": "WRITE", "type": "ENCRYPT", "tags": ["PII"]}
    schema_id = registry.register(f"{topic}-value", AVRO, ruleSet={"domainRules": [rule]})["id"]
    value = {"item": "tea", "note": None}
    body = {"records": [{"value": value}], "value_schema_id": schema_id}
    refusal = proxy.post(f"/topics/{topic}", body, media_type("avro"))
    assert (refusal.status, refusal.json()["error_code"]) == (422, 42207), refusal.body
    assert "rule encryptPII of the type ENCRYPT" in refusal.json()["message"]
    path = f"{proxy.cluster}/topics/{topic}/records"
    assert proxy.post(path, {"value": {"type": "AVRO", "data": value}}).json()["error_code"] == 42207
    assert proxy.post(path, {"value": {"schema": AVRO, "type": "AVRO", "data": value}}).json()["error_code"] == 42207


def test_rules_that_the_proxy_cannot_execute_refuse_reading(proxy, registry, topic):
    rule = {"name": "decryptPII", "kind": "TRANSFORM", "mode": "READ", "type": "ENCRYPT", "tags": ["PII"]}
    schema_id = registry.register(f"{topic}-value", AVRO, ruleSet={"domainRules": [rule]})["id"]
    proxy.produce(topic, {"item": "tea", "note": None}, embedded="avro", value_schema_id=schema_id)
    instance = proxy.create_instance(topic, format="avro")
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})

    def read():
        return proxy.request("GET", f"{instance}/records", Accept=media_type("avro"))

    wait_until(lambda: read().status == 422)
    assert "rule decryptPII" in read().json()["message"]
    proxy.request("DELETE", instance)


def test_the_subject_of_an_id_is_looked_up_once(proxy, topic, monkeypatch):
    value = {"item": "tea", "note": None}
    schema_id = proxy.produce(topic, value, embedded="avro", value_schema=AVRO)["value_schema_id"]
    proxy.produce(topic, value, embedded="avro", value_schema_id=schema_id)
    client = proxy.service.own.schemas.require().registry
    monkeypatch.setattr(client, "_send", _fail)
    proxy.produce(topic, value, embedded="avro", value_schema_id=schema_id)


def _fail(url, body, method):
    raise AssertionError(f"a request to the registry: {method} {url} {body}")


def test_an_incompatible_schema_is_not_published(proxy, topic):
    proxy.produce(topic, {"item": "tea", "note": None}, embedded="avro", value_schema=AVRO)
    other = AVRO.replace('"string"}, {', '"long"}, {')
    assert other != AVRO
    body = {"records": [{"value": {"item": 1, "note": None}}], "value_schema": other}
    refusal = proxy.post(f"/topics/{topic}", body, media_type("avro"))
    assert (refusal.status, refusal.json()["error_code"]) == (422, 42207), refusal.body
    assert "incompatible" in refusal.json()["message"]
    data = {"type": "AVRO", "schema": other, "data": {"item": 1, "note": None}}
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records", {"value": data}).json()
    assert answer["error_code"] == 42207


def test_equal_ids_of_two_contexts_are_two_schemas(proxy, registry, topic):
    """Ids are counted by context, so one id may stand for two schemas."""
    schema_id = registry.register(f"{topic}-value", AVRO)["id"]
    inner = f":.{topic}:text"
    registry.request("PUT", f"/config/{inner}", {"compatibility": "NONE"})
    for number in range(1, schema_id + 1):
        schema = json.dumps({"type": "string", "number": number})
        assert registry.register(inner, schema)["id"] == number
    path = f"{proxy.cluster}/topics/{topic}/records"
    for data in (
        {"subject": inner, "data": "tea"},
        {"schema_id": schema_id, "data": {"item": "tea", "note": None}},
        {"subject": inner, "schema_id": schema_id, "data": "tea"},
        {"subject": inner, "schema_version": schema_id, "data": "tea"},
    ):
        answer = proxy.post(path, {"value": data}).json()
        assert (answer["error_code"], answer["value"]["schema_id"]) == (200, schema_id), (data, answer)


def test_a_record_without_a_schema_is_named(proxy, topic):
    proxy.produce(topic, 1)
    instance = proxy.create_instance(topic, **{"format": "avro", "fetch.min.bytes": 1})
    proxy.post(f"{instance}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    answer = proxy.get(f"{instance}/records?timeout=2000")
    assert (answer.status, answer.json()["error_code"]) == (422, 42203)
    proxy.request("DELETE", instance)


def test_a_schema_that_is_not_valid_fails_its_record_alone(proxy, topic):
    value = {"type": "AVRO", "schema": "{", "subject_name_strategy": "RECORD_NAME", "data": 1}
    bodies = [{"value": {"type": "STRING", "data": "a"}}, {"value": value}, {"value": {"type": "STRING", "data": "b"}}]
    answer = proxy.post(
        f"{proxy.cluster}/topics/{topic}/records", b"".join(json.dumps(body).encode() for body in bodies)
    )
    assert [line["error_code"] for line in answer.lines()] == [200, 42205, 200]

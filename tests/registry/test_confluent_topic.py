"""A topic with the records of Confluent's registry 8, written by their format, over a real broker."""

import base64
import hashlib
import json
import uuid

import pytest

from klamm.client import Producer
from klamm.testing import unique

from .conftest import running_registry
from .test_registry_over_broker import read_topic

USER = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
USER2 = (
    '{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":0}]}'
)
ORDER = '{"type":"record","name":"Order","fields":[{"name":"user","type":"User"}]}'
DOCUMENT = '{"type":"object","properties":{"n":{"type":"integer"}}}'
PERSON = 'syntax = "proto3";\npackage p;\n\nmessage Person {\n  string name = 1;\n}\n'
METADATA = {"tags": {"**.ssn": ["PII"]}, "properties": {"owner": "ann"}, "sensitive": ["owner"]}
RULE = {
    "name": "check", "doc": "a doc", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "tags": ["PII"],
    "params": {"k": "v"}, "expr": "size(message.name) > 0", "onSuccess": "NONE", "onFailure": "DLQ", "disabled": False,
}  # fmt: skip
REFERENCE = {"name": "User", "subject": "users-value", "version": 1}


def make_md5(text, *parts):
    """The digest that Confluent's registry stores; the parts are written out by hand."""
    return hashlib.md5("".join([text, *parts]).encode(), usedforsecurity=False).digest()


PLAIN_MD5 = make_md5(USER)
REFERENCE_MD5 = hashlib.md5(ORDER.encode() + b"Userusers-value\0\0\0\1", usedforsecurity=False).digest()
CONTRACT_MD5 = make_md5(
    USER2,
    "\1" "**.ssnPII" "ownerann" "owner",
    "\1" "check" "a doc" "CONDITION" "WRITE" "CEL" "PII" "kv" "size(message.name) > 0" "NONE" "DLQ",
)  # fmt: skip


def schema_record(subject, version, schema_id, text, md5, *, deleted=False, **more):
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": schema_id, "md5": base64.b64encode(md5).decode()}
    return key, {**value, **more, "schema": text, "deleted": deleted}


def subject_record(keytype, subject, value):
    return {"keytype": keytype, **({"subject": subject} if subject else {}), "magic": 0}, value


RECORDS = [
    ({"keytype": "NOOP", "magic": 0}, None),
    subject_record("CONFIG", None, {"compatibilityLevel": "FULL"}),
    schema_record("users-value", 1, 1, USER, PLAIN_MD5),
    schema_record("users-value", 2, 2, USER2, CONTRACT_MD5, metadata=METADATA, ruleSet={"domainRules": [RULE]}),
    schema_record("orders-value", 1, 3, ORDER, REFERENCE_MD5, references=[REFERENCE]),
    schema_record("docs-value", 1, 4, DOCUMENT, make_md5(DOCUMENT), schemaType="JSON"),
    schema_record("people-value", 1, 5, PERSON, make_md5(PERSON), schemaType="PROTOBUF"),
    ({"keytype": "CONTEXT", "tenant": "default", "context": ".team", "magic": 0},
     {"tenant": "default", "context": ".team"}),
    schema_record(":.team:users-value", 1, 1, DOCUMENT, make_md5(DOCUMENT), schemaType="JSON"),
    subject_record("CONFIG", "users-value",
                   {"subject": "users-value", "validateRules": True, "compatibilityLevel": "NONE"}),
    subject_record("CONFIG", ":.team:", {"subject": ":.team:", "validateFields": True}),
    subject_record("MODE", "docs-value", {"subject": "docs-value", "mode": "READONLY"}),
    # Deleted in two ways: a whole subject, and one version.
    schema_record("gone-value", 1, 6, '"int"', make_md5('"int"')),
    schema_record("gone-value", 2, 7, '"long"', make_md5('"long"')),
    subject_record("DELETE_SUBJECT", "gone-value", {"subject": "gone-value", "version": 2}),
    schema_record("half-value", 1, 8, '"float"', make_md5('"float"'), deleted=True),
    schema_record("half-value", 2, 9, '"double"', make_md5('"double"')),
    # An import begins: what was soft-deleted is forgotten.
    schema_record("clear-value", 1, 10, '"bytes"', make_md5('"bytes"'), deleted=True),
    subject_record("CLEAR_SUBJECT", "clear-value", {"subject": "clear-value"}),
    subject_record("MODE", "clear-value", {"subject": "clear-value", "mode": "IMPORT"}),
    schema_record("dead-value", 1, 11, '"string"', make_md5('"string"')),
    ({"keytype": "SCHEMA", "subject": "dead-value", "version": 1, "magic": 1}, None),
    ({"keytype": "ASSOC", "tenant": "default", "resourceName": "users", "resourceNamespace": "lkc",
      "resourceType": "topic", "associationType": "value", "subject": "users-value", "magic": 0},
     {"tenant": "default", "subject": "users-value", "resourceName": "users", "resourceNamespace": "lkc",
      "resourceId": "lkc:users", "resourceType": "topic", "associationType": "value", "lifecycle": "WEAK",
      "frozen": False}),
    ({"keytype": "FUTURE", "subject": "s", "magic": 0}, {"what": "ever"}),
    ({"keytype": "NOOP", "magic": 0}, None),
]  # fmt: skip


def encode(fields):
    return None if fields is None else json.dumps(fields, separators=(",", ":")).encode()


@pytest.fixture
def registry(klamm_broker):
    topic = unique("_schemas")
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1, 1, configs={"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=klamm_broker.bootstrap) as producer:
        for key, value in RECORDS:
            producer.send(topic, encode(value), key=encode(key))
        producer.flush()
    with running_registry(klamm_broker.bootstrap, topic, unique("schema-registry")) as running:
        yield running


def test_schemas_have_the_ids_and_guids_of_the_topic(registry):
    live = [(key, value) for key, value in RECORDS if key["keytype"] == "SCHEMA" and value and not value["deleted"]]
    for key, value in live:
        if key["subject"] in ("gone-value", "dead-value"):
            continue
        row = registry.get(f"/subjects/{key['subject']}/versions/{key['version']}")
        assert (row["id"], row["schema"]) == (value["id"], value["schema"])
        assert row["guid"] == str(uuid.UUID(bytes=base64.b64decode(value["md5"]))), key
        assert row["schemaType"] == value.get("schemaType", "AVRO")
        for name in ("references", "metadata"):
            assert row.get(name) == value.get(name)
    [rule] = registry.get("/subjects/users-value/versions/2")["ruleSet"]["domainRules"]
    assert RULE.items() >= {name: value for name, value in rule.items() if name != "disabled"}.items()


def test_deleted_schemas_are_hidden_and_their_ids_kept(registry):
    assert registry.get("/subjects") == [
        ":.team:users-value", "docs-value", "half-value", "orders-value", "people-value", "users-value",
    ]  # fmt: skip
    assert registry.get("/subjects/gone-value/versions?deleted=true") == [1, 2]
    assert registry.get("/subjects/half-value/versions") == [2]
    assert registry.get("/schemas/ids/6")["schema"] == '"int"'
    assert registry.get("/subjects/clear-value/versions?deleted=true")["error_code"] == 40401
    assert registry.get("/schemas/ids/11")["error_code"] == 40403


def test_configs_and_modes(registry):
    assert registry.get("/config") == {"compatibilityLevel": "FULL"}
    assert registry.get("/config/users-value") == {"validateRules": True, "compatibilityLevel": "NONE"}
    assert registry.get("/config/:.team:users-value?defaultToGlobal=true") == {
        "compatibilityLevel": "FULL",
        "validateFields": True,
    }
    assert registry.get("/mode/docs-value") == {"mode": "READONLY"}
    assert registry.get("/mode/clear-value") == {"mode": "IMPORT"}
    assert registry.get("/contexts") == [".", ".team"]
    [row] = registry.get("/associations/resources/lkc/users")
    assert (row["subject"], row["lifecycle"]) == ("users-value", "WEAK")


def test_writing_goes_on(klamm_broker, registry):
    assert registry.register("users-value", USER)["version"] == 1
    assert registry.register("new-value", '"boolean"')["id"] == 12
    assert registry.register(":.team:new", USER)["id"] == 2
    # The same content in another subject, with references.
    assert registry.register("more-value", ORDER, references=[REFERENCE])["id"] == 3
    status, refusal = registry.request("POST", "/subjects/docs-value/versions", {"schema": '"int"'})
    assert (status, refusal["error_code"]) == (422, 42205)
    registry.request("PUT", "/config/users-value", {"compatibility": "BACKWARD"})
    registry.request("DELETE", "/subjects/half-value/versions/2")
    written = read_topic(klamm_broker, registry.topic)
    # One key each, as compaction compares them.
    assert [value for key, value in written if key == {"keytype": "CONFIG", "subject": "users-value", "magic": 0}][-1][
        "compatibilityLevel"
    ] == "BACKWARD"
    assert [value["deleted"] for key, value in written if value and key.get("subject") == "half-value"] == [
        True,
        False,
        True,
    ]

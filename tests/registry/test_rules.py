"""Rules of schemas in serializers and deserializers: executed, refused without an executor, or left out."""

import json

import pyarrow as pa
import pytest

from klamm.client.serde import RecordContext
from klamm.model.errors import ConfigError
from klamm.registry.framing import BadRecord
from klamm.registry.rules import RuleNotServed
from klamm.registry.serializers import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    RegistryDeserializer,
)

from .generated_messages import make_classes
from .in_process import InProcessRegistry

USER = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "name", "type": "string", "confluent:tags": ["PII"]}, {"name": "age", "type": "int"}],
    }
)
RENAMED = USER.replace('"name": "name"', '"name": "first"')
ADA = {"name": "Ada", "age": 36}
SUBJECT = "users-value"


def rule(rule_type="ENCRYPT", mode="WRITEREAD", kind="TRANSFORM", name="encryptPII", **more):
    return {"name": name, "kind": kind, "mode": mode, "type": rule_type, "tags": ["PII"], **more}


@pytest.fixture
def registry():
    client = InProcessRegistry()
    yield client
    client.close()


def put(registry, *rules, phase="domainRules", text=USER, subject=SUBJECT, **more):
    answer = registry.put(subject, text, ruleSet={phase: list(rules), **more.pop("rule_set", {})}, **more)
    assert "id" in answer, answer


def newest(registry, **settings):
    """Return a serializer that takes the schema with its rules from the registry."""
    return AvroSerializer(registry, use_latest_version=True, **settings)


def write_plainly(registry):
    """Return the bytes that a client without rules writes."""
    return b"\0\0\0\0\1" + AvroSerializer(registry, USER).serialize("plain", ADA)[5:]


def reverse_name(call, value):
    """Stand in for encryption: the same in both directions."""
    del call
    return {**value, "name": value["name"][::-1]}


def test_nothing_is_written_in_clear_text(registry):
    put(registry, rule())
    with pytest.raises(RuleNotServed, match="rule encryptPII of the type ENCRYPT, which has no executor"):
        newest(registry).serialize("users", ADA)
    with pytest.raises(RuleNotServed):
        AvroSerializer(registry, use_schema_id=1).serialize("users", ADA)
    # Registered again, the version has the rules that it had: the registry's answer tells.
    with pytest.raises(RuleNotServed):
        AvroSerializer(registry, USER).serialize("users", ADA)
    with pytest.raises(RuleNotServed):
        AvroSerializer(registry, USER, auto_register_schemas=False).serialize("users", ADA)


def test_nothing_encrypted_is_taken_for_clear_text(registry):
    put(registry, rule())
    data = write_plainly(registry)
    for deserializer in (
        AvroDeserializer(registry),
        AvroDeserializer(registry, USER),
        AvroDeserializer(registry, use_latest_version=True),
        RegistryDeserializer(registry, as_json=True),
    ):
        with pytest.raises(BadRecord, match="rule encryptPII of the type ENCRYPT"):
            deserializer.deserialize("users", data)


@pytest.mark.parametrize(
    "rules",
    [
        {"domainRules": [rule(disabled=True)]},
        {"domainRules": [rule(onFailure="NONE")]},
        {"domainRules": [rule(onFailure="NONE,ERROR")]},
        {"domainRules": [rule(mode="READ")]},
        {"domainRules": [rule()], "enableAt": "SERVER"},
        {"migrationRules": [rule(mode="UPGRADE")]},
    ],
)
def test_rules_that_do_not_hold_for_writing(registry, rules):
    assert "id" in registry.put(SUBJECT, USER, ruleSet=rules)
    assert newest(registry).serialize("users", ADA) == write_plainly(registry)


@pytest.mark.parametrize("action", ["ERROR", "DLQ", "ERROR,NONE"])
def test_failures_that_a_rule_does_not_allow(registry, action):
    put(registry, rule(onFailure=action))
    with pytest.raises(RuleNotServed):
        newest(registry).serialize("users", ADA)


def test_executors_change_values(registry):
    put(registry, rule())
    calls = []

    def encrypt(call, value):
        calls.append((call.mode, call.subject, call.topic, call.part, call.rule.tags, call.schema.id))
        return reverse_name(call, value)

    executors = {"encrypt": encrypt}
    data = newest(registry, rule_executors=executors).serialize("users", ADA)
    assert b"adA" in data
    assert AvroDeserializer(registry, rule_executors=executors).deserialize("users", data) == ADA
    context = (SUBJECT, "users", "value", ("PII",), 1)
    assert calls == [("WRITE", *context), ("READ", *context)]


def test_rules_are_executed_in_order_and_undone_in_reverse(registry):
    put(registry, rule("FIRST", name="a"), rule("SECOND", name="b"))
    order = []

    def note(call, value):
        order.append((call.mode, call.rule.name))
        return value

    executors = {"FIRST": note, "SECOND": note}
    data = newest(registry, rule_executors=executors).serialize("users", ADA)
    AvroDeserializer(registry, rule_executors=executors).deserialize("users", data)
    assert order == [("WRITE", "a"), ("WRITE", "b"), ("READ", "b"), ("READ", "a")]


def test_a_condition_that_does_not_hold_refuses_the_record(registry):
    put(registry, rule("CEL", "WRITE", "CONDITION", name="adult", expr="message.age >= 18"))
    executors = {"CEL": lambda call, value: call.rule.expr and value["age"] >= 18}
    serializer = newest(registry, rule_executors=executors)
    data = serializer.serialize("users", ADA)
    assert AvroDeserializer(registry).deserialize("users", data) == ADA
    with pytest.raises(BadRecord, match=r"rule adult \(CEL\) failed: message.age >= 18"):
        serializer.serialize("users", {**ADA, "age": 3})


def test_an_executor_that_fails(registry):
    put(registry, rule())
    serializer = newest(registry, rule_executors={"ENCRYPT": lambda call, value: value["no such field"]})
    with pytest.raises(BadRecord, match=r"subject users-value: rule encryptPII \(ENCRYPT\) failed: KeyError"):
        serializer.serialize("users", ADA)
    put(registry, rule(onFailure="NONE"), subject="free-value")
    serializer = newest(registry, rule_executors={"ENCRYPT": lambda call, value: None})
    assert serializer.serialize("free", ADA)[5:] == write_plainly(registry)[5:]


def test_encoding_rules_get_bytes(registry):
    put(registry, rule(), phase="encodingRules")
    with pytest.raises(RuleNotServed):
        newest(registry).serialize("users", ADA)
    executors = {"ENCRYPT": lambda call, value: value[::-1]}
    data = newest(registry, rule_executors=executors).serialize("users", ADA)
    assert data[5:] == write_plainly(registry)[:4:-1]
    assert AvroDeserializer(registry, rule_executors=executors).deserialize("users", data) == ADA
    with pytest.raises(BadRecord, match="encryptPII"):
        AvroDeserializer(registry).deserialize("users", data)


def test_encoding_rules_leave_the_path_of_a_message(registry):
    proto = 'syntax = "proto3"; message Other { int32 n = 1; } message Order { string drink = 1; }'
    put(registry, rule(), phase="encodingRules", text=proto, schemaType="PROTOBUF")
    executors = {"ENCRYPT": lambda call, value: value[::-1]}
    settings = {"use_latest_version": True, "rule_executors": executors}
    data = ProtobufSerializer(registry, message="Order", **settings).serialize("users", {"drink": "tea"})
    assert data[5:] == b"\2\2" + b"\x0a\3tea"[::-1]
    message = ProtobufDeserializer(registry, rule_executors=executors).deserialize("users", data)
    assert message.drink == "tea"


def test_rules_hold_for_messages_of_generated_classes(registry):
    order_class = make_classes()[0]
    serializer = ProtobufSerializer(registry, order_class)
    data = serializer.serialize("users", order_class())
    assert ProtobufDeserializer(registry, order_class).deserialize("users", data) == order_class()
    version = registry.call("GET", f"/subjects/{SUBJECT}/versions/latest")
    put(
        registry,
        rule(),
        text=version["schema"],
        schemaType="PROTOBUF",
        references=version.get("references", []),
    )
    changed = registry.call("GET", f"/subjects/{SUBJECT}/versions/latest")["id"]
    with pytest.raises(RuleNotServed):
        ProtobufSerializer(registry, order_class, use_latest_version=True).serialize("users", order_class())
    deserializer = ProtobufDeserializer(registry, order_class)
    with pytest.raises(BadRecord, match="encryptPII"):
        deserializer.deserialize("users", b"\0" + changed.to_bytes(4, "big") + data[5:])


def test_rules_hold_for_json_schemas(registry):
    put(registry, rule("CEL", kind="CONDITION"), text='{"type": "object"}', schemaType="JSON")
    with pytest.raises(RuleNotServed):
        JsonSchemaSerializer(registry, use_latest_version=True).serialize("users", {})
    executors = {"CEL": lambda call, value: True}
    settings = {"use_latest_version": True, "rule_executors": executors}
    data = JsonSchemaSerializer(registry, **settings).serialize("users", {"a": 1})
    assert JsonSchemaDeserializer(registry, **settings).deserialize("users", data) == {"a": 1}
    with pytest.raises(BadRecord, match="type CEL"):
        JsonSchemaDeserializer(registry).deserialize("users", data)


def test_migration_rules_between_versions(registry):
    registry.call("PUT", f"/config/{SUBJECT}", {"compatibility": "NONE"})
    put(registry, rule(disabled=True))
    data = newest(registry).serialize("users", ADA)
    put(registry, rule("JSONATA", "UPGRADE", name="rename"), phase="migrationRules", text=RENAMED)
    with pytest.raises(BadRecord, match="rule rename of the type JSONATA"):
        AvroDeserializer(registry, use_latest_version=True).deserialize("users", data)
    # Read as what it was written with, a record is not migrated.
    assert AvroDeserializer(registry).deserialize("users", data) == ADA
    executors = {"JSONATA": lambda call, value: {"first": value["name"], "age": value["age"]}}
    reader = AvroDeserializer(registry, use_latest_version=True, rule_executors=executors)
    assert reader.deserialize("users", data) == {"first": "Ada", "age": 36}


def test_typed_columns_are_not_read_under_rules(registry):
    put(registry, rule())
    data = write_plainly(registry)
    context = RecordContext("users", "value", ())
    _, errors = RegistryDeserializer(registry).deserialize_column(context, pa.array([data]), None)
    assert "encryptPII" in errors[0]


def test_executors_are_functions_by_type(registry):
    with pytest.raises(ConfigError, match=r"rule\.executors is a mapping"):
        AvroSerializer(registry, USER, rule_executors={"ENCRYPT": "encrypt"})


def test_an_action_after_success_that_is_not_there(registry):
    put(registry, rule(onSuccess="ERROR"))
    with pytest.raises(BadRecord, match="onSuccess=ERROR"):
        newest(registry, rule_executors={"ENCRYPT": reverse_name}).serialize("users", ADA)

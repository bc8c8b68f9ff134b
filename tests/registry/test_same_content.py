"""The same schema keeps its id and version, however it was sent; what is reserved; what a config answers."""

import base64
import json

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from klamm.registry import schemas

from .small_service import AsgiClient, SmallService
from .small_store import record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, b=True, c=True)

PROTO = """syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
message Order {
  string id = 1;
  optional int32 count = 2;
  map<string, Line> lines = 3;
  oneof buyer { Person person = 4; string company = 5; }
  State state = 6;
  google.protobuf.Timestamp at = 7;
  message Line { int64 cents = 1; .shop.v1.State state = 2; }
}
message Person { string name = 1; }
enum State { NEW = 0; PAID = 1; }
service Orders { rpc Put(Order) returns (stream Order.Line); }
"""
EDITION = """edition = "2023";
package shop.v2;
message Order { Person person = 1; int32 count = 2 [features.field_presence = IMPLICIT]; }
message Person { string name = 1; }
"""


@pytest.fixture
def http():
    client = AsgiClient(SmallService(schemas))
    yield client
    client.close()


def serialize(text):
    """The descriptor that protoc makes of a file, as clients of Python send it."""
    return schemas.parse_schema("PROTOBUF", text, {}, is_new=True).format("serialized")


# The version that a client chose


def test_a_version_that_a_client_chose_leaves_no_metadata_behind(http):
    first = http.register("s", A, version=1).json()
    assert first["metadata"] == {"properties": {"confluent:version": "1"}}
    second = http.register("s", B).json()
    assert "metadata" not in second
    assert "metadata" not in http.get("/subjects/s/versions/2").json()
    assert http.register("t", B).json()["id"] == second["id"]
    assert http.register("s", B).json() == second
    assert http.register("s", A).json()["version"] == 1


def test_other_metadata_is_inherited_without_the_version_that_a_client_chose(http):
    http.register("s", A, version=1, metadata={"properties": {"owner": "ann"}})
    assert http.register("s", B).json()["metadata"] == {"properties": {"owner": "ann"}}
    assert http.register("s", C, version=3).json()["metadata"]["properties"]["confluent:version"] == "3"


def test_content_of_two_ids_is_found_in_the_subjects_of_both(http):
    """An import may give a second id to a schema."""
    for subject, schema_id in (("s", 5), ("t", 9)):
        assert http.put(f"/mode/{subject}", {"mode": "IMPORT"}).status == 200
        assert http.register(subject, A, id=schema_id, version=3).json()["id"] == schema_id
        version = http.post(f"/subjects/{subject}", {"schema": A}).json()
        assert (version["id"], version["version"]) == (schema_id, 3)
        assert http.put(f"/mode/{subject}", {"mode": "READWRITE"}).status == 200
        assert http.register(subject, A).json()["id"] == schema_id


# Descriptor and text


@pytest.mark.parametrize("text", [PROTO, EDITION])
@pytest.mark.parametrize("descriptor_first", [True, False])
def test_a_descriptor_and_its_text_are_one_version(http, text, descriptor_first):
    sent = [serialize(text), text] if descriptor_first else [text, serialize(text)]
    first = http.register("s", sent[0], schemaType="PROTOBUF").json()
    second = http.register("s", sent[1], schemaType="PROTOBUF").json()
    assert (second["id"], second["version"]) == (first["id"], 1)
    looked_up = http.post("/subjects/s", {"schema": sent[1], "schemaType": "PROTOBUF"})
    assert (looked_up.status, looked_up.json()["version"]) == (200, 1)
    # Also in another subject, where nothing but the id is known.
    other = http.register("t", sent[1], schemaType="PROTOBUF").json()
    assert (other["id"], other["guid"]) == (first["id"], first["guid"])
    assert http.get(f"/schemas/ids/{first['id']}/subjects").json() == ["s", "t"]


def test_a_descriptor_with_imports_is_its_text(http):
    http.register("person", 'syntax = "proto3"; package p; message Person { string name = 1; }', schemaType="PROTOBUF")
    text = (
        'syntax = "proto3"; package p; import "person.proto"; message Order { Person person = 1; p.Person other = 2; }'
    )
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="p", syntax="proto3")
    file.dependency.append("person.proto")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(("person", "other"), 1):
        field = message.field.add(name=name, number=number, label=1, type=11, type_name=".p.Person")
        field.json_name = name
    references = [{"name": "person.proto", "subject": "person", "version": 1}]
    by_text = http.register("order", text, schemaType="PROTOBUF", references=references).json()
    sent = base64.b64encode(file.SerializeToString()).decode()
    by_descriptor = http.register("order", sent, schemaType="PROTOBUF", references=references).json()
    assert by_descriptor["version"] == by_text["version"] == 1
    assert http.register("other", sent, schemaType="PROTOBUF", references=references).json()["id"] == by_text["id"]


def test_a_compiled_module_is_found_by_its_text(http):
    sent = base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode()
    first = http.register("s", sent, schemaType="PROTOBUF").json()
    text = http.get("/subjects/s/versions/1").json()["schema"]
    short = text.replace(".google.protobuf.", "")
    assert http.register("s", short, schemaType="PROTOBUF").json()["id"] == first["id"]


def test_another_order_of_fields_is_another_text(http):
    one = 'syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }'
    other = 'syntax = "proto3"; message M { int32 b = 2; int32 a = 1; }'
    assert http.register("s", one, schemaType="PROTOBUF").json()["version"] == 1
    assert http.register("s", other, schemaType="PROTOBUF").json()["version"] == 2
    assert http.post("/subjects/s?normalize=true", {"schema": other, "schemaType": "PROTOBUF"}).json()["version"] == 1


def test_types_of_one_name_in_two_scopes_stay_two_schemas(http):
    template = 'syntax = "proto3"; package p; message T { } message M { message T { int32 a = 1; } %s t = 1; }'
    inner = http.register("s", template % "T", schemaType="PROTOBUF").json()
    outer = http.register("t", template % ".p.T", schemaType="PROTOBUF").json()
    assert inner["id"] != outer["id"]
    assert http.register("u", template % "M.T", schemaType="PROTOBUF").json()["id"] == inner["id"]


# Config


def test_the_config_in_effect_has_own_and_inherited_fields(http):
    http.put("/config", {"compatibility": "FULL", "validateFields": True})
    http.put("/config/s", {"normalize": True})
    assert http.get("/config/s").json() == {"normalize": True}
    in_effect = {"compatibilityLevel": "FULL", "validateFields": True, "normalize": True}
    assert http.get("/config/s?defaultToGlobal=true").json() == in_effect
    http.put("/config/:.c:", {"compatibility": "NONE"})
    http.put("/config/:.c:s", {"validateFields": False})
    in_effect = {"compatibilityLevel": "NONE", "validateFields": False}
    assert http.get("/config/:.c:s?defaultToGlobal=true").json() == in_effect


# Reserved fields

RESERVED = {"properties": {"confluent:reserved": "ssn, tax"}}


def test_a_reserved_field_is_named(http):
    http.put("/config/s", {"validateFields": True})
    refusal = http.register("s", record("R", ssn=False), metadata=RESERVED).json()
    assert refusal["error_code"] == 40901
    assert "the reserved field ssn" in refusal["message"]
    assert "earlier schema" not in refusal["message"]
    assert http.register("s", record("R", a=False), metadata=RESERVED).status == 200
    body = {"schema": record("R", a=False, tax=True), "metadata": RESERVED}
    for path in ("versions", "versions/latest"):
        checked = http.post(f"/compatibility/subjects/s/{path}?verbose=true", body).json()
        assert checked["is_compatible"] is False
        assert "the reserved field tax" in checked["messages"][0]
    # As with other checks: force registers it.
    assert http.post("/subjects/s/versions?force=true", body).status == 200


def test_a_reserved_name_stays_reserved(http):
    http.put("/config/s", {"validateFields": True})
    http.register("s", A, metadata=RESERVED)
    fewer = {"properties": {"confluent:reserved": "ssn"}}
    refusal = http.register("s", B, metadata=fewer).json()
    assert (refusal["error_code"], "reserved field tax removed" in refusal["message"]) == (40901, True)
    assert http.register("s", B).json()["metadata"] == RESERVED


def test_only_fields_at_the_top_are_reserved_as_in_confluents_registry(http):
    http.put("/config/s", {"validateFields": True})
    inner = {"name": "inner", "type": json.loads(record("Inner", ssn=False))}
    text = json.dumps({"type": "record", "name": "R", "fields": [inner]})
    assert http.register("s", text, metadata=RESERVED).status == 200


def test_names_with_the_prefix_of_the_registry_are_no_schema(http):
    http.put("/config/s", {"validateFields": True})
    text = '{"type":"object","properties":{"$$x":{"type":"string"}}}'
    refusal = http.register("s", text, schemaType="JSON").json()
    assert (refusal["error_code"], "$$x" in refusal["message"]) == (42201, True)


def test_new_schemas_are_validated_unless_the_config_says_otherwise(http):
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}'
    assert http.register("s", text).json()["error_code"] == 42201
    assert http.post("/compatibility/subjects/s/versions", {"schema": text}).json()["error_code"] == 42201
    http.put("/config/s", {"validateNewSchemas": False})
    assert http.register("s", text).status == 200
    assert http.post("/compatibility/subjects/s/versions", {"schema": text}).json() == {"is_compatible": True}

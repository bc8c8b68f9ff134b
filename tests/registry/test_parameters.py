"""Parameters of the HTTP interface, each with what it changes."""

import base64
import json

import pytest
from google.protobuf import descriptor_pb2

from klamm.registry import schemas

from .small_service import AsgiClient, SmallService
from .small_store import record

A, B = record("R", a=False), record("R", a=False, b=True)
INNER = record("Inner", x=False)
OUTER = '{"type":"record","name":"Outer","fields":[{"name":"inner","type":"Inner"}]}'
PERSON = 'syntax = "proto3";\npackage p;\n\nmessage Person {\n  string name = 1;\n}\n'
ORDER = 'syntax = "proto3";\npackage p;\n\nimport "person.proto";\n\nmessage Order {\n  Person person = 1;\n}\n'


@pytest.fixture
def http():
    client = AsgiClient(SmallService(schemas))
    yield client
    client.close()


@pytest.fixture
def avro(http):
    """A schema with a reference, in the context `.c`."""
    http.register(":.c:inner", INNER)
    references = [{"name": "Inner", "subject": "inner", "version": 1}]
    assert http.register(":.c:outer", OUTER, references=references).json()["id"] == 2
    return http


@pytest.fixture
def protobuf(http):
    http.register("person", PERSON, schemaType="PROTOBUF")
    references = [{"name": "person.proto", "subject": "person", "version": 1}]
    assert http.register("order", ORDER, schemaType="PROTOBUF", references=references).json()["id"] == 2
    return http


# ?format and ?referenceFormat


def test_resolved_writes_references_out_wherever_a_schema_is_read(avro):
    resolved = json.loads(avro.get("/subjects/:.c:outer/versions/1?format=resolved").json()["schema"])
    assert resolved["fields"][0]["type"] == json.loads(INNER)
    for path in ("/subjects/:.c:outer/versions/1/schema", "/schemas/ids/2/schema"):
        assert json.loads(avro.get(f"{path}?format=resolved&subject=:.c:").body) == resolved
    assert json.loads(avro.get("/schemas/ids/2?subject=:.c:&format=resolved").json()["schema"]) == resolved
    guid = avro.get("/subjects/:.c:outer/versions/1").json()["guid"]
    assert json.loads(avro.get(f"/schemas/guids/{guid}?format=resolved").json()["schema"]) == resolved
    rows = avro.get("/schemas?subjectPrefix=:.c:outer&format=resolved").json()
    assert [json.loads(row["schema"]) for row in rows] == [resolved]
    body = {"schema": OUTER, "references": [{"name": "Inner", "subject": "inner", "version": 1}]}
    assert json.loads(avro.post("/subjects/:.c:outer?format=resolved", body).json()["schema"]) == resolved
    # An unknown form is the stored text, as in Confluent's registry.
    assert avro.get("/subjects/:.c:outer/versions/1?format=other").json()["schema"] == OUTER


def test_serialized_is_the_descriptor(protobuf):
    answer = protobuf.get("/subjects/order/versions/1?format=serialized").json()
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(answer["schema"]))
    assert (file.package, list(file.dependency)) == ("p", ["person.proto"])
    assert file.message_type[0].field[0].type_name == ".p.Person"
    assert protobuf.get("/schemas/ids/2?format=serialized").json()["schema"] == answer["schema"]
    assert protobuf.get("/schemas/ids/2/schema?format=serialized").body.decode() == answer["schema"]


def test_a_registration_answers_the_schema_in_the_form_that_it_asks_for(http):
    body = {"schema": PERSON, "schemaType": "PROTOBUF"}
    assert "schema" not in http.post("/subjects/s/versions", body).json()
    answer = http.post("/subjects/s/versions?format=serialized", body).json()
    assert descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(answer["schema"])).package == "p"
    assert (answer["id"], answer["version"]) == (1, 1)


def test_references_are_answered_with_their_context_if_asked_for(avro):
    for path in ("/subjects/:.c:outer/versions/1", "/schemas/ids/2?subject=:.c:"):
        assert avro.get(path).json()["references"][0]["subject"] == "inner"
        joined = f"{path}{'&' if '?' in path else '?'}referenceFormat=qualified"
        assert avro.get(joined).json()["references"] == [{"name": "Inner", "subject": ":.c:inner", "version": 1}]


# ?force


def test_force_registers_what_is_incompatible(http):
    http.register("s", A)
    changed = record("R", other=False)
    assert http.register("s", changed).error_code == 40901
    assert http.post("/subjects/s/versions?force=true", {"schema": changed}).json()["version"] == 2
    # Not what is no schema.
    assert http.post("/subjects/s/versions?force=true", {"schema": "{"}).error_code == 42201


def test_force_enters_import_mode_over_existing_subjects(http):
    http.register("s", A)
    assert http.put("/mode/s", {"mode": "IMPORT"}).error_code == 42205
    assert http.put("/mode/s?force=true", {"mode": "IMPORT"}).json() == {"mode": "IMPORT"}


# Lists


def test_aliases_are_listed_by_their_targets(http):
    http.register("target", A)
    http.register("other", B)
    http.put("/config/also", {"alias": "target"})
    assert http.get("/schemas?subjectPrefix=also").json() == []
    assert [row["subject"] for row in http.get("/schemas?subjectPrefix=also&aliases=true").json()] == ["target"]


def test_a_list_of_schemas_has_at_most_a_thousand(http):
    for number in range(1003):
        http.service.state.replay(
            json.dumps({"keytype": "SCHEMA", "subject": f"s{number:04}", "version": 1, "magic": 1}).encode(),
            json.dumps({"subject": f"s{number:04}", "version": 1, "id": 1, "schema": A, "deleted": False}).encode(),
        )
    assert len(http.get("/schemas").json()) == 1000
    assert len(http.get("/schemas?limit=5000").json()) == 1000
    assert len(http.get("/schemas?limit=-1").json()) == 1000
    assert [row["subject"] for row in http.get("/schemas?offset=1001").json()] == ["s1001", "s1002"]
    # Names are short: all of them are listed.
    assert len(http.get("/subjects").json()) == 1003


def test_contexts_are_listed_by_prefix_and_page(http):
    for context in ("a1", "a2", "b1"):
        http.register(f":.{context}:s", A)
    assert http.get("/contexts").json() == [".", ".a1", ".a2", ".b1"]
    assert http.get("/contexts?contextPrefix=.a").json() == [".a1", ".a2"]
    assert http.get("/contexts?offset=1&limit=2").json() == [".a1", ".a2"]
    assert http.get("/contexts?contextPrefix=.a&offset=1").json() == [".a2"]


# Scopes of config and mode


def test_the_config_of_all_contexts_is_below_every_other(http):
    http.put("/config/:.__GLOBAL:", {"compatibility": "NONE", "normalize": True})
    assert http.get("/config/:.__GLOBAL:").json() == {"compatibilityLevel": "NONE", "normalize": True}
    for subject in ("s", ":.c:s"):
        in_effect = {"compatibilityLevel": "NONE", "normalize": True}
        assert http.get(f"/config/{subject}?defaultToGlobal=true").json() == in_effect
    http.put("/config", {"compatibility": "FULL"})
    in_effect = {"compatibilityLevel": "FULL", "normalize": True}
    assert http.get("/config/s?defaultToGlobal=true").json() == in_effect
    assert http.register(":.__GLOBAL:s", A).error_code == 42208
    assert http.delete("/config/:.__GLOBAL:").json() == {"compatibilityLevel": "NONE", "normalize": True}
    assert http.get("/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}


def test_modes_of_a_whole_context_are_deleted_together(http):
    for scope in (":.c:", ":.c:s", ":.c:t", "u"):
        http.put(f"/mode/{scope}", {"mode": "READONLY"})
    assert http.delete("/mode/:.c:").json() == {"mode": "READONLY"}
    assert http.get("/mode/:.c:s").json() == {"mode": "READONLY"}
    assert http.delete("/mode/:.c:").error_code == 40401
    assert http.delete("/mode/:.c:?recursive=true").json() == {"mode": "READWRITE"}
    assert http.get("/mode/:.c:s").error_code == 40409
    assert http.get("/mode/u").json() == {"mode": "READONLY"}
    assert http.delete("/mode?recursive=true").json() == {"mode": "READWRITE"}
    assert http.get("/mode/u").error_code == 40409


def test_forward_is_a_mode_of_the_whole_registry_in_which_ids_are_given(http):
    assert http.put("/mode/s", {"mode": "FORWARD"}).error_code == 42205
    assert http.put("/mode", {"mode": "forward"}).json() == {"mode": "FORWARD"}
    assert http.register("s", A).error_code == 42205
    assert http.register("s", A, id=7, version=3).json()["id"] == 7
    assert http.get("/subjects/s/versions").json() == [3]


# The registry itself


def test_what_tools_ask_about_the_registry(http):
    assert http.get("/v1/metadata/deployment").json() == {"attributes": []}
    scope = {"path": [], "clusters": {"kafka-cluster": "cluster", "schema-registry-cluster": "schema-registry"}}
    assert http.get("/v1/metadata/id").json()["scope"] == scope
    assert set(http.get("/v1/metadata/version").json()) == {"version", "commitId"}


def test_a_write_that_is_not_confirmed_in_time_is_not_known(http, monkeypatch):
    monkeypatch.setattr("klamm.registry.service.asyncio.wait_for", fail_in_time)
    answer = http.register("s", A)
    assert (answer.status, answer.error_code) == (500, 50002)
    assert "repeat the request" in answer.json()["message"]
    monkeypatch.undo()
    # It was written all the same; repeating it is safe.
    assert http.register("s", A).json()["id"] == 1


async def fail_in_time(awaitable, _):
    await awaitable
    raise TimeoutError

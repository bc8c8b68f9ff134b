"""The HTTP interface in this process: paths, parameters, answers, error codes, media types, limits."""

import asyncio
import functools
import io
import json
import socket
import threading

import pytest

from klamm import telemetry
from klamm.client.errors import KafkaTimeoutError, ProducerFencedError
from klamm.http.messages import HttpResponse
from klamm.model.errors import ErrorCode
from klamm.registry.app.changes import Changes
from klamm.registry.store.deletion import decide_delete_subject
from klamm.registry.store.election import RegistryIdentity
from klamm.registry.store.requests import parse_schema_request
from klamm.registry.store.subjects import parse_subject

from .small_service import HERE, AsgiClient, SmallService
from .small_store import record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, c=False)
V1 = "application/vnd.schemaregistry.v1+json"
LEVELS_MESSAGE = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive,"
    " forward_transitive, and full_transitive"
)


@pytest.fixture
def http():
    client = AsgiClient(SmallService(), body_bytes_max=200_000)
    yield client
    client.close()


def test_a_schema_is_registered_and_read_in_every_way(http):
    first = http.register("s", A)
    assert (first.status, first.headers["content-type"]) == (200, V1)
    guid = first.json()["guid"]
    assert first.json() == {"version": 1, "id": 1, "guid": guid, "ts": 1700000000000}
    assert http.register("s", A).json()["id"] == 1
    assert http.register("s", B).json()["version"] == 2
    assert http.get("/subjects").json() == ["s"]
    assert http.get("/subjects/s/versions").json() == [1, 2]
    latest = http.get("/subjects/s/versions/latest").json()
    assert (latest["subject"], latest["version"], latest["id"], latest["schema"]) == ("s", 2, 2, B)
    assert http.get("/subjects/s/versions/-1").json() == latest
    assert http.get("/subjects/s/versions/1/schema").body.decode() == A
    assert http.get("/schemas/ids/1").json() == {"guid": guid, "schemaType": "AVRO", "schema": A, "ts": 1700000000000}
    assert http.get("/schemas/ids/1?fetchMaxId=true").json()["maxId"] == 2
    by_subject = http.get("/schemas/ids/1?subject=s").json()
    assert (by_subject["subject"], by_subject["version"]) == ("s", 1)
    assert http.get("/schemas/ids/1/schema").body.decode() == A
    assert http.get("/schemas/ids/1/subjects").json() == ["s"]
    assert http.get("/schemas/ids/1?includeSubjects=true").json()["subjects"] == ["s"]
    assert http.get("/schemas/ids/2/versions").json() == [{"subject": "s", "version": 2}]
    assert http.get(f"/schemas/guids/{guid}").json()["schema"] == A
    assert http.get(f"/schemas/guids/{guid}/ids").json() == [{"context": ".", "id": 1}]
    assert [row["version"] for row in http.get("/schemas").json()] == [1, 2]
    assert [row["version"] for row in http.get("/schemas?latestOnly=true").json()] == [2]
    assert set(http.get("/schemas/types").json()) == {"AVRO", "JSON", "PROTOBUF"}
    assert http.post("/subjects/s", {"schema": A}).json()["version"] == 1


def replay_shared_id(http):
    """Records of another registry: two versions with one text and one id, the second one with metadata."""
    for number, more in ((1, {}), (2, {"metadata": {"properties": {"owner": "x"}}})):
        key = {"keytype": "SCHEMA", "subject": "s", "version": number, "magic": 1}
        value = {"subject": "s", "version": number, "id": 1, "schema": A, "deleted": False} | more
        assert http.service.state.replay(json.dumps(key).encode(), json.dumps(value).encode()) is None
    return [http.get(f"/subjects/s/versions/{number}").json()["guid"] for number in (1, 2)]


def test_versions_with_one_id_and_other_metadata_have_guids_of_their_own(http):
    plain, described = replay_shared_id(http)
    assert plain != described
    assert "metadata" not in http.get(f"/schemas/guids/{plain}").json()
    assert http.get(f"/schemas/guids/{described}").json()["metadata"] == {"properties": {"owner": "x"}}
    assert http.get(f"/schemas/guids/{described}/ids").json() == [{"context": ".", "id": 1}]


@pytest.mark.parametrize("first", [1, 2])
def test_a_guid_goes_with_the_last_version_that_has_it(http, first):
    guids = dict(enumerate(replay_shared_id(http), 1))
    for number in (first, 3 - first):
        assert http.delete(f"/subjects/s/versions/{number}").status == 200
        assert http.delete(f"/subjects/s/versions/{number}?permanent=true").status == 200
        assert http.get(f"/schemas/guids/{guids.pop(number)}").error_code == 40403
        for guid in guids.values():
            assert http.get(f"/schemas/guids/{guid}").json()["guid"] == guid
    assert http.get("/schemas/ids/1").error_code == 40403
    # The id is not given again, also not to the same schema.
    assert http.register("t", A).json()["id"] == 2


def test_subjects_arrive_percent_encoded(http):
    http.register("a%2Fb%20%C3%BC%3A%25", A)
    assert http.get("/subjects").json() == ["a/b ü:%"]
    assert http.get("/subjects/a%2Fb%20%C3%BC%3A%25/versions").json() == [1]
    assert http.register("", B).json()["version"] == 1
    assert http.get("/subjects").json() == ["", "a/b ü:%"]


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("GET", "/subjects/x/versions", None, 40401),
        ("GET", "/subjects/x/versions/1", None, 40401),
        ("GET", "/subjects/s/versions/9", None, 40402),
        ("GET", "/subjects/s/versions/0", None, 42202),
        ("GET", "/subjects/s/versions/9/schema", None, 40402),
        ("GET", "/subjects/s/versions/9/referencedby", None, 40402),
        ("GET", "/subjects/s/metadata?key=a&value=b", None, 40403),
        ("GET", "/schemas/ids/99", None, 40403),
        ("GET", "/schemas/ids/-1", None, 40403),
        ("GET", "/schemas/ids/x", None, 404),
        ("GET", "/schemas/ids/x/schema", None, 404),
        ("GET", "/schemas/ids/2147483648", None, 404),
        ("GET", f"/schemas/ids/{'9' * 5000}", None, 404),
        ("GET", "/schemas/guids/x", None, 40403),
        ("GET", "/dek-registry/v1/keks", None, 404),
        ("GET", "/exporters", None, 404),
        ("GET", "/config/s", None, 40408),
        ("GET", "/mode/s", None, 40409),
        ("DELETE", "/config/s", None, 40401),
        ("DELETE", "/mode/s", None, 40401),
        ("DELETE", "/subjects/x", None, 40401),
        ("DELETE", "/subjects/s?permanent=true", None, 40405),
        ("DELETE", "/subjects/s/versions/9", None, 40402),
        ("DELETE", "/subjects/s/versions/x", None, 42202),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, 40407),
        ("DELETE", "/contexts/.c", None, 404),
        ("POST", "/subjects/x", {"schema": A}, 40401),
        ("POST", "/subjects/s", {"schema": B}, 40403),
        ("POST", "/subjects/s", {"schema": "{"}, 42201),
        ("POST", "/subjects/s", {"schema": ""}, 40403),
        ("POST", "/subjects/s", {"schema": " \n"}, 40403),
        ("POST", "/subjects/s", {}, 40403),
        ("POST", "/subjects/x", {}, 40401),
        ("POST", "/subjects/s/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/s/versions", {"schema": 1}, 42201),
        ("POST", "/subjects/s/versions", {"schema": A, "references": [{"name": "x"}]}, 42201),
        ("POST", "/subjects/s/versions", {"schema": C}, 40901),
        ("POST", "/subjects/s/versions", {"schema": B, "id": 9}, 42205),
        ("POST", "/subjects/s/versions", {"schema": B, "ruleSet": {"domainRules": [{}]}}, 42210),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": A}, 42208),
        ("POST", "/subjects/new/versions", {"schema": json.dumps({"doc": "x" * 120_000})}, 42209),
        ("POST", "/subjects/new/versions", b"x" * 300_000, 413),
        ("POST", "/subjects/s/versions", b"{", 400),
        ("POST", "/subjects/s/versions", b"[]", 400),
        ("PUT", "/config", {"compatibility": "x"}, 42203),
        ("PUT", "/mode", {"mode": "x"}, 42204),
        ("PUT", "/mode", {"mode": "IMPORT"}, 42205),
        ("POST", "/compatibility/subjects/s/versions/9", {"schema": B}, 40402),
        ("POST", "/compatibility/subjects/s/versions/0", {"schema": B}, 42202),
        ("POST", "/compatibility/subjects/s/versions/1", {"schema": "{"}, 42201),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/subjects", None, 405),
        ("GET", "/contexts/a%3Ab/subjects", None, 400),
        ("GET", "/subjects?limit=x", None, 400),
    ],
)
def test_refusals_have_confluents_codes(http, method, target, body, code):
    http.register("s", A)
    answer = http(method, target, body)
    assert answer.error_code == code
    assert answer.status == int(str(code)[:3])
    assert answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "target", "body", "message"),
    [
        (
            "PUT",
            "/config",
            {"compatibility": "x"},
            LEVELS_MESSAGE,
        ),
        (
            "DELETE",
            "/subjects/gone/versions/1",
            None,
            "Subject 'gone' Version 1 was soft deleted.Set permanent=true to delete permanently",
        ),
        ("DELETE", "/subjects/gone", None, "Subject 'gone' was soft deleted.Set permanent=true to delete permanently"),
        ("POST", "/subjects/new/versions", {}, "Empty schema"),
        ("POST", "/subjects/new/versions", {"schema": " "}, "Empty schema"),
        ("POST", "/compatibility/subjects/s/versions/1", {}, "Empty schema"),
    ],
)
def test_refusals_have_confluents_texts(http, method, target, body, message):
    http.register("s", A)
    http.register("gone", A)
    http.delete("/subjects/gone")
    assert http(method, target, body).json()["message"] == message


def test_deletes(http):
    http.register("s", A)
    http.register("s", B)
    assert http.delete("/subjects/s/versions/latest").json() == 2
    assert http.delete("/subjects/s/versions/2").error_code == 40406
    assert http.get("/subjects/s/versions?deleted=true").json() == [1, 2]
    assert http.get("/subjects/s/versions?deletedOnly=true").json() == [2]
    assert http.get("/subjects/s/versions?deletedAsNegative=true").json() == [1, -2]
    assert http.get("/subjects/s/versions/2?deleted=true").json()["deleted"] is True
    assert http.delete("/subjects/s").json() == [1]
    assert http.delete("/subjects/s").error_code == 40404
    assert http.get("/subjects").json() == []
    assert http.get("/subjects?deleted=true").json() == ["s"]
    assert http.get("/schemas/ids/1").status == 200
    assert http.delete("/subjects/s/versions/2?permanent=true").json() == 2
    assert http.delete("/subjects/s?permanent=true").json() == [1]
    assert http.get("/subjects?deleted=true").json() == []
    assert http.get("/schemas/ids/1").error_code == 40403


def test_references(http):
    http.register("inner", A)
    http.register("outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])
    assert http.get("/subjects/inner/versions/1/referencedby").json() == [2]
    assert http.get("/schemas/ids/2").json()["references"] == [{"name": "R", "subject": "inner", "version": 1}]
    assert http.delete("/subjects/inner").error_code == 42206


def test_pages(http):
    for number in range(5):
        http.register(f"s{number}", A)
    assert http.get("/subjects?offset=1&limit=2").json() == ["s1", "s2"]
    assert http.get("/subjects?limit=0").json() == [f"s{number}" for number in range(5)]
    assert http.get("/subjects?subjectPrefix=s3").json() == ["s3"]
    assert len(http.get("/schemas?offset=3").json()) == 2


def test_compatibility_is_checked_without_registering(http):
    check = "/compatibility/subjects/s/versions"
    assert http.post(f"{check}/latest", {"schema": A}).json() == {"is_compatible": True}
    http.register("s", A)
    assert http.post(f"{check}/latest", {"schema": B}).json() == {"is_compatible": True}
    assert http.post(check, {"schema": C}).json() == {"is_compatible": False}
    verbose = http.post(f"{check}/1?verbose=true", {"schema": C}).json()
    assert verbose["messages"][0] == "READER_FIELD_MISSING_DEFAULT_VALUE c"
    assert http.post(f"{check}/1?verbose=true", {"schema": "{"}).json()["is_compatible"] is False
    assert http.get("/subjects/s/versions").json() == [1]


def test_configs(http):
    assert http.get("/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert http.put("/config", {"compatibility": "full"}).json() == {"compatibility": "FULL"}
    assert http.get("/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}
    http.put("/config/s", {"compatibility": "NONE", "normalize": True, "unknown": 1})
    assert http.get("/config/s").json() == {"compatibilityLevel": "NONE", "normalize": True}
    http.put("/config/s", {"normalize": None})
    assert http.get("/config/s").json() == {"compatibilityLevel": "NONE"}
    assert http.delete("/config/s").json() == {"compatibilityLevel": "NONE"}
    assert http.delete("/config").json() == {"compatibilityLevel": "FULL"}
    assert http.get("/config").json() == {"compatibilityLevel": "BACKWARD"}


def test_modes(http):
    assert http.get("/mode").json() == {"mode": "READWRITE"}
    assert http.put("/mode/s", {"mode": "IMPORT"}).json() == {"mode": "IMPORT"}
    assert http.register("s", A, id=50, version=4).json()["id"] == 50
    assert http.get("/mode/s").json() == {"mode": "IMPORT"}
    assert http.delete("/mode/s").json() == {"mode": "IMPORT"}
    assert http.get("/mode/s?defaultToGlobal=true").json() == {"mode": "READWRITE"}
    assert http.put("/mode", {"mode": "READONLY"}).status == 200
    assert http.register("s", B).error_code == 42205
    assert http.delete("/mode").json() == {"mode": "READONLY"}
    assert http.put("/mode?force=true", {"mode": "IMPORT"}).status == 200


def test_contexts_in_subjects_and_in_front_of_paths(http):
    http.register("s", A)
    assert http.post("/contexts/.c/subjects/s/versions", {"schema": B}).json()["id"] == 1
    assert http.get("/contexts").json() == [".", ".c"]
    assert http.get("/subjects").json() == [":.c:s", "s"]
    assert http.get("/contexts/.c/subjects").json() == [":.c:s"]
    assert http.get("/contexts/.c/schemas/ids/1").json()["schema"] == B
    assert http.get("/schemas/ids/1?subject=:.c:").json()["schema"] == B
    assert http.get("/subjects/:.c:s/versions/1").json()["schema"] == B
    http.put("/contexts/.c/config", {"compatibility": "NONE"})
    assert http.get("/config/:.c:").json() == {"compatibilityLevel": "NONE"}
    assert http.get("/config/:.c:s?defaultToGlobal=true").json() == {"compatibilityLevel": "NONE"}
    assert http.delete("/contexts/.c").error_code == 42211
    http.delete("/subjects/:.c:s")
    http.delete("/subjects/:.c:s?permanent=true")
    gone = http.delete("/contexts/.c")
    assert (gone.status, gone.body) == (204, b"")
    assert http.get("/contexts").json() == ["."]


def test_tags_and_metadata(http):
    http.register("s", A, metadata={"properties": {"owner": "x"}})
    entity = {"entityPath": "R", "entityType": "sr_record"}
    answer = http.post("/subjects/s/versions/1/tags", {"tagsToAdd": [{"schemaEntity": entity, "tags": ["PII"]}]})
    assert answer.json()["version"] == 2
    tagged = http.get("/subjects/s/versions/2?findTags=true").json()
    assert tagged["schemaTags"] == [{"schemaEntity": entity, "tags": ["PII"]}]
    assert tagged["metadata"] == {"properties": {"owner": "x"}}
    assert http.get("/subjects/s/metadata?key=owner&value=x").json()["version"] == 2
    rule = {"name": "r", "type": "CEL", "kind": "CONDITION", "mode": "WRITE"}
    third = http.post("/subjects/s/versions/2/tags", {"rulesToMerge": {"domainRules": [rule]}}).json()
    assert third["ruleSet"]["domainRules"][0]["name"] == "r"
    assert [row["version"] for row in http.get("/schemas?ruleType=CEL").json()] == [3]


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("*/*", V1),
        ("*", V1),
        ("text/html, *; q=.2", V1),
        ("application/json", "application/json"),
        ("application/vnd.schemaregistry+json", "application/vnd.schemaregistry+json"),
        ("text/html;q=1, application/json;q=0.5, application/vnd.schemaregistry.v1+json;q=0.9", V1),
        ("application/*", V1),
        ("text/html", None),
        ("application/json;q=0", None),
    ],
)
def test_the_client_chooses_the_media_type(http, accept, given):
    answer = http.get("/subjects", accept=accept)
    assert (answer.status, answer.headers["content-type"]) == ((200, given) if given else (406, V1))


def test_bodies_of_other_media_types_are_refused(http):
    for content_type, status in (("application/octet-stream", 200), ("application/json", 200), ("text/plain", 415)):
        answer = http.post("/subjects/s/versions", {"schema": A}, content_type=content_type)
        assert answer.status == status


def test_head_is_get_without_a_body(http):
    answer = http("HEAD", "/subjects")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "2")


def test_who_answers(http):
    assert http.get("/").json() == {}
    assert http.get("/v1/metadata/id").json()["scope"]["clusters"] == {
        "kafka-cluster": "cluster", "schema-registry-cluster": "schema-registry"
    }  # fmt: skip
    assert http.get("/v1/metadata/version").json()["version"]
    assert http.get("/health/live").status == 200
    ready = http.get("/health/ready")
    assert (ready.status, ready.json()["leading"]) == (200, True)
    http.run(http.service.follow(None, own=False))
    assert http.get("/_health").status == 503
    assert http.get("/master_available").json() == {"master_available": False}


def test_metrics_count_requests_by_route(http):
    http.register("one", A)
    http.register("two", A)
    http.get("/subjects/none/versions")
    text = http.get("/metrics").body.decode()
    route = 'method="POST",route="/subjects/{subject}/versions"'
    assert f'klamm_registry_http_requests_total{{{route},status="200"}} 2' in text
    assert f'klamm_registry_http_request_duration_seconds_bucket{{{route},le="+Inf"}} 2' in text
    assert 'status="404"} 1' in text
    assert "klamm_registry_schemas 1\n" in text
    assert "klamm_registry_subjects 2\n" in text
    assert "klamm_registry_leader 1\n" in text


def test_every_metric_is_read_by_prometheus(http):
    from prometheus_client.parser import text_string_to_metric_families

    http.register("s", A)
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").body.decode())}
    assert families["klamm_registry_writes"].samples[0].value == 1
    assert families["klamm_registry_http_request_duration_seconds"].type == "histogram"


def test_requests_are_logged_with_fields(http):
    lines = io.StringIO()
    telemetry.configure(telemetry.Level.INFO, lines)
    try:
        http.get("/subjects/none/versions/1")
        http.get("/health/live")
    finally:
        telemetry.configure()
    (line,) = lines.getvalue().splitlines()
    assert "request method=GET path=/subjects/none/versions/1 status=404 ms=" in line


# Writes


def test_without_a_leader_changes_fail_and_reads_go_on(http, monkeypatch):
    monkeypatch.setattr("klamm.registry.app.changes._LEADER_WAIT_S", 0.01)
    http.register("s", A)
    http.run(http.service.follow(None, own=False))
    assert http.register("s", B).error_code == 50004
    assert http.register("s", A).json()["id"] == 1
    assert http.get("/subjects").json() == ["s"]


def test_a_forwarded_request_is_not_forwarded_again(http):
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 2), own=False))
    answer = http.post("/subjects/s/versions", {"schema": A}, x_forward="true")
    assert answer.error_code == 50004


def elect_when_called(http, monkeypatch, owner, name):
    """Make this registry the leader when a request calls a method, which it waits in."""
    method, elections = getattr(owner, name), []

    def call(*args, **options):
        elections.append(asyncio.ensure_future(http.service.follow(HERE, own=True)))
        return method(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return elections


def test_a_change_waits_for_the_successor_of_a_dead_leader(http, monkeypatch):
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 1), own=False))
    elections = elect_when_called(http, monkeypatch, http.service.election, "check_now")
    assert http.register("s", A).json()["id"] == 1
    assert len(elections) == 1


def test_a_change_waits_if_its_leader_leads_no_more(http, monkeypatch):
    body = json.dumps({"error_code": 50004, "message": "no leader"}).encode()
    monkeypatch.setattr(Changes, "_send", lambda *_: HttpResponse(500, body))
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 2), own=False))
    elections = elect_when_called(http, monkeypatch, http.service.election, "check_now")
    assert http.register("s", A).json()["id"] == 1
    assert len(elections) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"error_code":50001}'])
def test_other_errors_of_the_leader_are_answers(http, monkeypatch, body):
    monkeypatch.setattr(Changes, "_send", lambda *_: HttpResponse(500, body))
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 2), own=False))
    answer = http.register("s", A)
    assert (answer.status, answer.body) == (500, body)


def test_a_forwarded_change_waits_for_the_end_of_the_election(http, monkeypatch):
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 2), own=False))
    http.run(http.service.stop_writing())
    elections = elect_when_called(http, monkeypatch, http.service, "wait_leader")
    assert http.post("/subjects/s/versions", {"schema": A}, x_forward="true").json()["id"] == 1
    assert len(elections) == 1


def test_a_leader_that_is_gone_is_reported(http, monkeypatch):
    monkeypatch.setattr("klamm.registry.app.changes._LEADER_WAIT_S", 0.01)
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 1), own=False))
    assert http.register("s", A).error_code == 50004
    http.run(http.service.follow(RegistryIdentity("not.a.host.invalid", 1), own=False))
    assert http.register("s", A).error_code == 50003


def test_a_leader_that_dies_within_its_answer_is_reported(http):
    def answer_half(listening):
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        leader = threading.Thread(target=answer_half, args=(listening,))
        leader.start()
        http.run(http.service.follow(RegistryIdentity(*listening.getsockname()), own=False))
        assert http.register("s", A).error_code == 50003
        leader.join()


def test_a_failed_write_makes_the_registry_resign(http, monkeypatch):
    monkeypatch.setattr("klamm.registry.app.changes._LEADER_WAIT_S", 0.01)
    http.service.log.failure = KafkaTimeoutError("no success")
    assert http.register("s", A).error_code == 50001
    assert not http.service.is_leading()
    assert http.service.election._rejoin
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 1), own=True))
    http.service.log.failure = ProducerFencedError(ErrorCode.PRODUCER_FENCED, "fenced")
    assert http.register("s", A).error_code == 50004
    assert http.service.counts.fenced == 1


def test_a_write_that_another_registry_overtook_is_decided_again(http):
    overtaken = []

    async def append(entries, timeout_s):
        if not overtaken:
            # A registry that no transaction fences wrote version 1 and id 1 first.
            overtaken.append(True)
            key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
            http.service.state.replay(key, json.dumps({"id": 1, "schema": B, "version": 1}).encode())
        for entry in entries:
            http.service.state.replay(*http.service.state.encode(entry))

    http.service.log.append = append
    http.put("/config", {"compatibility": "NONE"})
    overtaken.clear()
    answer = http.register("s", A).json()
    assert (answer["version"], answer["id"]) == (2, 2)


def test_writes_wait_while_the_group_decides(http):
    async def scenario():
        await http.service.stop_writing()
        writing = asyncio.create_task(http.service.write(lambda: pytest.fail("decided too early")))
        await asyncio.sleep(0.01)
        assert not writing.done()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await http.service.follow(RegistryIdentity("127.0.0.1", 1), own=True)

    http.run(scenario())
    assert http.register("s", A).status == 200


def write_all(http, *decides):
    async def together():
        return await asyncio.gather(*(http.service.write(decide) for decide in decides), return_exceptions=True)

    return http.run(together())


def registering(http, subject, text, **more):
    request = parse_schema_request({"schema": text, **more})
    return functools.partial(http.service.registration.decide, parse_subject(subject), request)


def test_registrations_share_a_transaction_and_have_ids_of_their_own(http):
    answers = write_all(http, *(registering(http, f"s{n}", record("R", **{f"f{n}": False})) for n in range(10)))
    assert [answer.schema_id for answer in answers] == list(range(1, 11))
    assert http.service.log.batches == [10]
    assert http.service.state.context(".").next_id == 11


def test_changes_that_touch_each_other_are_decided_one_after_the_other(http):
    same_content = write_all(http, registering(http, "a", A), registering(http, "b", A))
    assert [answer.schema_id for answer in same_content] == [1, 1]
    same_subject = write_all(http, registering(http, "a", B), registering(http, "a", C))
    assert same_subject[0].version == 2
    assert same_subject[1].error_code == 40901
    deleting = functools.partial(decide_delete_subject, http.service.state, parse_subject("b"), permanent=False)
    referring = registering(http, "c", C, references=[{"name": "x", "subject": "b", "version": 1}])
    referred, deleted = write_all(http, referring, deleting)
    assert (referred.version, deleted.error_code) == (1, 42206)
    assert http.service.log.batches == [1, 1, 1, 1]


def test_a_refused_change_does_not_fail_its_neighbours(http):
    answers = write_all(http, registering(http, "a", A), registering(http, "b", "{"), registering(http, "c", B))
    assert [getattr(answer, "schema_id", None) for answer in answers] == [1, None, 2]
    assert answers[1].error_code == 42201


def test_all_changes_of_a_failed_transaction_fail(http):
    http.service.log.failure = KafkaTimeoutError("no success")
    answers = write_all(http, registering(http, "a", A), registering(http, "b", B))
    assert [answer.error_code for answer in answers] == [50001, 50001]
    http.run(http.service.follow(RegistryIdentity("127.0.0.1", 1), own=True))
    assert http.register("a", A).json()["id"] == 1

"""A registry over a real broker: its topic, restarts, two registries, a foreign topic."""

import io
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from klamm import telemetry
from klamm.client import Consumer, Producer
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.errors import UnknownTopicOrPartitionError
from klamm.model.errors import ConfigError, ErrorCode
from klamm.registry.store import RegistryState
from klamm.testing import unique

from .conftest import running_registry
from .processes import wait_until
from .small_store import record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, b=True, c=True)


def read_topic(broker, topic):
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        records = []
        while consumer.position((topic, 0)) < end:
            records += consumer.poll(0.2)
        return [(json.loads(record.key), record.value and json.loads(record.value)) for record in records]


def test_records_have_confluents_form(klamm_broker, registry):
    subject = unique("s")
    answer = registry.register(subject, A)
    registry.request("PUT", f"/config/{subject}", {"compatibility": "FULL"})
    registry.request("DELETE", f"/subjects/{subject}")
    rows = [(key, value) for key, value in read_topic(klamm_broker, registry.topic) if key.get("subject") == subject]
    assert list(rows[0][0].items()) == [("keytype", "SCHEMA"), ("subject", subject), ("version", 1), ("magic", 1)]
    assert list(rows[0][1]) == ["subject", "version", "id", "md5", "schema", "deleted"]
    assert rows[0][1]["id"] == answer["id"]
    assert rows[1][1] == {"compatibilityLevel": "FULL"}
    assert rows[2] == (
        {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0},
        {"subject": subject, "version": 1},
    )


def test_a_restart_gives_the_same_answers(klamm_broker):
    topic, group = unique("_schemas"), unique("schema-registry")
    with running_registry(klamm_broker.bootstrap, topic, group) as first:
        first.register("s", A)
        first.register("s", B)
        first.register(":.c:t", A)
        first.request("DELETE", "/subjects/s/versions/1")
        before = [first.get(path) for path in ("/schemas?deleted=true&subjectPrefix=:*:", "/subjects", "/contexts")]
    with running_registry(klamm_broker.bootstrap, topic, group) as second:
        assert before == [
            second.get(path) for path in ("/schemas?deleted=true&subjectPrefix=:*:", "/subjects", "/contexts")
        ]
        assert second.register("s", C)["id"] == 3


def test_two_registries_one_writes_and_both_answer(klamm_broker):
    topic, group = unique("_schemas"), unique("schema-registry")
    with (
        running_registry(klamm_broker.bootstrap, topic, group) as first,
        running_registry(klamm_broker.bootstrap, topic, group) as second,
    ):
        ids = [
            registry.register(f"s{number}", record("R", **{f"f{number}": False}))["id"]
            for number, registry in enumerate([first, second] * 5)
        ]
        assert ids == list(range(1, 11))
        status = [registry.get("/health/ready") for registry in (first, second)]
        assert status[0]["leader"] == status[1]["leader"]
        assert sorted(row["leading"] for row in status) == [False, True]
        leader, follower = (first, second) if status[0]["leading"] else (second, first)
        assert follower.register("s0", record("R", f0=False))["id"] == 1
        code, refusal = follower.request("POST", "/subjects/s0/versions", {"schema": "{"})
        assert (code, refusal["error_code"]) == (422, 42201)
        # Several at a time: what the follower has acknowledged, it has replayed.
        with ThreadPoolExecutor(4) as threads:

            def register_and_read(number):
                text = record("Own", **{f"g{number}": False})
                schema_id = follower.register(f"own{number}", text)["id"]
                return follower.get(f"/subjects/own{number}/versions/1")["id"] == schema_id

            assert all(threads.map(register_and_read, range(20)))
        leader.stop()
        # The follower is elected when the leader has left; a change waits for it.
        assert follower.register("new", B)["id"] == 31
        assert follower.get("/health/ready")["leading"] is True


def test_records_of_any_writer_are_read_on(klamm_broker):
    """A client of the cluster wrote one by mistake: every registry of the topic ended."""
    topic, group = unique("_schemas"), unique("schema-registry")
    with running_registry(klamm_broker.bootstrap, topic, group) as registry:
        registry.register("s", A)
        with Producer(bootstrap_servers=klamm_broker.bootstrap) as producer:
            for key, value in (
                (b'{"keytype":"SCHEMA","subject":"\\ud800","version":1,"magic":1}', b'{"id":5,"schema":"\\"long\\""}'),
                (b'{"keytype":"DELETE_SUBJECT","subject":"s"}', b'{"subject":"s","version":1e999}'),
                (b'{"keytype":[[]]}', b"{}"),
            ):
                producer.send(topic, value, key).result(30)
        assert registry.register("t", B)["id"] == 2
        assert registry.get("/subjects") == ["s", "t"]
        assert registry.request("GET", "/health/ready")[0] == 200


def test_a_registry_whose_reader_ended_is_not_ready(klamm_broker, monkeypatch):
    topic, group = unique("_schemas"), unique("schema-registry")
    with running_registry(klamm_broker.bootstrap, topic, group) as registry:

        def fail(*_):
            raise RuntimeError("planted")

        monkeypatch.setattr(RegistryState, "replay", fail)
        code, refusal = registry.request("POST", "/subjects/s/versions", {"schema": A})
        assert (code, "planted" in refusal["message"]) == (500, True)
        assert registry.request("GET", "/health/ready")[0] == 503


def test_a_registry_that_may_not_lead_waits_for_one_that_may(klamm_broker):
    topic, group = unique("_schemas"), unique("schema-registry")
    with running_registry(klamm_broker.bootstrap, topic, group, eligible=False) as follower:
        assert follower.request("GET", "/health/ready")[0] == 503
        with running_registry(klamm_broker.bootstrap, topic, group) as leader:
            assert leader.register("s", A)["id"] == 1
            assert follower.register("t", B)["id"] == 2
            assert follower.get("/health/ready")["leader"] == leader.url


def test_a_broker_that_learns_of_the_new_topic_late_does_not_stop_the_start(klamm_broker, monkeypatch):
    answered, describe = [], AsyncAdmin.describe_configs

    async def describe_late(self, resources, **options):
        answered.append(len(answered) > 2)
        if not answered[-1]:
            raise UnknownTopicOrPartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it was created by another broker")
        return await describe(self, resources, **options)

    monkeypatch.setattr(AsyncAdmin, "describe_configs", describe_late)
    with running_registry(klamm_broker.bootstrap, unique("_schemas"), unique("schema-registry")) as registry:
        assert registry.get("/subjects") == []
    assert answered == [False, False, False, True]


def test_a_foreign_topic_is_opened_and_continued(klamm_broker):
    topic = unique("_schemas")
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1, 1, configs={"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=klamm_broker.bootstrap) as producer:
        for key, value in (
            ('{"keytype":"NOOP","magic":0}', None),
            (
                '{"subject":"s","version":1,"magic":1,"keytype":"SCHEMA"}',
                {"subject": "s", "version": 1, "id": 41, "schema": A, "deleted": False},
            ),
            ('{"keytype":"CONFIG","subject":null,"magic":0}', {"compatibilityLevel": "NONE"}),
            ('{"no":"keytype"}', {"x": 1}),
            ('{"keytype":"ASSOC","x":1}', {"y": 2}),
        ):
            producer.send(topic, value and json.dumps(value).encode(), key=key.encode())
        producer.flush()
    with running_registry(klamm_broker.bootstrap, topic, unique("schema-registry")) as registry:
        assert registry.get("/schemas/ids/41")["schema"] == A
        assert registry.get("/config") == {"compatibilityLevel": "NONE"}
        assert registry.register("s", B)["id"] == 42
        registry.request("DELETE", "/subjects/s/versions/1")
        # The key bytes that the topic has are used again, so that compaction replaces the record.
        assert [key for key, _ in read_topic(klamm_broker, topic) if key.get("version") == 1] == [
            {"subject": "s", "version": 1, "magic": 1, "keytype": "SCHEMA"}
        ] * 2


@pytest.mark.parametrize(
    ("partitions", "policy", "reason"), [(2, "compact", "2 partitions"), (1, "delete", "cleanup.policy=delete")]
)
def test_a_topic_that_would_lose_schemas_is_refused(klamm_broker, partitions, policy, reason):
    topic = unique("_schemas")
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, partitions, 1, configs={"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=reason), running_registry(klamm_broker.bootstrap, topic, unique("sr")):
        pass


def test_a_schema_larger_than_the_topic_takes(klamm_broker):
    topic = unique("_schemas")
    with klamm_broker.admin() as admin:
        admin.create_topic(topic, 1, 1, configs={"cleanup.policy": "compact", "max.message.bytes": "20000"})
    with running_registry(klamm_broker.bootstrap, topic, unique("sr")) as registry:
        large = json.dumps({"type": "record", "name": "R", "doc": "x" * 20_000, "fields": []})
        status, answer = registry.request("POST", "/subjects/s/versions", {"schema": large})
        assert (status, answer["error_code"]) == (422, 42209)
        assert registry.register("s", A)["id"] == 1


def test_the_topic_ends_with_a_record_soon_after_a_change(klamm_broker, registry):
    # Karapace takes the last offset for that of a record, and would wait behind the marker of a transaction for ever.
    registry.register(unique("s"), record("R", only=False))

    def read_last():
        with Consumer(bootstrap_servers=klamm_broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(registry.topic, 0)])
            end = consumer.end_offsets([(registry.topic, 0)])[registry.topic, 0]
            offset = -1
            while consumer.position((registry.topic, 0)) < end:
                for row in consumer.poll(0.2):
                    offset = row.offset
            return offset == end - 1

    deadline = time.monotonic() + 60
    while not read_last():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_writes_of_another_group_are_reported(klamm_broker):
    """Two registries on one topic under two groups are both leaders: an operator has to learn of it."""
    topic = unique("_schemas")
    lines = io.StringIO()
    with (
        running_registry(klamm_broker.bootstrap, topic, unique("one")) as first,
        running_registry(klamm_broker.bootstrap, topic, unique("other")) as second,
    ):
        assert first.register("s", A)["id"] == 1
        # What was written before, or is written by the registry itself, is not foreign.
        assert read_foreign(first) == 0
        telemetry.configure(telemetry.Level.WARNING, lines)
        try:
            second.register("t", B)
            wait_until(lambda: read_foreign(first) > 0)
        finally:
            telemetry.configure()
        assert read_foreign(first) == 1
        # The other one sees this one's as foreign, too.
        first.register("u", C)
        wait_until(lambda: read_foreign(second) > 0)
    assert "foreign write" in lines.getvalue()
    assert "--group" in lines.getvalue()


def read_foreign(registry):
    with urllib.request.urlopen(f"{registry.url}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return int(
        float(next(line.split()[-1] for line in lines if line.startswith("klamm_registry_foreign_writes_total")))
    )

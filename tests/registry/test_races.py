"""Registries that write at the same time, and a topic that is compacted under one: no id changes its meaning."""

import contextlib
import json
import threading
import time

import pytest

from harness.inprocess import NodeThread
from klamm.client import Admin, Consumer
from klamm.testing import unique

from .conftest import running_registry
from .small_store import record

WRITERS, ROUNDS = 4, 6
LIMIT_S = 60


def schema(number):
    return record("R", **{f"f{number}": False})


def write_at_once(registries):
    """Register through all registries together, every schema under two subjects; returns ids by schema."""
    begin = threading.Barrier(WRITERS)
    ids, failures = {}, []

    def write(writer):
        registry = registries[writer % len(registries)]
        try:
            begin.wait(LIMIT_S)
            for number in range(ROUNDS):
                # Two writers share each schema, so that ids are asked for in a race.
                text = schema(f"{writer // 2}_{number}")
                ids.setdefault(text, set()).add(registry.register(f"s{writer}-{number}", text)["id"])
                # One subject of all writers.
                registry.register("common", text)
        except Exception as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    assert not failures
    return ids


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_meanings(registry, ids):
    """Every id is that of one schema, as the clients were told."""
    for text, given in ids.items():
        for schema_id in given:
            wait_until(lambda: registry.request("GET", f"/schemas/ids/{schema_id}")[0] == 200)  # noqa: B023 - ends here
            assert registry.get(f"/schemas/ids/{schema_id}")["schema"] == text
    assert len(set.union(*ids.values())) == sum(map(len, ids.values()))


@pytest.mark.parametrize("groups", [1, 2], ids=["one group", "two groups"])
def test_registries_that_race_agree_on_ids(klamm_broker, groups):
    """Two groups elect two leaders over one topic, which is a mistake of an operator: writes are not fenced then."""
    topic, names = unique("_schemas"), [unique("sr") for _ in range(groups)]
    with contextlib.ExitStack() as stack:
        registries = [
            stack.enter_context(running_registry(klamm_broker.bootstrap, topic, names[index % groups]))
            for index in range(2)
        ]
        registries[0].request("PUT", "/config", {"compatibility": "NONE"})
        wait_until(lambda: registries[1].get("/config")["compatibilityLevel"] == "NONE")
        ids = write_at_once(registries)
        assert len(ids) == ROUNDS * WRITERS // 2
        if groups == 1:
            # Leaders that do not fence each other may give a schema two ids, each of which stays that schema's.
            assert all(len(given) == 1 for given in ids.values()), ids
        for registry in registries:
            check_meanings(registry, ids)
        versions = registries[0].get("/subjects/common/versions")
        assert versions == list(range(1, len(versions) + 1))
        texts = [registries[0].get(f"/subjects/common/versions/{number}")["schema"] for number in versions]
        # Such leaders may also give a schema two versions, at the same moment.
        assert sorted(texts if groups == 1 else set(texts)) == sorted(ids)
        wait_until(lambda: registries[1].get("/subjects/common/versions") == versions)
        for number in versions:
            paths = [registry.get(f"/subjects/common/versions/{number}") for registry in registries]
            assert paths[0] == paths[1]


def count_records(bootstrap, topic):
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        end, count = consumer.end_offsets([(topic, 0)])[topic, 0], 0
        while consumer.position((topic, 0)) < end:
            count += len(consumer.poll(0.2))
        return count


def test_a_topic_that_is_compacted_under_the_registry(tmp_path):
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.bytes": "1048576",
        "segment.ms": "500",
        "delete.retention.ms": "0",
    }
    with NodeThread(tmp_path, "log.cleaner.backoff.ms=100") as node:
        bootstrap = f"127.0.0.1:{node.port}"
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic("_schemas", 1, 1, configs=settings)
        with running_registry(bootstrap, "_schemas", "sr") as registry:
            kept = registry.register("kept", schema("kept"))["id"]
            removed = set()
            for number in range(10):
                removed.add(registry.register(f"s{number}", schema(number))["id"])
                registry.request("DELETE", f"/subjects/s{number}")
                registry.request("DELETE", f"/subjects/s{number}?permanent=true")
            before = count_records(bootstrap, "_schemas")

            # A record every round rolls the segment, which the cleaner leaves alone while it is active.
            def is_compacted():
                registry.request("PUT", "/config/kept", {"compatibility": "FULL"})
                return count_records(bootstrap, "_schemas") < before / 2

            wait_until(is_compacted)
            answers = [registry.get(path) for path in ("/schemas?deleted=true", "/subjects?deleted=true")]
            assert json.loads(answers[0][0]["schema"])["fields"][0]["name"] == "fkept"
            assert registry.register("more", schema("more"))["id"] not in removed | {kept}
        with running_registry(bootstrap, "_schemas", "sr") as registry:
            assert registry.get(f"/schemas/ids/{kept}")["schema"] == schema("kept")
            assert registry.get("/subjects?deleted=true") == ["kept", "more"]
            assert registry.register("again", schema("again"))["id"] not in removed | {kept}
            for schema_id in removed:
                assert registry.request("GET", f"/schemas/ids/{schema_id}")[0] == 404


def test_a_cluster_with_longer_sessions_has_a_leader(tmp_path):
    """Its brokers refuse the registry's session; one of Confluent's length is used then."""
    with (
        NodeThread(tmp_path, "group.min.session.timeout.ms=10000") as node,
        running_registry(f"127.0.0.1:{node.port}", "_schemas", "sr") as registry,
    ):
        assert registry.register("s", schema("a"))["id"] == 1

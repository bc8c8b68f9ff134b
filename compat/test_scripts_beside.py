"""Klamm's `kafka-*` commands beside Apache Kafka's own tools: the same words to the same broker, the same answer.

Each case is run twice, first by Kafka's tool and then by `klamm`; exit codes and standard output must agree, once what
differs from second to second (times, ids that grow) is blotted out. Where Kafka prints in the order of a hash map, the
lines are compared as a set. Changes are made on a topic of each side's own, of the same name otherwise.
"""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient, Record
from compat.scripts import MAINS, Beside

NOW_MS = int(time.time()) * 1000 - 3_600_000
"""An hour ago: old enough to have happened, young enough to be kept."""


@pytest.fixture
def filled(java: JavaClient, broker: Broker, topic: str) -> str:
    """A topic of two partitions with a few records of all sorts."""
    java.create(broker.bootstrap, topic, 2)
    now = NOW_MS
    records = [
        Record(b"one", key=b"k1", timestamp=now, partition=0),
        Record(b"two", timestamp=now + 1000, partition=0, headers=(("a", b"x"), ("b", None))),
        Record(None, key=b"k3", timestamp=now + 2000, partition=0),
        Record(b"four", key=b"k1", timestamp=now + 3000, partition=1),
    ]
    java.produce(broker.bootstrap, topic, records)
    return topic


def test_topics(beside: Beside, filled: str, java: JavaClient, broker: Broker, klamm, topic: str) -> None:
    beside("kafka-topics", "--list", "--exclude-internal")
    beside("kafka-topics", "--list")
    beside("kafka-topics", "--describe", "--topic", filled)
    beside("kafka-topics", "--describe", "--topic", filled, "--topics-with-overrides")
    beside("kafka-topics", "--describe", ordered=False)
    beside("kafka-topics", "--describe", "--under-replicated-partitions")
    beside("kafka-topics", "--describe", "--at-min-isr-partitions", "--topic", filled)
    beside("kafka-topics", "--describe", "--topic", "there-is-none", exits=1)
    beside("kafka-topics", "--create", "--topic", filled, exits=1)
    beside("kafka-topics", "--create", "--topic", filled, "--if-not-exists")
    beside("kafka-topics", "--create", "--topic", "bad/name", exits=1)
    beside("kafka-topics", "--create", "--topic", "many", "--replication-factor", "7", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--config", "no.such=1", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--config", "bare", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--partitions", "0", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--partitions", "x", exits=1)
    beside("kafka-topics", "--alter", "--topic", filled, "--partitions", "1", exits=1)
    beside("kafka-topics", "--delete", "--topic", "there-is-none", exits=1)
    beside("kafka-topics", "--delete", "--topic", "there-is-none", "--if-exists")
    beside("kafka-topics", "--version", server=False)
    beside("kafka-topics", "--create", exits=1)
    beside("kafka-topics", exits=1)
    beside("kafka-topics", "--list", "--no-such-flag", exits=1)
    where = ("--bootstrap-server", broker.bootstrap)
    for name, run in (
        ("theirs", lambda *a: java.tool(MAINS["kafka-topics"], *a)),
        ("ours", lambda *a: klamm("kafka-topics", *a)),
    ):
        made = f"{topic}.{name}"
        created = run(*where, "--create", "--topic", made, "--partitions", "3", "--config", "retention.ms=7000")
        assert created.out.splitlines()[-1] == f"Created topic {made}."
        assert created.out.startswith("WARNING: Due to limitations in metric names")
        assert run(*where, "--alter", "--topic", made, "--partitions", "4").out == ""
        assert "PartitionCount: 4\t" in run(*where, "--describe", "--topic", made).out
        deleted = run(*where, "--delete", "--topic", made)
        assert (deleted.exit, deleted.out) == (0, "")


def test_configs(beside: Beside, filled: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", filled)
    beside("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=8000000,cleanup.policy=[compact,delete]")
    beside("kafka-configs", "--describe", *entity, ordered=False)
    beside("kafka-configs", "--describe", "--topic", filled, "--all", ordered=False)
    beside("kafka-configs", "--alter", "--topic", filled, "--delete-config", "retention.ms")
    beside("kafka-configs", "--describe", "--topic", filled)
    beside("kafka-configs", "--describe", "--topic", "there-is-none")
    beside("kafka-configs", "--alter", "--topic", filled, "--add-config", "retention.ms=soon", exits=1)
    beside("kafka-configs", "--alter", "--broker", "1", "--add-config", "log.cleaner.threads=2")
    beside("kafka-configs", "--describe", "--broker", "1", ordered=False)
    beside("kafka-configs", "--alter", "--broker", "1", "--delete-config", "log.cleaner.threads")
    beside("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-default", ordered=False)
    beside("kafka-configs", "--alter", *entity, exits=1)
    beside("kafka-configs", "--describe", exits=1)


def test_offsets(beside: Beside, filled: str, tmp_path: Path) -> None:
    for more in (
        (),
        ("--time", "earliest"),
        ("--time", "-1"),
        ("--time", "max-timestamp"),
        ("--time", str(NOW_MS + 1000)),
        ("--partitions", "1"),
    ):
        beside("kafka-get-offsets", "--topic", filled, *more)
    beside("kafka-get-offsets", "--topic-partitions", f"{filled}:0")
    beside("kafka-get-offsets", "--topic", "there-is-none", exits=1)
    beside("kafka-get-offsets", "--topic", filled, "--time", "noon", exits=1)
    beside("kafka-get-offsets", "--topic", filled, server=False, exits=1)
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": filled, "partition": 0, "offset": 1}]}))
    beside("kafka-delete-records", "--offset-json-file", str(plan))
    beside("kafka-delete-records", "--offset-json-file", str(tmp_path / "none.json"), exits=1)


def test_consumer_groups(beside: Beside, filled: str) -> None:
    group = f"group-{filled}"
    reset = ("--reset-offsets", "--group", group, "--topic", filled)
    for how in (
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-offset", "2"),
        ("--to-current",),
        ("--to-datetime", _iso(NOW_MS + 1000)),
        ("--to-datetime", _iso(NOW_MS + 60_000)),
        ("--by-duration", "P10000D"),
    ):
        beside("kafka-consumer-groups", *reset, *how, "--dry-run", ordered=False)
    beside("kafka-consumer-groups", *reset, "--to-offset", "1", "--execute", ordered=False)
    beside("kafka-consumer-groups", *reset, "--shift-by", "1", "--dry-run", ordered=False)
    beside("kafka-consumer-groups", *reset, "--to-latest", "--export", "--dry-run", ordered=False)
    for more in (
        (),
        ("--verbose",),
        ("--members",),
        ("--members", "--verbose"),
        ("--state",),
        ("--state", "--verbose"),
    ):
        beside("kafka-consumer-groups", "--describe", "--group", group, *more, ordered=not more)
    beside("kafka-consumer-groups", "--list", ordered=False)
    beside("kafka-consumer-groups", "--list", "--state", ordered=False)
    beside("kafka-consumer-groups", "--list", "--state", "Empty", "--type", ordered=False)
    beside("kafka-consumer-groups", "--describe", "--group", "there-is-none")
    beside("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", f"{filled}:1")
    beside("kafka-consumer-groups", exits=1)


def test_elections_moves_and_disks(beside: Beside, filled: str, tmp_path: Path) -> None:
    elect = ("--election-type", "preferred", "--topic")
    beside("kafka-leader-election", *elect, filled, "--partition", "0")
    beside("kafka-leader-election", *elect, "there-is-none", "--partition", "0", exits=1)
    beside("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    beside("kafka-leader-election", "--election-type", "preferred", exits=1)
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": filled}]}))
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": filled, "partition": 0, "replicas": [1]}]}))
    beside("kafka-reassign-partitions", "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
    beside("kafka-reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    beside("kafka-reassign-partitions", "--verify", "--reassignment-json-file", str(plan))
    beside("kafka-reassign-partitions", "--cancel", "--reassignment-json-file", str(plan))
    beside("kafka-reassign-partitions", "--list")
    beside("kafka-log-dirs", "--describe", "--topic-list", f"{filled},there-is-none")
    beside("kafka-log-dirs", "--describe", "--broker-list", "7", exits=1)
    beside("kafka-metadata-quorum", "describe", "--status")
    beside("kafka-metadata-quorum", "describe", exits=1)


def test_transactions(beside: Beside, java: JavaClient, broker: Broker, filled: str) -> None:
    java.produce(broker.bootstrap, filled, [Record(b"idempotent")], idempotent=True)
    beside("kafka-transactions", "list", ordered=False)
    beside("kafka-transactions", "describe", "--transactional-id", "there-is-none", exits=1)
    beside("kafka-transactions", "describe-producers", "--topic", filled, "--partition", "0", ordered=False)
    beside("kafka-transactions", "find-hanging", "--topic", filled)
    beside("kafka-transactions", "abort", "--topic", filled, "--partition", "0", "--start-offset", "77", exits=1)
    beside("kafka-transactions", exits=1)


def test_console(beside: Beside, filled: str, klamm, broker: Broker) -> None:
    start = ("--topic", filled, "--from-beginning", "--max-messages", "4", "--timeout-ms", "20000")
    beside("kafka-console-consumer", *start, ordered=False)
    everything = [
        word
        for name in ("key", "partition", "offset", "timestamp", "headers")
        for word in ("--formatter-property", f"print.{name}=true")
    ]
    beside("kafka-console-consumer", *start, *everything, ordered=False)
    one = ("--topic", filled, "--partition", "0", "--offset", "1", "--max-messages", "2", "--timeout-ms", "20000")
    separated = ("--property", "print.key=true", "--property", "key.separator=:", "--property", "null.literal=-")
    beside("kafka-console-consumer", *one, *separated)
    beside("kafka-console-consumer", "--topic", filled, "--offset", "3", exits=1)
    beside("kafka-console-consumer", exits=1)
    lines = b"k:v1\nk2:v2\n"
    sent = klamm(
        "kafka-console-producer",
        *("--bootstrap-server", broker.bootstrap, "--topic", filled),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        stdin=lines,
    )
    assert sent.exit == 0, sent.text
    keyed = ("--topic", filled, "--from-beginning", "--max-messages", "6", "--timeout-ms", "20000")
    read = beside("kafka-console-consumer", *keyed, "--formatter-property", "print.key=true", ordered=False)
    assert {"k\tv1", "k2\tv2"} <= set(read.out.splitlines())


def test_dump_log(beside: Beside, filled: str, broker: Broker) -> None:
    folder = broker.data / f"{filled}-0"
    segment = str(folder / "00000000000000000000.log")
    beside("kafka-dump-log", "--files", segment, server=False)
    beside("kafka-dump-log", "--files", segment, "--print-data-log", server=False)
    beside("kafka-dump-log", "--files", segment, "--deep-iteration", server=False)


def test_perf_tools_print_the_same_shape(java: JavaClient, klamm, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic, 1)
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    where = ("--command-property", f"bootstrap.servers={broker.bootstrap}")
    theirs = java.tool(MAINS["kafka-producer-perf-test"], *load, *where)
    ours = klamm("kafka-producer-perf-test", *load, *where)
    assert (ours.exit, theirs.exit) == (0, 0), ours.text + theirs.text
    assert _shape(ours.out) == _shape(theirs.out)
    read = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", "4000")
    theirs = java.tool(MAINS["kafka-consumer-perf-test"], *read)
    ours = klamm("kafka-consumer-perf-test", *read)
    assert (ours.exit, theirs.exit) == (0, 0), ours.text + theirs.text
    assert _shape(ours.out) == _shape(theirs.out)
    columns = [out.splitlines()[-1].split(", ") for out in (ours.out, theirs.out)]
    assert columns[0][4] == columns[1][4] == "4000"


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")


def _shape(text: str) -> list[str]:
    return [re.sub(r"\d+", "0", line) for line in text.splitlines()]

"""Klamm's `kafka-*` commands beside Apache Kafka's own tools: the same words to the same broker, the same answer.

Each case is run twice, first by Kafka's tool and then by `klamm`; exit codes and standard output must agree, once what
differs from second to second (times, ids that grow) is blotted out. Where Kafka prints in the order of a hash map, the
lines are compared as a set. Changes are made on a topic of each side's own, of the same name otherwise.
"""

import json
import re
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient, Record
from compat.scripts import MAINS, Beside

FORMATTERS = "org.apache.kafka.tools.consumer."
SERIALIZATION = "org.apache.kafka.common.serialization."
DOUBLES = (0.0, -0.0, 1.0, 0.001, 0.00099, 1e7, 123456.789, 5e-324, 1.7976931348623157e308, 2e-3, float("nan"))
FLOATS = (0.1, 16777216.0, 3.4028235e38, 1.4e-45, -2.5, 1e10, float("-inf"))
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


def test_features(beside: Beside) -> None:
    beside("kafka-features", "describe")
    beside("kafka-features", "version-mapping")
    for release in ("3.3", "3.5-IV1", "3.9", "4.0-IV1", "4.1", "4.2", "4.3-IV0", "4.4-IV0"):
        beside("kafka-features", "version-mapping", "--release-version", release)
    beside("kafka-features", "version-mapping", "--release-version", "9.9", exits=1)
    for level in ("transaction.version=2", "eligible.leader.replicas.version=1", "metadata.version=30"):
        beside("kafka-features", "feature-dependencies", "--feature", level)
    for level in ("share.version=9", "nosuch=1", "group.version", "group.version=x"):
        beside("kafka-features", "feature-dependencies", "--feature", level, exits=1)
    beside("kafka-features", "upgrade", "--feature", "transaction.version=2")
    beside("kafka-features", "upgrade", "--metadata", "4.3", "--dry-run")
    beside("kafka-features", "upgrade", "--feature", "nosuch=1", exits=1)
    beside("kafka-features", "downgrade", "--feature", "group.version=0", "--dry-run")
    beside("kafka-features", "disable", "--feature", "group.version", "--unsafe", "--dry-run")
    twice = ("--feature", "group.version=1", "--feature", "group.version=1")
    for words in ((), twice, ("--release-version", "4.3", "--feature", "group.version=1"), ("--metadata", "9.9")):
        beside("kafka-features", "upgrade", *words, exits=1)
    beside("kafka-features", "disable", exits=1)
    beside("kafka-features", exits=1)


def test_cluster_and_what_it_speaks(beside: Beside, broker: Broker) -> None:
    where = ("--bootstrap-server", broker.bootstrap)
    beside("kafka-cluster", "cluster-id", *where, server=False)
    beside("kafka-cluster", "list-endpoints", *where, server=False)
    beside("kafka-cluster", "list-endpoints", *where, "--include-fenced-brokers", server=False)
    beside("kafka-cluster", "unregister", *where, "--id", "77", server=False, exits=1)
    beside("kafka-broker-api-versions")
    beside("kafka-broker-api-versions", "--no-such-flag", exits=1)


def test_acls_without_an_authorizer(java: JavaClient, broker: Broker, klamm) -> None:
    """Java's tool goes on with a stack trace, ours does not: the first line of each is compared."""
    where = ("--bootstrap-server", broker.bootstrap)
    rule = ("--allow-principal", "User:a", "--topic", "t")
    for words in (
        ("--list",), ("--list", "--topic", "t"), ("--add", *rule, "--operation", "Read"),
        ("--add", *rule, "--producer"), ("--remove", *rule, "--force"), ("--list", "--add"), (),
    ):  # fmt: skip
        theirs, ours = java.tool(MAINS["kafka-acls"], *where, *words), klamm("kafka-acls", *where, *words)
        both = (theirs.exit, theirs.out.splitlines()[:1]), (ours.exit, ours.out.splitlines()[:1])
        assert both[0] == both[1], words
        assert ours.err.splitlines()[:1] == theirs.err.splitlines()[:1]


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
    beside("kafka-topics", "--create", "--topic", "odd", "--partitions", "99999999999", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--replica-assignment", "1:a", exits=1)
    beside("kafka-topics", "--create", "--topic", "odd", "--partitions", "1", "--replica-assignment", "1", exits=1)
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
    beside("kafka-configs", "--describe", "--broker", "99")
    beside("kafka-configs", "--describe", "--broker", "a", exits=1)
    beside("kafka-configs", "--describe", "--entity-type", "nonsense", exits=1)
    beside("kafka-configs", "--describe", "--entity-type", "users", "--topic", filled, exits=1)
    beside("kafka-configs", "--describe", "--entity-type", "topics", "--topic", filled, exits=1)
    beside("kafka-configs", "--alter", "--entity-type", "brokers", "--add-config", "log.cleaner.threads=2", exits=1)


def test_configs_of_groups_metrics_and_loggers(beside: Beside, topic: str) -> None:
    group, metrics, logger = ("--group", topic), ("--client-metrics", topic), ("--broker-logger", "1")
    beside("kafka-configs", "--describe", *group)
    beside("kafka-configs", "--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    beside("kafka-configs", "--describe", *group)
    beside("kafka-configs", "--describe", "--entity-type", "groups", ordered=False)
    beside("kafka-configs", "--describe", *metrics)
    beside("kafka-configs", "--alter", *metrics, "--add-config", "interval.ms=1000,metrics=[a,b]")
    beside("kafka-configs", "--describe", *metrics)
    beside("kafka-configs", "--describe", *metrics, "--all")
    beside("kafka-configs", "--describe", "--entity-type", "client-metrics", ordered=False)
    beside("kafka-configs", "--describe", *logger, ordered=False)
    beside("kafka-configs", "--describe", "--broker-logger", "7")
    beside("kafka-configs", "--describe", "--entity-type", "broker-loggers", exits=1)
    beside("kafka-configs", "--alter", *logger, "--add-config", "root=LOUD", exits=1)
    beside("kafka-configs", "--alter", *logger, "--add-config", "no.such.logger=INFO", exits=1)
    beside("kafka-configs", "--alter", *logger, "--delete-config", "root", exits=1)


def test_by_controllers(beside: Beside, broker: Broker) -> None:
    where = ("--bootstrap-controller", f"127.0.0.1:{broker.controller_port}")
    beside("kafka-metadata-quorum", *where, "describe", "--status", server=False)
    beside("kafka-configs", *where, "--describe", "--broker", "1", server=False, ordered=False)
    beside("kafka-configs", *where, "--describe", "--entity-type", "brokers", server=False, ordered=False)
    beside("kafka-configs", *where, "--describe", "--entity-type", "topics", server=False, exits=1)
    beside("kafka-reassign-partitions", *where, "--list", server=False)
    for script, words in (
        ("kafka-reassign-partitions", ("--list",)),
        ("kafka-configs", ("--describe", "--broker", "1")),
        ("kafka-metadata-quorum", ("describe", "--status")),
    ):
        beside(script, *where, *words, exits=1)
    plan = ("--verify", "--reassignment-json-file", "there-is-none.json")
    beside("kafka-reassign-partitions", *where, *plan, server=False, exits=1)
    elect = ("--election-type", "preferred", "--all-topic-partitions")
    beside("kafka-leader-election", *where, *elect, server=False, exits=1)
    gone = ("remove-controller", "--controller-id", "2", "--controller-directory-id", "AAAAAAAAAAAAAAAAAAAAAg")
    beside("kafka-metadata-quorum", *where, *gone, server=False, exits=1)
    beside("kafka-metadata-quorum", *gone, exits=1)
    beside("kafka-metadata-quorum", *gone[:3], "--controller-directory-id", "zz", exits=1)


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
    beside("kafka-get-offsets", "--topic", "[", exits=1)
    beside("kafka-get-offsets", "--topic-partitions", f"{filled}:99999999999", exits=1)
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
    beside("kafka-consumer-groups", "--list", "--state", "preparingrebalance", ordered=False)
    for mistaken in (
        ("--list", "--state", "bogus"),
        ("--list", "--type", "share"),
        ("--list", "--group", group),
        ("--describe", "--group", group, "--members", "--state"),
        ("--describe", "--group", group, "--state", "Empty"),
        ("--delete", "--group", group, "--topic", filled),
        (*reset[:3], "--topic", f"{filled}:a", "--to-earliest", "--dry-run"),
    ):
        beside("kafka-consumer-groups", *mistaken, exits=1)
    beside("kafka-consumer-groups", "--describe", "--group", group, "--timeout", "abc")
    beside("kafka-consumer-groups", *reset, "--to-offset", "abc", "--dry-run")
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
    soon = ("--topic", filled, "--timeout-ms", "200")
    for mistaken in (
        ("--isolation-level", "bogus"),
        ("--command-property", "auto.offset.reset=bogus"),
        ("--group", "a", "--command-property", "group.id=b"),
        ("--from-beginning", "--command-property", "auto.offset.reset=latest"),
        ("--formatter", "no.such.Formatter"),
        ("--max-messages", "x"),
    ):
        beside("kafka-console-consumer", *soon, *mistaken, exits=1)
    beside("kafka-console-consumer", "--include", "[", exits=1)
    beside("kafka-console-consumer", "--topic", "bad topic", "--timeout-ms", "3000")
    beside("kafka-console-consumer", *soon, "--partition", "99")
    beside("kafka-console-consumer", *start, "--formatter", FORMATTERS + "NoOpMessageFormatter")
    beside("kafka-console-consumer", *start, "--formatter", FORMATTERS + "LoggingMessageFormatter", ordered=False)
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


def test_deserializers(beside: Beside, java: JavaClient, broker: Broker, topic: str) -> None:
    """One record after the other, each by its deserializer; what is too short or too long ends both."""
    values = {
        "String": ["grün".encode(), b"\xff\xfe"],
        "Long": [struct.pack(">q", -5)],
        "Integer": [struct.pack(">i", 7), None],  # what stands for null is read as a number, four letters long
        "Short": [struct.pack(">h", -7)],
        "Double": [struct.pack(">d", double) for double in DOUBLES],
        "Float": [struct.pack(">f", number) for number in FLOATS],
        "Boolean": [b"\0", b"\1"],
        "UUID": [b"C0FFEE00-0000-4000-8000-000000000001"],
        "Bytes": [b"a\\\0~\xff"],
        "ByteBuffer": [b"abc"],
    }
    java.create(broker.bootstrap, topic, 1)
    java.produce(broker.bootstrap, topic, [Record(value) for data in values.values() for value in data])
    offset = 0
    for kind, data in values.items():
        place = ("--topic", topic, "--partition", "0", "--offset", str(offset), "--max-messages", str(len(data)))
        name = f"{SERIALIZATION}{kind}Deserializer"
        beside("kafka-console-consumer", *place, "--timeout-ms", "20000", "--value-deserializer", name)
        offset += len(data)
    first = ("--topic", topic, "--partition", "0", "--offset", "0", "--max-messages", "1", "--timeout-ms", "20000")
    wrong = f"value.deserializer={SERIALIZATION}LongDeserializer"
    beside("kafka-console-consumer", *first, "--formatter-property", wrong, exits=1)
    beside("kafka-console-consumer", *first, "--formatter-property", wrong, "--skip-message-on-error")
    beside("kafka-console-consumer", *first, "--value-deserializer", "no.such.Deserializer")


@pytest.mark.parametrize("partition", ["0", "1"])
@pytest.mark.parametrize(
    ("of", "formatter"),
    [
        ("__consumer_offsets", "OffsetsMessageFormatter"),
        ("__consumer_offsets", "GroupMetadataMessageFormatter"),
        ("__transaction_state", "TransactionLogMessageFormatter"),
    ],
)
def test_formatters_of_internal_topics(
    beside: Beside, java: JavaClient, broker: Broker, of: str, formatter: str, partition: str
) -> None:
    """By partition: a group of one's own would write to the topic while it is read."""
    output = java.tool(MAINS["kafka-get-offsets"], "--bootstrap-server", broker.bootstrap, "--topic", of)
    if f"{of}:{partition}:" not in output.out:
        java.tool(
            MAINS["kafka-producer-perf-test"],
            *("--bootstrap-server", broker.bootstrap, "--topic", "formatted", "--transactional-id", "formatted"),
            *("--num-records", "1", "--record-size", "1", "--throughput", "-1"),
        )
    place = ("--topic", of, "--partition", partition, "--offset", "earliest", "--timeout-ms", "2000")
    beside("kafka-console-consumer", *place, "--formatter", FORMATTERS + formatter)


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

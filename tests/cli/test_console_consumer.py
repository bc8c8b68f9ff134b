"""kafka-console-consumer: what it commits, how it ends, and what its formatters and deserializers print."""

import signal
import struct
import subprocess
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as OtherConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from harness import KLAMM, batch, unique
from klamm.cli.kafka.formatters import Unprintable, default_formatter, deserializer, find_formatter
from klamm.cli.kafka.java_numbers import double_text, float_text
from klamm.cli.kafka.options import Usage
from klamm.cli.main import cli
from klamm.client.types import Record

FORMATTERS = "org.apache.kafka.tools.consumer."
CLASSES = "org.apache.kafka.common.serialization."


def run(*words: str, stdin: str | None = None):
    return CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm")


def consume(klamm, *words: str):
    return run("kafka-console-consumer", "--bootstrap-server", klamm.bootstrap, *words)


def committed(klamm, group: str, topic: str) -> int:
    """What another client finds committed; negative when nothing is."""
    reader = OtherConsumer({"bootstrap.servers": klamm.bootstrap, "group.id": group})
    try:
        return reader.committed([TopicPartition(topic, 0)], timeout=10)[0].offset
    finally:
        reader.close()


def members(klamm, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": klamm.bootstrap})
    return len(admin.describe_consumer_groups([group])[group].result(10).members)


def test_a_group_that_read_nothing_keeps_its_place(klamm, wire):
    topic, group = wire.create_topic(), unique("g")
    idle = consume(klamm, "--topic", topic, "--group", group, "--timeout-ms", "3000")
    assert (idle.exit_code, idle.stdout) == (0, ""), idle.output
    assert committed(klamm, group, topic) == 0
    assert run("kafka-console-producer", "--bootstrap-server", klamm.bootstrap, "--topic", topic, stdin="late\n")
    consumed = consume(klamm, "--topic", topic, "--group", group, "--max-messages", "1", "--timeout-ms", "20000")
    assert consumed.stdout == "late\n"


def test_an_idle_group_commits_as_time_passes(klamm, wire):
    """Not only at the end: a process that is killed has kept its place too."""
    topic, group = wire.create_topic(), unique("g")
    words = ("--bootstrap-server", klamm.bootstrap, "--topic", topic, "--group", group)
    often = ("--command-property", "auto.commit.interval.ms=50")
    reader = subprocess.Popen([*KLAMM, "kafka-console-consumer", *words, *often], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while committed(klamm, group, topic) != 0:
            assert time.monotonic() < deadline, "never committed"
            assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait()


def test_what_was_fetched_and_not_printed_is_not_committed(klamm, wire):
    topic, group = wire.create_topic(), unique("g")
    wire.produce(topic, batch(b"a", b"b", b"c"))
    read = consume(klamm, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2")
    assert read.stdout == "a\nb\n"
    assert committed(klamm, group, topic) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(klamm, wire, number):
    topic, group = wire.create_topic(), unique("g")
    words = ("--bootstrap-server", klamm.bootstrap, "--topic", topic, "--group", group, "--from-beginning")
    command = [*KLAMM, "kafka-console-consumer", *words, "--enable-systest-events"]
    wire.produce(topic, batch(b"one"))
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout.readline() == b"one\n"
    assert members(klamm, group) == 1
    reader.send_signal(number)
    out, errors = reader.communicate(timeout=30)
    assert reader.returncode == 128 + number
    assert (out, errors) == (b"shutdown_complete\n", b"Processed a total of 1 messages\n")
    assert committed(klamm, group, topic) == 1
    assert members(klamm, group) == 0


def test_settings_are_checked_as_kafka_checks_them(klamm, wire):
    topic = wire.create_topic()
    read = ("--topic", topic, "--timeout-ms", "100")
    for words, errors in (
        (("--isolation-level", "bogus"), "isolation.level"),
        (("--command-property", "auto.offset.reset=bogus"), "auto.offset.reset"),
        (("--group", "a", "--command-property", "group.id=b"), "Detected group ids: 'a', 'b'"),
        (("--partition", "0", "--command-property", "group.id=b"), "group and partition cannot be specified together"),
        (("--from-beginning", "--command-property", "auto.offset.reset=latest"), "please remove one option"),
        (("--max-messages", "many"), "Cannot parse argument 'many' of option max-messages"),
        (("--formatter", "no.such.Formatter"), "no.such.Formatter: no such formatter"),
    ):
        done = consume(klamm, *read, *words)
        assert done.exit_code == 1, words
        assert errors in done.stderr, words
        assert "Traceback" not in done.stderr
    refused = consume(klamm, "--include", "[")
    assert refused.exit_code == 1
    assert "[ is an invalid regex" in refused.stderr


def test_what_ends_the_reading_is_told_and_no_failure(klamm, wire):
    """As Kafka's tool, which ends with 0."""
    done = consume(klamm, "--topic", "bad topic")
    assert done.exit_code == 0
    assert "InvalidTopicException: Invalid topics: [bad topic]" in done.stderr
    assert done.stderr.endswith("Processed a total of 0 messages\n")
    none = consume(klamm, "--topic", wire.create_topic(), "--partition", "99", "--timeout-ms", "200")
    assert (none.exit_code, none.stderr) == (0, "Processed a total of 0 messages\n")
    nothing = consume(klamm, "--topic", wire.create_topic(), "--max-messages", "0")
    assert (nothing.exit_code, nothing.stderr) == (0, "Processed a total of 0 messages\n")


def test_deserializers(klamm, wire):
    topic = wire.create_topic()
    wire.produce(topic, batch(struct.pack(">q", 7)))
    read = ("--topic", topic, "--from-beginning", "--timeout-ms", "20000", "--max-messages", "1")
    assert consume(klamm, *read, "--value-deserializer", CLASSES + "LongDeserializer").stdout == "7\n"
    by_property = ("--formatter-property", f"value.deserializer={CLASSES}LongDeserializer")
    assert consume(klamm, *read, *by_property, "--formatter-property", "print.epoch=true").stdout == "Epoch:0\t7\n"
    wrong = consume(klamm, *read, "--value-deserializer", CLASSES + "IntegerDeserializer")
    assert wrong.exit_code == 1
    assert "Size of data received by IntegerDeserializer is not 4" in wrong.stderr
    skipped = consume(klamm, *read, "--value-deserializer", CLASSES + "UUIDDeserializer", "--skip-message-on-error")
    assert skipped.exit_code == 0
    assert "skipping this message" in skipped.stderr
    unknown = consume(klamm, *read, "--value-deserializer", "no.such.Deserializer")
    assert "Unable to instantiate a deserializer from no.such.Deserializer" in unknown.stderr


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("String", b"\xc3\xa4", "ä"),
        ("Integer", b"\xff\xff\xff\xff", "-1"),
        ("Short", b"\0\7", "7"),
        ("Double", struct.pack(">d", 1e7), "1.0E7"),
        ("Float", struct.pack(">f", 0.1), "0.1"),
        ("Boolean", b"\1", "true"),
        ("UUID", b"C0FFEE00-0000-4000-8000-000000000001", "c0ffee00-0000-4000-8000-000000000001"),
        ("Bytes", b"a\\\0~", "a\\x5C\\x00~"),
        ("ByteBuffer", b"abc", "java.nio.HeapByteBuffer[pos=0 lim=3 cap=3]"),
    ],
)
def test_each_deserializer(kind, data, text):
    show = deserializer(f"{CLASSES}{kind}Deserializer")
    assert show is not None
    assert show(data) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (123.456, "123.456"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-1.5e300, "-1.5E300"),
        (5e-324, "4.9E-324"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_as_java_prints_them(number, text):
    assert double_text(number) == text


def test_floats_as_java_prints_them():
    def printed(number: float) -> str:
        return float_text(struct.unpack(">f", struct.pack(">f", number))[0])

    assert [printed(number) for number in (0.1, 16777216.0, 3.4028235e38, 1.4e-45, -2.5)] == [
        *("0.1", "1.6777216E7", "3.4028235E38", "1.4E-45", "-2.5")
    ]


def test_the_default_formatter():
    record = Record("t", 1, 5, 1000, b"k", None, (("a", b"x"), ("b", None)), 0, 3)
    everything = dict.fromkeys(
        ("print.key", "print.partition", "print.offset", "print.timestamp", "print.headers", "print.epoch"), "true"
    )
    line = b"CreateTime:1000\tPartition:1\tOffset:5\tEpoch:3\ta:x,b:null\tk\tnull\n"
    assert default_formatter(everything)(record) == line
    assert default_formatter({"null.literal": "-", "line.separator": "|"})(record) == b"-|"
    assert default_formatter({"print.value": "false", "print.key": "true"})(record) == b"k\n"
    assert default_formatter({"print.value": "false"})(record) == b""
    bare = record._replace(headers=(), timestamp=-1, leader_epoch=-1)
    properties = {"print.headers": "true", "print.timestamp": "true", "print.epoch": "true", "print.delivery": "true"}
    words = b"NO_TIMESTAMP\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\n"
    assert default_formatter(properties)(bare) == words


def test_formatters_of_internal_topics():
    offsets = find_formatter(FORMATTERS + "OffsetsMessageFormatter", {})
    groups = find_formatter(FORMATTERS + "GroupMetadataMessageFormatter", {})
    key = b"\0\1\0\1g\0\1t\0\0\0\0"
    value = b"\0\3" + struct.pack(">qihq", 5, 0, 0, 1000)
    commit = Record("__consumer_offsets", 0, 9, 0, key, value)
    assert offsets(commit) == (
        b'{"key":{"type":1,"data":{"group":"g","topic":"t","partition":0}},"value":{"version":3,"data":'
        b'{"offset":5,"leaderEpoch":0,"metadata":"","commitTimestamp":1000}}}'
    )
    assert offsets(commit._replace(value=None)).endswith(b'"value":null}')
    assert groups(commit) == b""
    assert offsets(commit._replace(key=None)) == b""
    assert offsets(commit._replace(key=b"\x7f\xff")) == b""
    with pytest.raises(Unprintable, match="Could not read record at offset 9"):
        offsets(commit._replace(value=b"\0\3\0"))
    assert find_formatter(FORMATTERS + "NoOpMessageFormatter", {})(commit) == b""
    with pytest.raises(Usage):
        find_formatter("OffsetsMessageFormatter", {})

"""Kafka's own command names: the list a beginner types, and the ways their flags are written.

That their output is Kafka's is judged beside Kafka itself, in compat/test_scripts_beside.py.
"""

import io
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import KLAMM, unique
from klamm.cli.kafka import SCRIPTS, script_name
from klamm.cli.kafka.console_producer import read_drafts
from klamm.cli.kafka.options import Flag, Flags, Usage
from klamm.cli.main import cli
from klamm.net.free_ports import free_ports

# The notes end with these lines, to be typed in Kafka's bin folder; here `klamm` stands in front of each.
LIST = """\
./zookeeper-server-start.sh ../config/zookeeper.properties
./kafka-server-start.sh ../config/server.properties
./kafka-topics.sh --create --bootstrap-server localhost:9092 --replication-factor 1 --partitions 1 -topic chat
./kafka-topics.sh --list --bootstrap-server localhost:9092
./kafka-console-producer.sh --broker-list localhost:9092 --topic chat
./kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic chat --from-beginning
""".splitlines()

# What Kafka 4 ships as config/server.properties, as far as it says where and as what the node runs.
SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:{controller}
listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller}
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
"""


def test_the_list_works_as_written(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "config").mkdir()
    port, controller = free_ports("127.0.0.1", 2)
    text = SERVER.format(port=port, controller=controller, data=tmp_path / "data")
    (tmp_path / "config" / "server.properties").write_text(text)
    lines = [shlex.split(line.replace("localhost:9092", f"localhost:{port}")) for line in LIST]

    def klamm(words: list[str], **more) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*KLAMM, *words], cwd=tmp_path / "bin", capture_output=True, text=True, timeout=60, check=False, **more
        )

    zookeeper = klamm(lines[0])
    assert zookeeper.returncode == 0
    assert "quorum" in zookeeper.stdout
    with (tmp_path / "node.log").open("w") as log:
        node = subprocess.Popen([*KLAMM, *lines[1]], cwd=tmp_path / "bin", stdout=subprocess.PIPE, stderr=log)
    try:
        ready = node.stdout.readline().decode()
        assert "Klamm is ready" in ready, (tmp_path / "node.log").read_text()
        created = klamm(lines[2])
        assert (created.returncode, created.stdout) == (0, "Created topic chat.\n"), created.stderr
        assert klamm(lines[3]).stdout == "chat\n"
        sent = klamm(lines[4], input="hello\nworld\n")
        assert (sent.returncode, sent.stdout) == (0, ""), sent.stderr
        reader = subprocess.Popen([*KLAMM, *lines[5]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert [reader.stdout.readline() for _ in range(2)] == [b"hello\n", b"world\n"]
        reader.send_signal(signal.SIGINT)  # it reads on until Ctrl-C, as Kafka's does
        _, errors = reader.communicate(timeout=30)
        assert b"Processed a total of 2 messages" in errors
        assert reader.returncode == 130
    finally:
        node.terminate()
        node.communicate(timeout=30)


def run(*words: str, stdin: str | None = None):
    return CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm")


@pytest.mark.parametrize("written", ["kafka-topics", "kafka-topics.sh", "./kafka-topics.sh", "bin/kafka-topics.bat"])
def test_any_way_to_write_a_name(written):
    assert script_name(written) == "kafka-topics"
    assert script_name("kafka-nothing.sh") is None


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - {"kafka-server-start", "zookeeper-server-start"}))
def test_every_script_has_help(script):
    done = run(script, "--help")
    assert done.exit_code == 0, done.output
    assert "--" in done.output


def test_flags_are_read_as_kafka_reads_them():
    flags = Flags("t", Flag("topic", "", "t"), Flag("list", ""), Flag("state", "", "s", optional=True))
    parsed = flags.parse(["--topic", "a", "-list", "--state", "--topic=b", "rest", "-1"])
    assert parsed.all("topic") == ["a", "b"]
    assert parsed.has("list")
    assert parsed.get("state") is None
    assert parsed.has("state")
    assert parsed.rest == ["rest", "-1"]
    with pytest.raises(Usage, match="multiple arguments for option topic"):
        parsed.get("topic")
    with pytest.raises(Usage, match="wrong is not a recognized option"):
        flags.parse(["--wrong"])
    with pytest.raises(Usage, match="requires an argument"):
        flags.parse(["--topic"])
    assert flags.parse(["--state", "Empty"]).get("state") == "Empty"
    assert flags.parse(["--topic", "-5"]).get("topic") == "-5"


def test_mistakes_end_with_1_and_kafkas_sentence():
    done = run("kafka-topics", "--bootstrap-server", "127.0.0.1:1", "--list", "--create")
    assert done.exit_code == 1
    assert "Command must include exactly one action" in done.stderr
    assert "--partitions" in done.stderr
    done = run("kafka-topics", "--bootstrap-server", "127.0.0.1:1", "--list")
    assert done.exit_code == 1
    assert "no broker answers" in done.stderr
    assert run("kafka-console-consumer", "--bootstrap-server", "x:1").exit_code == 1


def test_groups_are_read_reset_and_deleted(klamm, wire):
    topic, group = wire.create_topic(), unique("g")
    where = ("--bootstrap-server", klamm.bootstrap)
    sent = run("kafka-console-producer", *where, "--topic", topic, stdin="a\nb\nc\n")
    assert sent.exit_code == 0, sent.output
    read = run(
        "kafka-console-consumer", *where, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2"
    )
    assert read.stdout == "a\nb\n"
    described = run("kafka-consumer-groups", *where, "--describe", "--group", group).stdout
    assert described.splitlines()[-1].split() == [group, topic, "0", "2", "3", "1", "-", "-", "-"]
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert run("kafka-consumer-groups", *where, *reset).stdout.splitlines()[-1].split() == [group, topic, "0", "0"]
    deleted = run("kafka-consumer-groups", *where, "--delete", "--group", group).stdout
    assert deleted == f"Deletion of requested consumer groups ('{group}') was successful.\n"


def test_perf_tools(klamm, wire):
    topic = wire.create_topic()
    load = ("--topic", topic, "--num-records", "500", "--record-size", "50", "--throughput", "-1")
    done = run("kafka-producer-perf-test", *load, "--bootstrap-server", klamm.bootstrap)
    assert done.stdout.startswith("500 records sent, "), done.output
    read = run(
        "kafka-consumer-perf-test", "--bootstrap-server", klamm.bootstrap, "--topic", topic, "--num-records", "500"
    )
    assert read.stdout.splitlines()[-1].split(", ")[4] == "500", read.output


def test_reassigning_where_nothing_moves(klamm, wire, tmp_path: Path):
    topic = wire.create_topic()
    plan = tmp_path / "plan.json"
    plan.write_text(f'{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": 0, "replicas": [7]}}]}}')
    where = ("--bootstrap-server", klamm.bootstrap, "--reassignment-json-file", str(plan))
    refused = run("kafka-reassign-partitions", "--execute", *where)
    assert refused.exit_code == 1
    assert "Unknown broker id 7" in refused.stdout
    assert (
        "No partition reassignments found"
        in run("kafka-reassign-partitions", "--list", "--bootstrap-server", klamm.bootstrap).stdout
    )


def test_perf_tools_print_what_they_measured(klamm, wire):
    topic = wire.create_topic()
    load = ("--topic", topic, "--num-records", "20", "--record-size", "50", "--throughput", "-1", "--print-metrics")
    sent = run("kafka-producer-perf-test", *load, "--bootstrap-server", klamm.bootstrap).stdout
    assert "\n\nMetric Name " in sent
    measured = dict(line.rsplit(" : ", 1) for line in sent.splitlines() if " : " in line)
    values = {name.strip(): value for name, value in measured.items()}
    tags = f"{{client-id=perf-producer-client, topic={topic}}}"
    assert values[f"producer-topic-metrics:byte-total:{tags}"] == "1000.000"
    words = ("--bootstrap-server", klamm.bootstrap, "--topic", topic, "--num-records", "20", "--print-metrics")
    read = run("kafka-consumer-perf-test", *words).stdout
    assert re.search(r"^consumer-fetch-manager-metrics:records-consumed-total:\S+ +: 20\.000$", read, re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "words", "errors"),
    [
        ("h1\tv", ("parse.headers=true",), "No header key separator found in pair 'h1' on line number 1"),
        ("v", ("parse.headers=true",), "No headers delimiter found on line number 1: 'v'"),
        ("v", ("parse.key=true", "key.separator=:"), "No key separator found on line number 1: 'v'"),
        ("N:x\tv", ("parse.headers=true", "null.marker=N"), "Header keys should not be equal to the null marker 'N'"),
    ],
)
def test_lines_that_are_not_as_promised(klamm, wire, line, words, errors):
    properties = [argument for word in words for argument in ("--reader-property", word)]
    where = ("--bootstrap-server", klamm.bootstrap, "--topic", wire.create_topic())
    done = run("kafka-console-producer", *where, *properties, stdin=f"{line}\n")
    assert done.exit_code == 1
    assert errors in done.stderr


def test_a_key_may_be_parted_by_nothing():
    """Java finds an empty separator right at the beginning."""
    [draft] = read_drafts(io.BytesIO(b"abc\n"), {"parse.key": "true", "key.separator": ""})
    assert (draft["key"], draft["value"]) == (b"", b"abc")
    lenient = {"parse.headers": "true", "ignore.error": "true"}
    [draft] = read_drafts(io.BytesIO(b"h1,h2:x\tv\n"), lenient)
    assert draft["headers"] == [("h1", None), ("h2", b"x")]


def test_readers_and_numbers_of_the_console_producer():
    words = ("kafka-console-producer", "--bootstrap-server", "127.0.0.1:1", "--topic", "t")
    strange = run(*words, "--line-reader", "no.such.Reader", stdin="")
    assert (strange.exit_code, "no such reader" in strange.stderr) == (1, True)
    number = run(*words, "--batch-size", "x", stdin="")
    assert (number.exit_code, number.stderr) == (1, "Cannot parse argument 'x' of option batch-size\n")

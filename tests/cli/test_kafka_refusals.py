"""What kafka-* commands cannot do ends in one line of Kafka's words, never in a traceback, and changes nothing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli.main import cli

ALL = (
    ("kafka-topics", "--list"),
    ("kafka-configs", "--describe", "--topic", "t"),
    ("kafka-console-consumer", "--topic", "t", "--timeout-ms", "500"),
    ("kafka-console-producer", "--topic", "t"),
    ("kafka-consumer-groups", "--list"),
    ("kafka-get-offsets",),
    ("kafka-log-dirs", "--describe"),
    ("kafka-transactions", "list"),
    ("kafka-metadata-quorum", "describe", "--status"),
    ("kafka-reassign-partitions", "--list"),
    ("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions"),
    ("kafka-consumer-perf-test", "--topic", "t", "--num-records", "1"),
    ("kafka-producer-perf-test", "--topic", "t", "--num-records", "1", "--record-size", "1", "--throughput", "-1"),
)


def run(*words: str, stdin: str | None = None):
    return CliRunner().invoke(cli, list(words), input=stdin, prog_name="klamm")


@contextmanager
def stranger(answer: bytes) -> Iterator[str]:
    """A server that answers every first bytes with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link:
                    link.recv(65536)
                    link.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize("command", ALL, ids=lambda words: words[0])
def test_another_server_listens_there(command):
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        done = run(*command, "--bootstrap-server", address, stdin="line\n")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {address} answers in HTTP, not in Kafka's protocol; check the port of the address\n"


def test_tls_and_nonsense_are_told():
    with stranger(bytes.fromhex("15030300020246")) as address:
        done = run("kafka-topics", "--list", "--bootstrap-server", address)
    assert done.exit_code == 1
    assert "answers in TLS; write security.protocol=SSL or, with a login, SASL_SSL into a file" in done.stderr
    with stranger(b"\0\0\0\5abcde") as address:
        done = run("kafka-topics", "--list", "--bootstrap-server", address)
    assert done.exit_code == 1
    assert "is it a broker of Kafka's protocol" in done.stderr


def refused(klamm, line: str, *, code: int = 1) -> str:
    script, *words = line.split()
    done = run(script, "--bootstrap-server", klamm.bootstrap, *words)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kafka-get-offsets --topic [", "[ is an invalid regex."),
        ("kafka-get-offsets --topic-partitions [:0", "[ is an invalid regex."),
        ("kafka-get-offsets --topic-partitions t:99999999999", 'For input string: "99999999999"'),
        ("kafka-get-offsets --time 99999999999999999999", "Malformed time argument"),
        ("kafka-consumer-perf-test --include [ --num-records 1", "[ is an invalid regex"),
        ("kafka-topics --create --topic t --partitions 99999999999", "Cannot parse argument '99999999999' of option"),
        ("kafka-topics --create --topic t --replica-assignment 1:a", 'For input string: "a"'),
        ("kafka-topics --create --topic t --partitions 1 --replica-assignment 1", "can't be used with option"),
        ("kafka-log-dirs --describe --broker-list a", 'For input string: "a"'),
        ("kafka-metadata-quorum remove-controller -i 2 -d zz", "Input string `zz` decoded as 1 bytes"),
        ("kafka-configs --describe --entity-type users --topic t", "Only 'users' and 'clients' entity types may be"),
        ("kafka-configs --describe --entity-type topics --topic t", "Duplicate entity type(s) specified: topics"),
        ("kafka-consumer-perf-test --topic= --num-records 1", "cannot contain null or empty topic"),
        ("kafka-console-consumer --topic=", "cannot contain null or empty topic"),
        ("kafka-configs --describe --broker a", "must be a valid integer broker id, but it is: a"),
        ("kafka-configs --describe --entity-type broker-loggers", "An entity name must be specified with --describe"),
        ("kafka-consumer-groups --list --state bogus", "Invalid state list 'bogus'. Valid states are: "),
        ("kafka-consumer-groups --list --type share", "Invalid types list 'share'. Valid types are: Consumer, Classic"),
        ("kafka-consumer-groups --describe --group g --members --state", "takes at most one of these options"),
        ("kafka-consumer-groups --describe --group g --state Empty", "does not take a value for [state]"),
        ("kafka-consumer-groups --delete --group g --topic t", "does not support topic-specific offset deletion"),
        ("kafka-consumer-groups --list --group g", 'Option "[group]" can\'t be used with option "[list]"'),
    ],
)
def test_words_that_cannot_be_obeyed(klamm, line, message):
    assert message in refused(klamm, line)


def test_consumer_groups_ends_with_0_having_said_so(klamm, wire, tmp_path: Path):
    """As Kafka's, when a number is read late or a file is not what it should be."""
    message = refused(klamm, "kafka-consumer-groups --describe --group g --timeout abc", code=0)
    assert (
        "Error: Executing consumer group command failed due to Cannot parse argument 'abc' of option timeout" in message
    )
    file = tmp_path / "offsets.csv"
    file.write_text("topic-alone\n")
    reset = f"kafka-consumer-groups --reset-offsets --group z --dry-run --from-file {file}"
    assert f"line 1 of {file} is not topic,partition,offset" in refused(klamm, reset, code=0)
    assert "GROUP" in refused(klamm, "kafka-consumer-groups --list --state preparingrebalance", code=0)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ('{"topics": ["chat"]}', "--generate --broker-list 1 --topics-to-move-json-file", "Expected JSON object"),
        (
            '{"topics": [{"topic": "T"}]}',
            "--generate --broker-list a,b --topics-to-move-json-file",
            'input string: "a"',
        ),
        ('{"partitions": 5}', "--verify --reassignment-json-file", "Expected JSON array, received 5"),
        ('{"partitions": 5}', "--cancel --reassignment-json-file", "Expected JSON array, received 5"),
        ("none", "--execute --reassignment-json-file", "The input string is not a valid JSON"),
    ],
)
def test_plans_that_are_none(klamm, wire, tmp_path: Path, text, words, message):
    plan = tmp_path / "plan.json"
    plan.write_text(text.replace('"T"', f'"{wire.create_topic()}"'))
    assert message in refused(klamm, f"kafka-reassign-partitions {words} {plan}")


def test_partitions_that_are_not_there(klamm, wire, tmp_path: Path):
    topic = wire.create_topic()
    for goal in ("--to-latest", "--to-earliest", "--to-current", "--to-offset 1", "--by-duration PT1S"):
        line = f"kafka-consumer-groups --reset-offsets --group {topic} --topic {topic}:0,99 {goal} --execute"
        assert f'The partitions "{topic}-99" do not exist' in refused(klamm, line, code=0)
    assert "is not found" in refused(klamm, f"kafka-consumer-groups --describe --group {topic}", code=0)


def test_looking_makes_no_topic(klamm, tmp_path: Path):
    ghost = unique("ghost")
    plan, offsets = tmp_path / "plan.json", tmp_path / "offsets.csv"
    plan.write_text(f'{{"partitions": [{{"topic": "{ghost}", "partition": 0, "offset": 1, "replicas": [1]}}]}}')
    offsets.write_text(f"{ghost},0,1\n")
    described = refused(klamm, f"kafka-transactions describe-producers --topic {ghost} --partition 0")
    assert f"Failed to describe producers for partition {ghost}-0 on leader" in described
    assert "UnknownTopicOrPartitionException" in described
    aborted = refused(klamm, f"kafka-transactions abort --topic {ghost} --partition 0 --start-offset 0")
    assert "UnknownTopicOrPartitionException" in aborted
    marked = f"--topic {ghost} --partition 0 --producer-id 1 --producer-epoch 0 --coordinator-epoch 0"
    assert "UnknownTopicOrPartitionException" in refused(klamm, f"kafka-transactions abort {marked}")
    for line in (
        f"kafka-transactions find-hanging --topic {ghost}",
        f"kafka-consumer-groups --reset-offsets --group {ghost} --topic {ghost} --to-latest --dry-run",
        f"kafka-consumer-groups --reset-offsets --group {ghost} --topic {ghost}:0 --to-latest --dry-run",
        f"kafka-consumer-groups --reset-offsets --group {ghost} --from-file {offsets} --dry-run",
        f"kafka-configs --describe --topic {ghost}",
        f"kafka-delete-records --offset-json-file {plan}",
    ):
        refused(klamm, line, code=0)
    for line in (
        f"kafka-get-offsets --topic {ghost}",
        f"kafka-topics --describe --topic {ghost}",
        f"kafka-leader-election --election-type preferred --path-to-json-file {plan}",
        f"kafka-reassign-partitions --execute --reassignment-json-file {plan}",
        f"kafka-reassign-partitions --verify --reassignment-json-file {plan}",
        f"kafka-reassign-partitions --cancel --reassignment-json-file {plan}",
    ):
        refused(klamm, line)
    assert ghost not in run("kafka-topics", "--list", "--bootstrap-server", klamm.bootstrap).stdout.split()

"""`klamm produce`: what a line of JSON is, what is refused before it is lost, and how long it waits."""

import json
import time

import pytest
from click.testing import CliRunner

from harness import KlammProcess, unique
from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.cli.record_format import record_row
from klamm.cli.record_input import from_json
from klamm.client.types import Record


def draft(given):
    made = from_json(given if isinstance(given, bytes) else json.dumps(given).encode(), "line 1: ")
    return {name: value for name, value in made.items() if value is not None and name != "where"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"value": 1}, {"value": b"1"}),
        ({"key": "k", "value": "v", "partition": 3, "timestamp": 5},
         {"key": b"k", "value": b"v", "partition": 3, "timestamp": 5}),
        ({"value": "v", "headers": {"a": "1", "b": None}}, {"value": b"v", "headers": [("a", b"1"), ("b", None)]}),
        ({"value": "v", "headers": [["a", "1"], ["a", "2"]]}, {"value": b"v", "headers": [("a", b"1"), ("a", b"2")]}),
        ({"key": "k", "value": None}, {"key": b"k"}),
        ({"value": {"base64": "AP8="}, "timestamp": -1}, {"value": b"\x00\xff"}),
        ({"topic": "t", "offset": 7, "value": "v"}, {"value": b"v"}),
        # A value itself: what has neither value nor key, and what is no object.
        ({"timestamp": "yesterday", "event": "x"}, {"value": b'{"timestamp": "yesterday", "event": "x"}'}),
        (b'{"price":  1.50}', {"value": b'{"price":  1.50}'}),
        (b"[1, 2]", {"value": b"[1, 2]"}), (b"7", {"value": b"7"}), (b"{}", {"value": b"{}"}),
    ],
)  # fmt: skip
def test_what_a_line_of_json_is(given, sent):
    assert draft(given) == sent


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kye": "j", "value": 1}, ["line 1", "'kye'", "did you mean 'key'"]),
        ({"vlaue": 1, "key": "j"}, ["'vlaue'", "did you mean 'value'"]),
        ({"sensor": "a", "value": 3}, ["'sensor'", '{"value": ...}', "-i lines"]),
        ({"key": 5, "timestamp": 1}, ['no "value"', '"value": null']),
        ({"headers": {"a": 1}}, ['no "value"']),
        ({"value": 1, "timestamp": "yesterday"}, ["timestamp is 'yesterday'", "milliseconds"]),
        ({"value": 1, "timestamp": 1.5}, ["timestamp is 1.5"]),
        ({"value": 1, "partition": "0"}, ["partition is '0'"]),
        ({"value": 1, "partition": -1}, ["partition is -1"]),
        ({"value": 1, "partition": True}, ["partition is True"]),
        ({"value": 1, "headers": "a=1"}, ["headers are 'a=1'"]),
        ({"value": 1, "headers": [["a"]]}, ["a header is ['a']"]),
        ({"value": {"base64": "?"}}, ["no JSON record"]),
        (b"{", ["no JSON record"]),
    ],
)  # fmt: skip
def test_half_a_record_is_refused(given, words):
    with pytest.raises(Exception, match="line 1: this is no JSON record") as refused:
        draft(given)
    for word in words:
        assert word in refused.value.message


def test_headers_of_one_name_come_back_all():
    record = Record("t", 0, 0, 5, b"k", b"v", (("a", b"1"), ("a", b"2")), 0)
    row = record_row(record)
    assert row["headers"] == [["a", "1"], ["a", "2"]]
    assert draft(row)["headers"] == [("a", b"1"), ("a", b"2")]


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))


@pytest.fixture
def run(klamm):
    def call(*args, exits=0, stdin=None, bootstrap=klamm.bootstrap):
        result = CliRunner().invoke(cli, [*map(str, args), "-b", bootstrap], input=stdin, prog_name="klamm")
        assert result.exit_code == exits, result.output
        return result

    return call


def test_a_partition_that_is_not_there(run, wire):
    name = wire.create_topic(partitions=2)
    message = run("produce", name, "-i", "jsonl", stdin='{"value": 1}\n{"value": 2, "partition": 7}\n', exits=3).stderr
    assert "UNKNOWN_TOPIC_OR_PARTITION" in message
    assert "standard input, line 2" in message
    assert "2 partitions" in message
    assert f"1 record before it was written to {name}" in message
    assert "none is number 9" in run("produce", name, "-p", "9", stdin="x\n", exits=exit_codes.NOT_FOUND).stderr
    run("produce", name, "-i", "jsonl", stdin='{"value": 3, "partition": 1}\n{"value": 4, "partition": 1}\n')
    run("produce", name, "-i", "jsonl", "-p", "0", stdin='{"value": 5, "partition": 7}\n')
    new = unique("new")
    message = run(
        "produce", new, "-i", "jsonl", stdin='{"value": 1, "partition": 3}\n', exits=exit_codes.NOT_FOUND
    ).stderr
    assert f"`klamm topic create {new} -p 4`" in message
    rows = [json.loads(line) for line in run("consume", name).stdout.splitlines()]
    assert {row["value"]: row["partition"] for row in rows if row["value"] != "1"} == {"3": 1, "4": 1, "5": 0}


def test_a_dry_run_says_whether_the_topic_would_be_made(run, tmp_path):
    name = unique("new")
    shown = run("produce", name, "--dry-run", stdin="x\n").stdout
    assert shown == f"+ topic {name}, made by the cluster with its defaults\n+ {name} value=x\n"
    assert name not in run("topic", "ls").stdout
    with KlammProcess(tmp_path, overrides={"auto.create.topics.enable": "false"}) as strict:
        message = run(
            "produce", name, "--dry-run", stdin="x\n", exits=exit_codes.NOT_FOUND, bootstrap=strict.bootstrap
        ).stderr
        assert f"there is no topic {name}" in message
        assert f"`klamm topic create {name}`" in message


def test_a_record_too_large_for_this_client_is_no_matter_of_the_topic(run, wire, tmp_path):
    name = wire.create_topic(**{"max.message.bytes": "8000000"})
    file = tmp_path / "f5.bin"
    file.write_bytes(bytes(5_000_000))
    message = run("produce", name, "-i", "file", file, exits=1).stderr
    advice = message.rpartition("-X ")[2].strip()
    assert advice.startswith("max.request.size=")
    assert "max.message.bytes" not in message
    run("produce", name, "-i", "file", file, "-X", advice)
    small = wire.create_topic()
    assert "max.message.bytes" in run("produce", small, "-i", "file", file, "-X", advice, exits=1).stderr


def test_a_key_separator_is_named_as_it_was_written(run, wire):
    message = run("produce", wire.create_topic(), "-K", ":", stdin="none here\n", exits=2).stderr
    assert "there is no : to end the key" in message


def test_timeout_bounds_the_wait_for_a_record(run, tmp_path):
    """The only broker sends its clients to an address without a server."""
    overrides = {"advertised.listeners": "PLAINTEXT://127.0.0.1:1"}
    with KlammProcess(tmp_path, overrides=overrides) as node:
        began = time.monotonic()
        run(
            "produce", unique("t"), "--timeout", "1s", stdin="x\n", exits=exit_codes.NO_ANSWER, bootstrap=node.bootstrap
        )
        assert time.monotonic() - began < 20  # its own settings would let it wait for two minutes


def test_no_time_is_no_timeout(run):
    for time_ in ("0", "0s", "-1", "forever"):
        assert "leaves no time" in run("topic", "ls", "--timeout", time_, exits=exit_codes.USAGE).stderr


@pytest.mark.parametrize("address", ["127.0.0.1:abc", "127.0.0.1", ":9092", "127.0.0.1:0", "127.0.0.1:70000", "a:1,b"])
def test_an_address_that_is_none(run, address):
    assert "write HOST:PORT" in run("topic", "ls", bootstrap=address, exits=exit_codes.USAGE).stderr

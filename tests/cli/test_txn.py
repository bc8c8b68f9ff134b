"""`klamm txn` shows transactions and ends those that hang."""

import json

import pytest
from click.testing import CliRunner

from harness import Wire, unique
from klamm.cli.main import cli
from third_party.transactional import ConfluentTxn, Fenced, read_all


def run(klamm, *args: str, exits: int = 0) -> str:
    result = CliRunner().invoke(cli, ["txn", *args, "-b", klamm.bootstrap], prog_name="klamm")
    assert result.exit_code == exits, result.output
    return result.output


@pytest.fixture
def topic(klamm):
    with Wire(klamm.port) as wire:
        return wire.create_topic()


def test_an_open_transaction_is_listed_and_shown(klamm, topic):
    name = unique("shop")
    producer = ConfluentTxn(klamm.bootstrap, name)
    producer.begin()
    producer.send(topic, b"half")
    producer.flush()
    listed = json.loads(run(klamm, "ls", "-o", "json", "--state", "Ongoing"))
    assert name in [row["transactional_id"] for row in listed]
    shown = json.loads(run(klamm, "show", name, "-o", "json"))
    assert shown["state"] == "Ongoing"
    assert shown["timeout_ms"] == 30_000
    assert shown["open_for_ms"] >= 0
    assert name in run(klamm, "ls", "--pattern", "shop-.*")
    assert name not in run(klamm, "ls", "--pattern", "shop")
    assert name not in run(klamm, "ls", "--older-than", "10m")
    table = run(klamm, "show", name, "-o", "table").splitlines()
    assert table[0].split() == [
        "TRANSACTIONAL", "ID", "STATE", "PRODUCER", "ID", "PRODUCER", "EPOCH", "TIMEOUT", "OPEN", "FOR", "PARTITIONS",
    ]  # fmt: skip
    producer.abort()
    producer.close()


def test_an_id_is_aborted_and_readers_go_on(klamm, topic):
    name = unique("bill")
    producer = ConfluentTxn(klamm.bootstrap, name)
    producer.begin()
    producer.send(topic, b"half")
    producer.flush()
    assert run(klamm, "abort", name, "--yes") == f"Aborted {name}; its producer is fenced.\n"
    assert read_all(klamm.bootstrap, topic) == [[]]
    assert "it is" in run(klamm, "abort", name, exits=1)
    with pytest.raises(Fenced):
        producer.commit()
    producer.close()


def test_what_hangs_in_a_partition_is_ended_by_hand(klamm, topic):
    producer = ConfluentTxn(klamm.bootstrap, unique("hang"))
    producer.begin()
    producer.send(topic, b"hangs")
    producer.flush()
    place = ["--topic", topic, "--partition", "0", "--start-offset"]
    assert "open ones began at 0" in run(klamm, "abort", *place, "5", exits=1)
    assert "Ended the transaction" in run(klamm, "abort", *place, "0", "--yes")
    assert "none is open there" in run(klamm, "abort", *place, "0", exits=1)
    with Wire(klamm.port) as wire:
        assert wire.list_offset(topic, -1, isolation_level=1).offset == 2
    producer.close()


def test_mistakes_are_answered_with_one_sentence(klamm):
    assert "was never used" in run(klamm, "show", "unknown-id", exits=3)
    assert "there is no state Odd" in run(klamm, "ls", "--state", "Odd", exits=2)
    assert "INVALID_REGULAR_EXPRESSION" in run(klamm, "ls", "--pattern", "(", exits=1)
    assert "--start-offset" in run(klamm, "abort", exits=2)
    nowhere = CliRunner().invoke(cli, ["txn", "ls", "-b", "127.0.0.1:1"], prog_name="klamm")
    assert nowhere.exit_code == 5
    assert nowhere.output.startswith("klamm: no broker answers at 127.0.0.1:1")

"""Java producers in the middle of transactions: fenced by their twins, timed out, with offsets in their hands."""

import itertools
import re
import time
from collections.abc import Iterator

import pytest

from compat.brokers import Broker
from compat.clients import ClientFailed, JavaClient, Record
from compat.test_group_tools import GROUPS, TOOLS, json_lines, table

TRANSACTIONS = TOOLS + "TransactionsCommand"
FENCED = (47, 90)
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED."""
_names = itertools.count()


class Writer:
    """A transactional producer in some JVM."""

    def __init__(self, home: JavaClient, broker: Broker, transactional_id: str, timeout_ms: int = 30_000) -> None:
        self._home, self._name = home, f"writer-{next(_names)}"
        home.call(
            "writer_open",
            writer=self._name,
            bootstrap=broker.bootstrap,
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
        )

    def do(self, what: str, **details: object) -> dict[str, int]:
        return self._home.call("writer", writer=self._name, what=what, **details)

    def send(self, topic: str, value: str, partition: int = 0) -> int:
        return self.do("send", topic=topic, partition=partition, value=value)["offset"]


@pytest.fixture
def other_java() -> Iterator[JavaClient]:
    """Another JVM, as another process would be."""
    client = JavaClient()
    yield client
    client.close()


def values(java: JavaClient, broker: Broker, topic: str, count: int = 0) -> list[str]:
    seen = java.consume(broker.bootstrap, topic, count=count, isolation="read_committed")
    return [(record.value or b"").decode() for record in seen]


def test_a_zombie_is_fenced_by_its_successor(
    java: JavaClient, other_java: JavaClient, broker: Broker, topic: str
) -> None:
    java.create(broker.bootstrap, topic)
    zombie = Writer(java, broker, topic)
    zombie.do("begin")
    zombie.send(topic, "committed")
    zombie.do("commit")
    zombie.do("begin")
    zombie.send(topic, "lost")
    heir = Writer(other_java, broker, topic)
    heir.do("begin")
    heir.send(topic, "heir's")
    with pytest.raises(ClientFailed) as refused:
        zombie.do("commit")
    assert refused.value.code in FENCED, refused.value
    heir.do("commit")
    assert values(java, broker, topic) == ["committed", "heir's"]
    late = Writer(java, broker, topic)
    heir.do("begin")
    with pytest.raises(ClientFailed) as refused:
        heir.send(topic, "too late")
    assert refused.value.code in FENCED, refused.value
    late.do("begin")
    late.send(topic, "aborted")
    late.do("abort")
    assert values(java, broker, topic) == ["committed", "heir's"]
    for writer in (zombie, late):
        writer.do("close")


def test_a_killed_producer_does_not_hold_its_readers_up(
    java: JavaClient, other_java: JavaClient, broker: Broker, topic: str
) -> None:
    """kill -9 in the middle: the coordinator aborts when the time is over, and what came after can be read."""
    java.create(broker.bootstrap, topic)
    victim = Writer(other_java, broker, topic, timeout_ms=1500)
    victim.do("begin")
    victim.send(topic, "of the dead")
    java.produce(broker.bootstrap, topic, [Record(b"behind it")])
    other_java.close()
    assert values(java, broker, topic) == [], "the open transaction does not hide what stands behind it"
    deadline = time.monotonic() + 20
    while values(java, broker, topic) != ["behind it"]:
        assert time.monotonic() < deadline, "the transaction was not aborted"
        time.sleep(0.1)
    listed = java.tool(TRANSACTIONS, "--bootstrap-server", broker.bootstrap, "list").out
    assert re.search(rf"{topic}\s+1\s+\d+\s+CompleteAbort", listed), listed


def test_offsets_are_part_of_the_transaction(java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic)
    java.produce(broker.bootstrap, topic, [Record(b"%d" % i) for i in range(10)])
    group = f"group-{topic}"

    def committed() -> dict[str, str]:
        where = ("--bootstrap-server", broker.bootstrap)
        text = java.tool(GROUPS, *where, "--describe", "--group", group).out
        return {row["PARTITION"]: row["CURRENT-OFFSET"] for row in table(text)} if group in text else {}

    writer = Writer(java, broker, topic)
    for offset, end, expected in ((3, "commit", "3"), (7, "abort", "3"), (9, "commit", "9")):
        writer.do("begin")
        writer.do("offset", group=group, topic=topic, partition=0, offset=offset)
        writer.do(end)
        deadline = time.monotonic() + 10
        while committed() != {"0": expected}:
            assert time.monotonic() < deadline, (offset, end, committed())
            time.sleep(0.05)
    writer.do("close")


def test_every_transaction_has_an_epoch_of_its_own(java: JavaClient, broker: Broker, topic: str) -> None:
    """Version 2 of transactions, and what they leave behind, read by Kafka's decoder."""
    where = ("--bootstrap-server", broker.bootstrap)
    features = java.tool(TOOLS + "FeatureCommand", *where, "describe").out
    assert re.search(r"Feature: transaction\.version\s.*FinalizedVersionLevel: 2", features), features
    java.create(broker.bootstrap, topic, 2)
    writer = Writer(java, broker, topic)
    places = []
    for number in range(4):
        writer.do("begin")
        for partition in (0, 1):
            writer.send(topic, f"{number}", partition)
        open_now = java.tool(TRANSACTIONS, *where, "describe", "--transactional-id", topic).out
        match = re.search(rf"1\s+{topic}\s+(\d+)\s+(\d+)\s+Ongoing\s+30000\s", open_now)
        assert match, open_now
        assert all(f"{topic}-{partition}" in open_now for partition in (0, 1)), open_now
        places.append((int(match[1]), int(match[2])))
        shown = java.tool(TRANSACTIONS, *where, "describe-producers", "--topic", topic, "--partition", "1").out
        assert re.search(rf"{match[1]}\s+{match[2]}\s+", shown), shown
        writer.do("abort" if number == 2 else "commit")
    writer.do("close")
    assert {producer_id for producer_id, _ in places} == {places[0][0]}
    epochs = [epoch for _, epoch in places]
    assert epochs == list(range(epochs[0], epochs[0] + 4))
    assert values(java, broker, topic) == ["0", "1", "3"]

    files = sorted(broker.data.glob("__transaction_state-*/*.log"))
    dumped = java.tool(TOOLS + "DumpLogSegments", "--transaction-log-decoder", "--files", ",".join(map(str, files)))
    assert dumped.exit == 0, dumped.text[-2000:]
    mine = [line for line in dumped.out.splitlines() if f'"{topic}"' in line]
    last = json_lines(mine[-1].partition("payload:")[2])[0]
    assert (last["data"]["producerId"], last["data"]["transactionStatus"]) == (places[0][0], 4), mine[-1]

"""Transactions that do not end: stuck ones with the reason, and those that hang in a partition."""

import re
import time

import pytest

from harness.wire import Wire
from klamm.client import TopicPartition
from klamm.client.admin.transaction_types import ProducerState, TransactionDescription
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.transaction_states import explain_stuck, find_hanging
from klamm.console.service import ConsoleConfig
from klamm.records.batch import build_batch
from klamm.testing import InProcessBroker, unique

from .served import ServedConsole

PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker():
    """A node that takes transactional batches without a look at their coordinator, as brokers before KIP-890 do."""
    with InProcessBroker(config={"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(broker):
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), interval_s=600)) as console:
        console.collect()
        yield console


def make_topic(broker, partitions=2):
    topic = unique("payments")
    with broker.admin() as admin:
        admin.create_topic(topic, num_partitions=partitions)
    return topic


def write_orphan(broker, topic, producer_id, partition=0):
    """Write a batch of a transaction that no coordinator has."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch(
        [(now_ms, None, b"orphan", ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    with Wire(broker.port) as wire:
        answer = wire.call(
            "produce",
            11,
            transactional_id="gone",
            acks=-1,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}],
        )
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def read_committed(broker, topic, count):
    with broker.consumer(
        topic, group_id=unique("reader"), isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        records = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(records) < count and time.monotonic() < deadline_s:
            records += reader.poll(0.2)
        return [record.value for record in records]


def test_a_hanging_transaction_is_found_and_aborted(broker, console, visit):
    topic = make_topic(broker)
    write_orphan(broker, topic, 987_654, partition=1)
    with broker.producer() as producer:
        producer.send(topic, b"behind it", partition=1)
        producer.flush()
    console.collect()
    path = "/c/test/hanging-transactions"
    page = visit.get(path)
    assert f"{topic}-1" in page
    assert "no coordinator has an open transaction of producer 987654" in page
    fields = dict(re.findall(r'name="(topic|partition|producer_id|start_offset)" value="([^"]+)"', page))
    assert fields == {"topic": topic, "partition": "1", "producer_id": "987654", "start_offset": "0"}
    page = visit.post(path, path, **fields)
    assert f"Aborted the transaction of producer 987654 in {topic}-1." in page
    assert read_committed(broker, topic, 1) == [b"behind it"]
    assert f"{topic}-1" not in visit.get(path).partition("<table")[2]
    assert "abort hanging transaction" in visit.get("/c/test/audit")


def test_an_open_transaction_with_a_coordinator_does_not_hang(broker, console, visit):
    topic, name = make_topic(broker), unique("alive")
    with broker.producer(transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0).result(PATIENCE_S)
        console.collect()
        page = visit.get(f"/c/test/hanging-transactions?topic={topic}")
        assert "2 partitions were searched, 1 with an open transaction." in page
        assert "No transaction hangs." in page
        # Nor can it be aborted by a form with its numbers.
        with broker.admin() as admin:
            place = TopicPartition(topic, 0)
            (state,) = admin.describe_producers([place])[place]
        write_orphan(broker, topic, 55_555, partition=1)
        fields = {"topic": topic, "partition": "0", "producer_id": str(state.producer_id), "start_offset": "0"}
        console.collect()
        page = visit.post("/c/test/hanging-transactions", "/c/test/hanging-transactions", **fields)
        assert "does not hang any more; nothing was changed" in page
        producer.commit_transaction()
    assert b"x" in read_committed(broker, topic, 1)


def test_a_search_names_a_topic_that_exists(visit):
    visit.get("/c/test/hanging-transactions?topic=absent", 404)


def test_an_open_transaction_is_not_stuck_until_it_should_have_ended(broker, visit):
    topic, name = make_topic(broker), unique("young")
    with broker.producer(transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").result(PATIENCE_S)
        page = visit.get(f"/c/test/transactions?q={name}")
        assert name in page
        assert ">stuck<" not in page
        producer.abort_transaction()


# Pure parts

NOW_MS = 10_000_000
PLACE = TopicPartition("t", 0)


def transaction(state="Ongoing", open_ms=0, timeout_ms=60_000, partitions=(PLACE,), producer_id=7, epoch=3):
    return TransactionDescription("id", 2, state, producer_id, epoch, timeout_ms, NOW_MS - open_ms, tuple(partitions))


def state_of(producer_id=7, epoch=3, start=5):
    return ProducerState(producer_id, epoch, 0, NOW_MS, 0, start)


@pytest.mark.parametrize(
    ("about", "leaderless", "words"),
    [
        (transaction(open_ms=30_000), (), ""),
        (transaction(open_ms=70_000), (), ""),  # the coordinator aborts it in the next seconds
        (transaction(open_ms=90_000), (), "longer than its timeout of 60 s; coordinator 2 should have aborted it"),
        (transaction(open_ms=1_000_000, timeout_ms=3_600_000), (), "its producer neither commits nor aborts"),
        (transaction("PrepareCommit", 10_000), (), ""),
        (transaction("PrepareCommit", 10_000), (PLACE,), "t-0 cannot get the marker without a leader"),
        (transaction("PrepareAbort", 10_000), (PLACE, TopicPartition("t", 1)), "t-0 and 1 other cannot"),
        (transaction("PrepareAbort", 100_000), (), "its markers are not written"),
        (transaction("CompleteCommit", 100_000_000), (), ""),
    ],
)
def test_a_stuck_transaction_has_a_reason(about, leaderless, words):
    reason = explain_stuck(about, NOW_MS, leaderless)
    assert words in reason
    assert bool(reason) is bool(words)


@pytest.mark.parametrize(
    ("transactions", "words"),
    [
        ([], "no coordinator has an open transaction of producer 7"),
        ([transaction("CompleteCommit")], "no coordinator has"),
        ([transaction(producer_id=8)], "no coordinator has"),
        ([transaction(partitions=[TopicPartition("t", 1)])], "does not have this partition"),
        ([transaction(epoch=4)], "a later transaction, of epoch 4"),
        ([transaction()], ""),
        ([transaction("PrepareAbort", epoch=4)], ""),  # its markers have the next epoch
    ],
)
def test_what_hangs_in_a_partition(transactions, words):
    hanging = find_hanging({PLACE: [state_of(), state_of(producer_id=9, start=None)]}, transactions)
    assert [entry.reason for entry in hanging if words not in entry.reason] == []
    assert len(hanging) == bool(words)

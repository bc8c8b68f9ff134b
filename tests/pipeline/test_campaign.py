"""Exactly once, by name: a process is killed between every two steps of the sink's protocol; none is lost or twice.

Three batches are copied from a topic with gaps to another: aborted transactions have left them, or compaction. In the
second one a task, the driver or the broker dies at a named point; the batch is run again, as Spark does. What a
third-party client then reads, committed only, is what a computation over the whole input says.

    KLAMM_CAMPAIGN=all python -m pytest tests/pipeline/test_campaign.py     (or: make campaign)
"""

import asyncio
import itertools
import os
import re
import time
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest

from klamm.client import Admin
from klamm.pipeline.core.batch_ledger import LedgerError
from klamm.pipeline.core.offsets import Range
from klamm.pipeline.partition_reader import read_range
from klamm.pipeline.task_writer import TaskWriter, WriteId, abort_batch
from klamm.testing import broker, unique
from pipeline.cuts import commit, decide, dies_by, options, plan, written

TASK = {
    "a task, before it looks whether the batch is done": ("OffsetFetch", 1, False),
    "a task, after it has looked": ("OffsetFetch", 1, True),
    "a task, before it opens its transaction": ("InitProducerId", 1, False),
    "a task, after it has opened its transaction": ("InitProducerId", 1, True),
    "a task, before its offset commit": ("TxnOffsetCommit", 1, False),
    "a task, after its offset commit": ("TxnOffsetCommit", 1, True),
    "a task, before its records": ("Produce", 1, False),
    "a task, after its records": ("Produce", 1, True),
}
DRIVER = {
    "the driver, before it locks others out": ("InitProducerId", 1, False),
    "the driver, after it has locked others out": ("InitProducerId", 1, True),
    "the driver, before it looks what is decided": ("OffsetFetch", 1, False),
    "the driver, after it has looked": ("OffsetFetch", 1, True),
    "the driver, before it looks for zombies": ("ListTransactions", 1, False),
    "the driver, after it has looked for zombies": ("ListTransactions", 1, True),
    "the driver, before it writes the decision": ("Produce", 1, False),
    "the driver, after it has written the decision": ("Produce", 1, True),
    "the driver, before it points to the decision": ("TxnOffsetCommit", 1, False),
    "the driver, after it has pointed to the decision": ("TxnOffsetCommit", 1, True),
    "the driver, before it decides": ("EndTxn", 1, False),
    "the driver, after it has decided": ("EndTxn", 1, True),
    "the driver, before it ends the first transaction": ("EndTxn", 2, False),
    "the driver, after it has ended the first transaction": ("EndTxn", 2, True),
    "the driver, before it ends the last transaction": ("EndTxn", 3, False),
    "the driver, after it has ended the last transaction": ("EndTxn", 3, True),
    "the driver, before it writes that the batch is done": ("TxnOffsetCommit", 2, False),
    "the driver, after it has written that the batch is done": ("TxnOffsetCommit", 2, True),
    "the driver, before that counts": ("EndTxn", 4, False),
    "the driver, after that counts, before Spark's commit log": ("EndTxn", 4, True),
}
BROKER = (
    "the broker, while a task writes",
    "the broker, after the tasks have prepared",
    "the broker, after the decision",
    "the broker, after the first transaction is ended",
    "the broker, after the batch is done",
)
OTHER = (
    "a task's message, after the task has prepared",
    "Spark's commit log, two batches of it",
    "the transactions, by their timeout, after the decision",
    "the slower of two attempts at the same task",
    "the driver, in an abort after a commit that failed halfway",
)
POINTS = [*TASK, *DRIVER, *BROKER, *OTHER]
USUAL = {
    "a task, after its records": "compacted",
    "the driver, after it has ended the first transaction": "aborted",
    "the broker, after the decision": "aborted",
}
ALL = os.environ.get("KLAMM_CAMPAIGN") == "all"
KEPT = {"aborted": 48, "compacted": 30}
"""Records that are left of an input."""
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "2000"}
BATCHES, PARTITIONS, STEP, END = 3, 2, 14, 42
"""Offsets of a partition: six transactions of six records and a marker."""
pytestmark = pytest.mark.timeout(600)


def test_there_are_enough_points():
    assert len(set(POINTS)) == len(POINTS) >= 25
    assert set(USUAL) <= set(POINTS)


def test_the_decision_lists_them():
    folder = Path(__file__).parents[2] / "docs" / "decisions"
    text = (folder / "0009-spark-sink-prepares-in-tasks-commits-in-driver.md").read_text()
    named = text.partition("The points by name")[2]
    assert re.findall(r"^\d+\. (.*)$", named, re.MULTILINE) == POINTS


@pytest.fixture
def node():
    """A broker of its own, because it may be killed."""
    with broker(child=True, config={"log.cleaner.backoff.ms": "100"}) as running:
        yield running


def committed(bootstrap, topic, partitions):
    """What others see, by librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("judge"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        values, ended = [], set()
        while len(ended) < partitions:
            message = consumer.poll(60)
            assert message is not None, f"{topic} has no end: is a transaction open?"
            if message.error() is None:
                values.append(message.value())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        return sorted(values)
    finally:
        consumer.close()


def fill(node, gaps):
    """Committed and aborted transactions by turns; half of the keys come again in every turn, for compaction."""
    topic = node.topic("in", partitions=PARTITIONS, config=COMPACTED if gaps == "compacted" else None)
    with node.producer(transactional_id=topic) as producer:
        producer.init_transactions()
        for turn in range(6):
            producer.begin_transaction()
            for number in range(PARTITIONS * 6):
                key = f"{number}" if number % 4 < 2 else f"{turn}-{number}"
                value = f"{turn}-{number} " + "x" * 300
                producer.send(topic, value.encode(), key=key.encode(), partition=number % PARTITIONS)
            producer.flush()
            producer.abort_transaction() if turn in (1, 4) else producer.commit_transaction()
    deadline = time.monotonic() + 200
    while len(committed(node.bootstrap, topic, PARTITIONS)) != KEPT[gaps]:  # then there is nothing left to compact
        assert time.monotonic() < deadline, "compaction did not come to its end"
    return topic


async def copy(bootstrap, source, sink_topic, write_id):
    """A task: its part of a batch, from topic to topic; returns its transaction."""
    first = write_id.batch * STEP
    last = (write_id.batch + 1) * STEP if write_id.batch < BATCHES - 1 else END
    wanted = Range(source, write_id.task, first, last)
    rows = await asyncio.to_thread(_rows, bootstrap, wanted)
    writer = TaskWriter(options(bootstrap, sink_topic), write_id)
    if not await writer.begin():
        return None
    for row in rows:
        await writer.send(sink_topic, row, None)
    return await writer.prepare()


def _rows(bootstrap, wanted):
    client = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
    batches = read_range(wanted, client, headers=False, fail_on_data_loss=True)
    return [
        pa.record_batch({"value": pa.array([b"copy of " + row for row in rows.column("value").to_pylist()])})
        for rows in batches
    ]


class Job:
    """A query without Spark around it."""

    def __init__(self, node, source, out):
        self.node, self.source, self.out, self.sink = node, source, out, unique("sink")

    def task(self, batch, task, attempt=0):
        return asyncio.run(copy(self.node.bootstrap, self.source, self.out, WriteId(self.sink, batch, task, attempt)))

    def tasks(self, batch, attempt=0):
        return [self.task(batch, number, attempt) for number in range(PARTITIONS)]

    def commit(self, batch, transactions):
        checkpoint = plan(self.sink, batch)
        asyncio.run(commit(self.node.bootstrap, self.out, self.sink, batch, transactions, checkpoint))

    def decide(self, batch, transactions, ended):
        asyncio.run(decide(self.node.bootstrap, self.out, self.sink, batch, transactions, ended))

    def abort(self, batch):
        asyncio.run(abort_batch(options(self.node.bootstrap, self.out), WriteId(self.sink, batch)))

    def run(self, batch, attempt=0):
        self.commit(batch, self.tasks(batch, attempt))

    def killed_task(self, batch, death):
        write_id = WriteId(self.sink, batch, 0, 0)
        assert dies_by(death, copy, self.node.bootstrap, self.source, self.out, write_id)
        self.commit(batch, [self.task(batch, 0, 1), self.task(batch, 1)])

    def killed_driver(self, batch, death):
        transactions = self.tasks(batch)
        checkpoint = plan(self.sink, batch)
        assert dies_by(death, commit, self.node.bootstrap, self.out, self.sink, batch, transactions, checkpoint)
        self.run(batch)

    def restart_broker(self):
        self.node.kill()
        self.node.start()


def broker_killed(job, batch, point):
    if point.endswith("while a task writes"):
        death = ("Produce", 1, True)  # the task goes with it: its transaction is open when the broker comes back
        assert dies_by(death, copy, job.node.bootstrap, job.source, job.out, WriteId(job.sink, batch, 0, 0))
        job.restart_broker()
        job.commit(batch, [job.task(batch, 0, 1), job.task(batch, 1)])
        return
    transactions = job.tasks(batch)
    if point.endswith("after the tasks have prepared"):
        job.restart_broker()
        job.commit(batch, transactions)
        return
    if point.endswith("after the batch is done"):
        job.commit(batch, transactions)
    else:
        job.decide(batch, transactions, int("first transaction" in point))
    job.restart_broker()
    job.run(batch)


def otherwise(job, batch, point):
    if point.startswith("a task's message"):
        job.task(batch, 0, 0)
        job.commit(batch, [job.task(batch, 0, 1), job.task(batch, 1)])
    elif point.startswith("Spark's commit log"):
        job.run(batch)
        # The query begins with the newest planned batch; the one before is refused, as its rows are there.
        with pytest.raises(LedgerError, match=r"it was set back|the checkpoint has no batches"):
            job.run(0)
        job.run(batch)
    elif point.startswith("the transactions"):
        transactions = job.tasks(batch)
        job.decide(batch, transactions, 1)
        with Admin(bootstrap_servers=job.node.bootstrap) as admin:
            admin.fence_producers([transactions[1].prepared.transactional_id])
        job.run(batch)
    elif point.startswith("the slower"):
        slow, quick = job.tasks(batch, 0), job.tasks(batch, 1)
        job.commit(batch, [slow[0], quick[1]])
    else:
        job.decide(batch, job.tasks(batch), 1)
        job.abort(batch)
        job.run(batch)


@pytest.mark.parametrize(("point", "gaps"), list(itertools.product(POINTS, KEPT) if ALL else USUAL.items()))
def test_killed(node, point, gaps):
    source, out = fill(node, gaps), node.topic("out", partitions=PARTITIONS)
    job = Job(node, source, out)
    job.run(0)
    if point in TASK:
        job.killed_task(1, TASK[point])
    elif point in DRIVER:
        job.killed_driver(1, DRIVER[point])
    elif point in BROKER:
        broker_killed(job, 1, point)
    else:
        otherwise(job, 1, point)
    job.run(2)
    expected = [b"copy of " + value for value in committed(node.bootstrap, source, PARTITIONS)]
    assert len(expected) == KEPT[gaps]
    assert committed(node.bootstrap, out, PARTITIONS) == expected
    assert written(job.sink, 2), "the ledger was not asked"
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        assert not [
            transaction
            for transaction in admin.list_transactions(states=["Ongoing"])
            if "sink" in transaction.transactional_id
        ]

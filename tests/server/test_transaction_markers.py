"""Markers are written until every partition has them: leaders that are away, topics that are gone, a new epoch."""

import time

import pytest

from harness import Wire
from harness.inprocess import NodeThread
from klamm.model.errors import ErrorCode

from .test_transactions import Producer, committed, until


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with NodeThread(
        tmp_path_factory.mktemp("markers"), "transaction.abort.timed.out.transaction.cleanup.interval.ms=200"
    ) as node:
        yield node


@pytest.fixture
def wire(own):
    with Wire(own.port) as connection:
        yield connection


def state(wire: Wire, producer: Producer) -> str:
    reply = wire.call("describe_transactions", 0, transactional_ids=[producer.name])
    return str(reply.transaction_states[0].transaction_state)


def leads(own: NodeThread, topic: str, value: bool) -> None:
    """Let a replica believe that it leads, or not."""

    def change(node):
        replica = node.services.replicas.find(topic, 0)
        replica.leads = value

    own.run(change)


def wait_for(look, wanted, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while look() != wanted:
        assert time.monotonic() < deadline, look()
        time.sleep(0.01)


def test_a_partition_that_cannot_take_its_marker_gets_it_later(own, wire):
    good, away = wire.create_topic(), wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(good, b"x") == 0
    assert producer.send(away, b"x") == 0
    leads(own, away, value=False)
    assert producer.end(commit=True) == 0
    wait_for(lambda: committed(wire, good), [b"x"])
    assert state(wire, producer) == "PrepareCommit"
    again = wire.call(
        "init_producer_id", 5, transactional_id=producer.name, transaction_timeout=60_000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    assert again.error_code == ErrorCode.CONCURRENT_TRANSACTIONS, "markers are still missing"
    leads(own, away, value=True)
    wait_for(lambda: state(wire, producer), "CompleteCommit")
    assert committed(wire, away) == [b"x"]


def test_a_deleted_topic_is_owed_nothing(own, wire):
    kept, gone = wire.create_topic(), wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(kept, b"x") == 0
    assert producer.send(gone, b"x") == 0
    reply = wire.call("delete_topics", 5, topic_names=[gone], timeout=10_000)
    assert reply.responses[0].error_code == ErrorCode.NONE
    assert producer.end(commit=True) == 0
    assert until(lambda: committed(wire, kept), [b"x"])
    wait_for(lambda: state(wire, producer), "CompleteCommit")


def test_a_topic_deleted_while_its_marker_waits_is_given_up(own, wire):
    gone = wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(gone, b"x") == 0
    leads(own, gone, value=False)
    assert producer.end(commit=True) == 0
    assert state(wire, producer) == "PrepareCommit"
    assert wire.call("delete_topics", 5, topic_names=[gone], timeout=10_000).responses[0].error_code == ErrorCode.NONE
    wait_for(lambda: state(wire, producer), "CompleteCommit")


def test_a_coordinator_that_is_loaded_again_goes_on(own, wire):
    """Its partition is led under a new epoch: markers carry it, and those of the old one are refused from then on."""
    topic = wire.create_topic()
    producer = Producer(wire).init()
    assert producer.send(topic, b"x") == 0
    leads(own, topic, value=False)
    assert producer.end(commit=True) == 0

    def reload(node):
        runtime = node.services.coordinators.transactions.runtime
        partition = runtime.partition_for(producer.name)
        runtime.load(partition, 7)

    own.run(reload)
    wait_for(lambda: state(wire, producer), "PrepareCommit")
    leads(own, topic, value=True)
    wait_for(lambda: state(wire, producer), "CompleteCommit")
    assert committed(wire, topic) == [b"x"]
    described = wire.call("describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    assert described.topics[0].partitions[0].active_producers[0].coordinator_epoch == 7

"""When a client hears of a change: in a cluster with many partitions to make at once, else when replicas follow."""

import asyncio
from types import SimpleNamespace

import pytest
import pytest_asyncio

from klamm.metadata import EMPTY_IMAGE, MetadataDelta
from klamm.protocol.messages import metadata_records as r
from klamm.server.cluster import publishers
from klamm.server.cluster.publishers import PARTITIONS_WAITED_FOR_MAX, BrokerPublisher

pytestmark = pytest.mark.asyncio

TOPIC_ID = b"a topic".ljust(16, b"\0")


class SlowReplicas:
    """Replicas that follow a change when the test says so."""

    def __init__(self) -> None:
        self.made = asyncio.Event()

    async def apply(self, *_) -> None:
        await self.made.wait()

    def reconfigure(self, *_) -> None:
        pass


class Changes:
    """A publisher that is told of one new topic."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.replicas = SlowReplicas()
        self.publisher = BrokerPublisher(1, self.replicas, SimpleNamespace(resolve=lambda image, topic: None))
        delta = MetadataDelta(EMPTY_IMAGE)
        delta.replay_all(r.RegisterBrokerRecord(broker_id=i + 1, broker_epoch=i, rack=None) for i in range(brokers))
        image = delta.apply(brokers, 1)
        self.delta = MetadataDelta(image)
        self.delta.replay(r.TopicRecord(name="orders", topic_id=TOPIC_ID))
        for index in range(partitions):
            self.delta.replay(
                r.PartitionRecord(
                    partition_id=index, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=0,
                    partition_epoch=0, directories=[bytes(15) + b"\1"],
                )
            )  # fmt: skip
        self.offset = 100
        self.image = self.delta.apply(self.offset, 1)

    def arrive(self) -> None:
        self.publisher.on_metadata_update(self.delta, self.image)


async def let_run(task: asyncio.Task) -> None:
    """Let a task go as far as it can without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)
        if task.done():
            return


@pytest_asyncio.fixture
async def started():
    publishers_started = []

    def start(brokers: int, partitions: int) -> Changes:
        changes = Changes(brokers, partitions)
        changes.publisher.start(())
        publishers_started.append(changes.publisher)
        return changes

    yield start
    for publisher in publishers_started:
        await publisher.stop()


async def test_the_only_broker_answers_when_its_replicas_are_there(started, monkeypatch):
    monkeypatch.setattr(publishers, "REPLICAS_WAIT_S", 0.0)
    changes = started(brokers=1, partitions=PARTITIONS_WAITED_FOR_MAX + 1)
    answer = asyncio.ensure_future(changes.publisher.wait_answerable(changes.offset))
    changes.arrive()
    await let_run(answer)
    assert not answer.done()
    changes.replicas.made.set()
    await asyncio.wait_for(answer, 10)


async def test_one_of_several_answers_for_many_partitions_when_it_knows_of_them(started, monkeypatch):
    monkeypatch.setattr(publishers, "REPLICAS_WAIT_S", 3600.0)
    changes = started(brokers=3, partitions=PARTITIONS_WAITED_FOR_MAX + 1)
    answer = asyncio.ensure_future(changes.publisher.wait_answerable(changes.offset))
    await let_run(answer)
    assert not answer.done(), "the change is not known yet"
    changes.arrive()
    await asyncio.wait_for(answer, 10)


async def test_one_of_several_waits_for_a_few_replicas(started, monkeypatch):
    monkeypatch.setattr(publishers, "REPLICAS_WAIT_S", 3600.0)
    changes = started(brokers=3, partitions=3)
    answer = asyncio.ensure_future(changes.publisher.wait_answerable(changes.offset))
    changes.arrive()
    await let_run(answer)
    assert not answer.done()
    changes.replicas.made.set()
    await asyncio.wait_for(answer, 10)


async def test_one_of_several_does_not_wait_long_for_replicas(started):
    changes = started(brokers=3, partitions=3)
    changes.arrive()
    await asyncio.wait_for(changes.publisher.wait_answerable(changes.offset), 10)
    assert not changes.replicas.made.is_set()


async def test_what_has_taken_effect_is_known_and_applied_in_order(started):
    changes = started(brokers=3, partitions=3)
    changes.replicas.made.set()
    later = asyncio.ensure_future(changes.publisher.wait_for(changes.offset + 1))
    changes.arrive()
    await asyncio.wait_for(changes.publisher.wait_for(changes.offset), 10)
    assert not later.done()
    later.cancel()

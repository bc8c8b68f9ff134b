"""acks=all on the quick path of Produce while a follower joins the ISR in the same turn.

Breaks when a follower is counted, and proposed for the ISR, before the records are written that the leader acknowledges
as the only replica in sync: elected later, that follower would lack them.
"""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.metadata.image import (
    BrokerImage,
    ClusterImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    TopicsImage,
)
from klamm.model.clock import ManualClock
from klamm.protocol.codec import encode
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch
from klamm.replication import ReplicaManager
from klamm.replication.settings import TopicSettings
from klamm.server.handlers.data import fetch_follower, produce_quick
from klamm.server.requests.context import ConnectionState
from klamm.storage import LogManager, StorageConfig

LEADER, FOLLOWER = 1, 2
FOLLOWER_EPOCH = 20
TOPIC_ID = b"t" * 16
PRODUCE, PRODUCE_VERSION = 0, 9
ERROR_AT = -3 - 8 - 8 - 8 - 2
"""Where a reply of one partition has its error code: before three offsets and times and three counts of tags."""


class FakeChannel:
    """A connection that keeps its replies instead of sending them."""

    def __init__(self) -> None:
        self.state = ConnectionState()
        self.replies: list[bytearray] = []
        self.deferred = 0

    def reply(self, reply: bytearray) -> None:
        self.replies.append(reply)

    def defer(self) -> SimpleNamespace:
        self.deferred += 1
        return SimpleNamespace(send=self.replies.extend)


class LeaderNode:
    """A leader that is alone in its ISR, one producer with acks=all, and one follower."""

    def __init__(self, folder) -> None:
        self.clock = ManualClock()
        self.logs = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=self.clock)
        self.logs.start("a0xbFTQNQ6y3oXwBz9Rwdw", LEADER, format_empty=True)
        self.manager = ReplicaManager(LEADER, self.logs, self.clock)
        partition = PartitionImage(
            replicas=(LEADER, FOLLOWER), isr=(LEADER,), leader=LEADER, leader_epoch=0, partition_epoch=0,
            directories=(bytes(16),) * 2,
        )  # fmt: skip
        topic = TopicImage("t", TOPIC_ID, {0: partition})
        self.topics = TopicsImage({"t": topic}, {TOPIC_ID: topic})
        self.settings = TopicSettings()
        self.set_brokers(fenced=False)
        asyncio.run(self.manager.apply(self.manager.image, {"t": topic}, {}, lambda _: self.settings))
        self.replica = self.manager.find("t", 0)
        self.channel = FakeChannel()
        self.services = SimpleNamespace(replicas=self.manager, clock=self.clock, image=self.manager.image)

    def set_brokers(self, *, fenced: bool) -> None:
        brokers = {
            LEADER: BrokerImage(LEADER, 10, b"i" * 16, {}),
            FOLLOWER: BrokerImage(FOLLOWER, FOLLOWER_EPOCH, b"j" * 16, {}, fenced=fenced),
        }
        self.manager.image = MetadataImage(topics=self.topics, cluster=ClusterImage(brokers))

    def produce(self, value: bytes) -> None:
        """Send a batch with acks=all over the quick path."""
        batch = build_batch([(1, None, value, ())])
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])],
        )
        header = encode_request_header(RequestHeader(PRODUCE, PRODUCE_VERSION, 7, "c"))
        frame = memoryview(bytearray(header + encode(request, PRODUCE_VERSION)))
        if not self.channel.state.known_prefixes:
            context = SimpleNamespace(channel=self.channel, version=PRODUCE_VERSION, frame=frame, times=None)
            produce_quick.add_prefix(self.services, context, request, self.replica, batch)
        assert produce_quick.handle(self.manager, self.channel, frame, 0, len(frame)), "not on the quick path"

    def follower_fetches(self, offset: int) -> None:
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=0, last_fetched_epoch=0
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
        )
        context = SimpleNamespace(channel=self.channel)
        fetch_follower.handle(self.services, context, request, FOLLOWER, FOLLOWER_EPOCH)

    def check_acknowledged_is_committed(self) -> None:
        assert [bytes(reply[ERROR_AT : ERROR_AT + 2]) for reply in self.channel.replies] == [b"\0\0"] * 2
        state = self.replica.state
        assert state.high_watermark == self.replica.log.log_end_offset == 2
        behind = [member for member, progress in state.followers.items() if progress.log_end_offset < 2]
        assert set(behind).isdisjoint(state.maximal_isr), "proposed for the ISR without an acknowledged record"


@pytest.fixture
def node(tmp_path):
    made = LeaderNode(tmp_path)
    yield made
    made.logs.close(clean=False)


def test_a_follower_that_fetches_after_the_append_joins_with_its_records(node):
    node.produce(b"first")
    node.manager.write_staged()
    node.produce(b"second")
    node.follower_fetches(1)  # it has everything that is written, but not what is staged
    node.manager.write_staged()
    node.check_acknowledged_is_committed()
    node.follower_fetches(2)
    assert node.replica.state.proposed == (LEADER, FOLLOWER)


def test_a_candidate_that_becomes_eligible_after_the_append_joins_with_its_records(node):
    node.set_brokers(fenced=True)
    node.produce(b"first")
    node.manager.write_staged()
    node.follower_fetches(1)
    assert node.replica.state.proposed is None
    node.produce(b"second")
    node.set_brokers(fenced=False)
    node.manager.isr.reconsider_candidates()
    node.manager.write_staged()
    node.check_acknowledged_is_committed()


def test_records_staged_before_min_insync_replicas_is_raised_are_committed(node):
    node.produce(b"first")
    node.manager.write_staged()
    node.produce(b"second")
    node.manager.reconfigure("t", TopicSettings(min_insync_replicas=2))
    node.manager.write_staged()
    node.check_acknowledged_is_committed()


def test_after_the_join_acks_all_waits_for_the_follower(node):
    node.set_brokers(fenced=True)
    node.follower_fetches(0)  # it has everything, but may not join yet
    node.set_brokers(fenced=False)
    node.produce(b"first")
    node.follower_fetches(0)
    node.produce(b"second")
    node.manager.write_staged()
    assert (len(node.channel.replies), node.channel.deferred) == (1, 1)
    assert node.replica.state.high_watermark == 1
    node.follower_fetches(2)
    node.check_acknowledged_is_committed()

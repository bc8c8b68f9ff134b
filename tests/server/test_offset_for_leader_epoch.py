"""OffsetForLeaderEpoch: how a reader notices that a log was cut."""

import pytest

from harness.wire import batch
from klamm.model.errors import ErrorCode


def ask(wire, topic, epoch, *, version=4, partition=0, current=-1):
    requested = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    reply = wire.call("offset_for_leader_epoch", version, topics=[{"topic": topic, "partitions": [requested]}])
    part = reply.topics[0].partitions[0]
    return int(part.error_code), part.leader_epoch, part.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_where_the_log_does(wire, version):
    topic = wire.create_topic()
    epoch = wire.list_offset(topic, -1).leader_epoch
    assert ask(wire, topic, epoch, version=version) == (0, epoch, 0)
    wire.produce(topic, batch(b"a", b"b"))
    assert ask(wire, topic, epoch, version=version) == (0, epoch, 2)
    assert ask(wire, topic, epoch, version=version, current=epoch) == (0, epoch, 2)


@pytest.mark.parametrize("version", [2, 4])
def test_an_unknown_epoch(wire, version):
    topic = wire.create_topic()
    wire.produce(topic, batch(b"a"))
    epoch = wire.list_offset(topic, -1).leader_epoch
    assert ask(wire, topic, epoch + 5, version=version) == (0, -1, -1)
    assert ask(wire, topic, epoch, version=version, current=epoch + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(wire, "no-such-topic", 0, version=version)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(wire, topic, 0, partition=3, version=version)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

"""A disk that refuses writes: nothing is acknowledged, both Produce paths return the error, and free space ends it."""

import errno
import time

import pytest

from harness import NodeThread, Wire, batch
from harness.wire import produce_fields
from klamm.model.errors import ErrorCode

STORAGE_ERROR = 56


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path) as made:
        yield made


def break_disk(node, topic, number):
    """From now on, writes to the topic end with this error; returns how to mend it."""

    def refuse(running):
        log = running.services.replicas.find(topic, 0).log
        real = log.appender.pwritev

        def refusing(*args):
            raise OSError(number, "a test")

        log.appender.pwritev = refusing
        return real

    real = node.run(refuse)

    def mend():
        def restore(running):
            running.services.replicas.find(topic, 0).log.appender.pwritev = real

        node.run(restore)

    return mend


@pytest.mark.parametrize("warm", [False, True], ids=["general path", "quick path"])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_full_disk(node, warm, acks):
    with Wire(node.port) as fresh, Wire(node.port) as first:
        topic, other = first.create_topic(), first.create_topic()
        written = 3 if warm else 1
        for _ in range(written):
            first.produce(topic, batch(b"before"), acks=acks)
        wire = first if warm else fresh
        mend = break_disk(node, topic, errno.ENOSPC)
        sent = [wire.send("produce", 9, **produce_fields(topic, batch(b"lost"), acks=acks)) for _ in range(5)]
        sent.append(wire.send("produce", 9, **produce_fields(other, batch(b"fine"), acks=acks)))
        answers = [wire.receive("produce", 9, c).responses[0].partition_responses[0] for c in sent]
        assert [(int(a.error_code), a.base_offset) for a in answers] == [(STORAGE_ERROR, -1)] * 5 + [(0, 0)]
        assert wire.values(topic) == [b"before"] * written
        mend()
        assert wire.produce(topic, batch(b"after"), acks=acks).base_offset == written
        assert wire.values(topic) == [b"before"] * written + [b"after"]
    assert node.node.failure is None


@pytest.mark.parametrize("warm", [False, True], ids=["general path", "quick path"])
def test_acks_0_on_a_full_disk_closes_the_connection(node, warm):
    with Wire(node.port) as wire, Wire(node.port) as other:
        topic = wire.create_topic()
        other.produce(topic, batch(b"before"))
        if warm:
            for _ in range(3):
                wire.produce(topic, batch(b"before"), acks=0)
            wire.call("api_versions", 0)
        break_disk(node, topic, errno.ENOSPC)
        wire.produce(topic, batch(b"lost"), acks=0)
        assert wire.is_closed_by_peer()
        assert other.call("api_versions", 0).error_code == 0


def test_a_disk_that_is_broken_stops_the_node_and_acknowledges_nothing(node):
    with Wire(node.port) as wire:
        topic = wire.create_topic()
        for _ in range(3):
            wire.produce(topic, batch(b"before"))
        break_disk(node, topic, errno.EIO)
        wire.send("produce", 9, **produce_fields(topic, batch(b"lost")))
        try:
            part = wire.receive("produce", 9).responses[0].partition_responses[0]
        except ConnectionError:
            pass
        else:
            assert part.error_code == STORAGE_ERROR
            assert wire.is_closed_by_peer()
    assert node.node.failure is not None


def test_a_group_whose_coordinator_has_no_room_is_served_again_when_it_has(tmp_path):
    with NodeThread(tmp_path, "offsets.topic.num.partitions=1") as node, Wire(node.port) as wire:
        topic = wire.create_topic()

        def commit(offset):
            part = {
                "partition_index": 0,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            fields = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
            answer = wire.call(
                "offset_commit", 8, group_id="g", topics=[{"name": topic, "partitions": [part]}], **fields
            )
            return answer.topics[0].partitions[0].error_code

        def until_committed(offset):
            deadline = time.monotonic() + 60
            wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
            while (code := commit(offset)) != 0:
                assert time.monotonic() < deadline, ErrorCode(code)

        until_committed(1)
        mend = break_disk(node, "__consumer_offsets", errno.ENOSPC)
        failed_writes = node.node.services.coordinators.groups._failed_writes
        deadline = time.monotonic() + 60
        while not failed_writes or failed_writes[0].failures < 4:
            response = commit(2)
            assert response in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), "clients ask again"
            assert time.monotonic() < deadline
        mend()
        until_committed(3)
        read = wire.call("offset_fetch", 7, group_id="g", topics=None, require_stable=False)
        assert read.topics[0].partitions[0].committed_offset == 3
    assert node.node.failure is None

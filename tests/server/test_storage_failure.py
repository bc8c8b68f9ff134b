"""A disk that refuses: nothing is acknowledged, both ways of Produce say so, and a disk with room again serves."""

import errno

import pytest

from harness import NodeThread, Wire, batch
from harness.wire import produce_fields

STORAGE_ERROR = 56


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path) as made:
        yield made


def break_disk(node, topic, number):
    """From now on, writes to the topic end with this error; returns how to mend it."""

    def refuse(running):
        log = running.services.replicas.find(topic, 0).log
        real = log._pwritev

        def refusing(*args):
            raise OSError(number, "a test")

        log._pwritev = refusing
        return real

    real = node.run(refuse)

    def mend():
        def restore(running):
            running.services.replicas.find(topic, 0).log._pwritev = real

        node.run(restore)

    return mend


@pytest.mark.parametrize("warm", [False, True], ids=["long way", "short way"])
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


@pytest.mark.parametrize("warm", [False, True], ids=["long way", "short way"])
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

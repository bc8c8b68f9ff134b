"""A producer with several requests on the way loses no order and sees no gap when the first of them is refused.

Breaks when what was sent behind a refused batch is taken before it (the producer is new to the partition), or refused
as out of order (it is not): librdkafka answers that with a new epoch, under which duplicates cannot be known.
"""

import errno
import os

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire, batch

OK, OUT_OF_ORDER = 0, 45
NOT_LEADER, NOT_ENOUGH, STORAGE = 6, 19, 56


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("refused")) as made:
        yield made


def too_few(replica):
    """Two are needed and one is in sync."""
    replica.state.replicas, replica.state.min_insync_replicas = (replica.state.node_id, 99), 2
    replica.refresh()

    def heal():
        replica.state.replicas, replica.state.min_insync_replicas = (replica.state.node_id,), 1
        replica.refresh()

    return heal


def not_leading(replica):
    """The metadata that makes this node the leader is on its way."""
    replica.state.leader = 99
    replica.refresh()

    def heal():
        replica.state.leader = replica.state.node_id
        replica.refresh()

    return heal


def no_room(replica):
    """The disk is full."""

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real, replica.log.appender.pwritev = replica.log.appender.pwritev, full

    def heal():
        replica.log.appender.pwritev = real

    return heal


@pytest.mark.parametrize("written", [0, 1, 3], ids=["new to the partition", "known", "on the quick path"])
@pytest.mark.parametrize(("hurt", "code"), [(too_few, NOT_ENOUGH), (not_leading, NOT_LEADER), (no_room, STORAGE)])
def test_nothing_overtakes_a_refused_batch(node, hurt, code, written):
    with Wire(node.port) as wire:
        topic = wire.create_topic()
        producer_id = wire.call("init_producer_id", 4, transaction_timeout=1000).producer_id.real

        def send(sequence: int) -> int:
            records = batch(b"%d" % sequence, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            return int(wire.produce(topic, records, version=9).error_code)

        for sequence in range(written):
            assert send(sequence) == OK
        heal = node.run(lambda running: hurt(running.services.replicas.find(topic, 0)))
        assert send(written) == code
        node.run(lambda _: heal())
        assert [send(written + ahead) for ahead in (1, 2, 3, 4)] == [code] * 4
        assert [send(written + again) for again in range(5)] == [OK] * 5
        assert send(written + 9) == OUT_OF_ORDER, "a gap that no refusal made is one"
        assert wire.values(topic) == [b"%d" % sequence for sequence in range(written + 5)]

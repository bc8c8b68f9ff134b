"""What a process promises when records must be on the device, and what it says when the disk has no more room."""

import os
import resource
import signal
import threading
import time

import pytest

from harness import KlammProcess, Wire
from harness.wire import batch

KAFKA_STORAGE_ERROR = 56


@pytest.mark.parametrize("acks", [1, -1])
def test_with_flush_messages_1_records_are_acknowledged_and_readable(wire, acks):
    topic = wire.create_topic(**{"flush.messages": "1"})
    for i in range(20):
        reply = wire.produce(topic, batch(b"%d" % i), acks=acks)
        assert (reply.error_code, reply.base_offset) == (0, i)
    assert wire.values(topic) == [b"%d" % i for i in range(20)]


def test_many_producers_share_their_syncs(klamm, wire):
    topic = wire.create_topic(partitions=3, **{"flush.messages": "1"})
    errors = []

    def produce(number: int) -> None:
        with Wire(klamm.port) as own:
            for i in range(15):
                reply = own.produce(topic, batch(b"%d-%d" % (number, i)), partition=number % 3)
                if reply.error_code:
                    errors.append(reply.error_code)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for partition in range(3):
        assert len(wire.values(topic, partition=partition)) == 60


def test_a_reader_sees_no_record_that_is_not_acknowledged(wire):
    topic = wire.create_topic(**{"flush.messages": "1"})
    wire.produce(topic, batch(b"a"))
    assert wire.end_offset(topic) == 1


def test_flush_settings_can_come_and_go(wire):
    topic = wire.create_topic()
    for i, value in enumerate(("1", "3", "9223372036854775807", "1")):
        wire.call(
            "incremental_alter_configs",
            1,
            resources=[
                {
                    "resource_type": 2,
                    "resource_name": topic,
                    "configs": [{"name": "flush.messages", "config_operation": 0, "value": value}],
                }
            ],
            validate_only=False,
        )
        for j in range(5):
            assert wire.produce(topic, batch(b"x")).base_offset == 5 * i + j


def test_no_more_room_refuses_appends_and_room_again_takes_them(tmp_path):
    """A limit on file sizes is a full disk that needs no mounting; lifting it is room again."""
    with KlammProcess(tmp_path) as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        other = wire.create_topic()
        assert wire.produce(topic, batch(b"x" * 300_000)).error_code == 0
        hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (400_000, hard))
        for acks in (1, -1):
            refused = wire.produce(topic, batch(b"y" * 200_000), acks=acks)
            assert (refused.error_code, refused.base_offset) == (KAFKA_STORAGE_ERROR, -1)
        assert wire.produce(other, batch(b"small")).error_code == 0, "others go on"
        assert wire.end_offset(topic) == 1
        assert [len(value) for value in wire.values(topic)] == [300_000], "nothing half-written is served"
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (hard, hard))
        accepted = wire.produce(topic, batch(b"z" * 200_000))
        assert (accepted.error_code, accepted.base_offset) == (0, 1)
        node.kill9()
        node.start()
        with Wire(node.port) as again:
            assert [value[:1] for value in again.values(topic)] == [b"x", b"z"]


def test_flushed_records_are_there_after_a_kill(tmp_path):
    with KlammProcess(tmp_path) as node:
        with Wire(node.port) as wire:
            topic = wire.create_topic(**{"flush.messages": "1"})
            for i in range(30):
                assert wire.produce(topic, batch(b"%d" % i)).error_code == 0
        os.kill(node.pid, signal.SIGKILL)
        node.kill9()
        node.start()
        with Wire(node.port) as wire:
            deadline = time.monotonic() + 10
            while wire.end_offset(topic) != 30 and time.monotonic() < deadline:
                pass
            assert wire.values(topic) == [b"%d" % i for i in range(30)]

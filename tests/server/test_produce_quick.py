"""Replies of the quick path are made before the write, and corrected when it fails."""

from types import SimpleNamespace

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.codec import decode
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData
from klamm.server.handlers.data.produce_quick import KnownPrefix


class Channel:
    def __init__(self) -> None:
        self.closed_because = ""

    def close(self, reason) -> None:
        self.closed_because = reason


def quick(acks, version=9):
    channel = Channel()
    context = SimpleNamespace(channel=channel, version=version, times=None)
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[])])
    return KnownPrefix(None, context, request, SimpleNamespace(index=3)), channel


def prepare(entry, correlation_id, base_offset):
    reply = bytearray(entry.pack(entry.size, correlation_id, entry.before, 0, base_offset, -1, 2, entry.after))
    entry.replies.append(reply)
    return reply


def read(reply, version=9):
    response, end = decode(ProduceResponse, version, memoryview(reply), 8 + (version >= 9))
    assert (end, int.from_bytes(reply[:4], "big")) == (len(reply), len(reply) - 4)
    partition = response.responses[0].partition_responses[0]
    return partition.index, partition.error_code, partition.base_offset


@pytest.mark.parametrize("version", [7, 8, 9, 12])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_failed_write_corrects_every_reply_of_the_turn(acks, version):
    entry, channel = quick(acks, version)
    replies = [prepare(entry, number, 10 + number) for number in range(3)]
    assert [read(reply, version) for reply in replies] == [(3, 0, 10), (3, 0, 11), (3, 0, 12)]
    entry.fail(ErrorCode.KAFKA_STORAGE_ERROR, "full")
    assert [read(reply, version) for reply in replies] == [(3, ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
    assert (entry.replies, channel.closed_because) == ([], "")


def test_replies_stay_when_the_write_is_done():
    entry, _ = quick(1)
    reply = prepare(entry, 1, 10)
    entry.succeed()
    entry.fail(ErrorCode.KAFKA_STORAGE_ERROR)
    assert read(reply) == (3, 0, 10)


def test_acks_0_learns_of_a_failed_write_by_the_end_of_its_connection():
    entry, channel = quick(0)
    entry.replies += [None, None]
    entry.fail(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")
    assert "KAFKA_STORAGE_ERROR" in channel.closed_because
    assert "no space left" in channel.closed_because

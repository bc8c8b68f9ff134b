"""A follower applies an answer only to the fetch it has asked for last: what is on its way twice is appended once."""

import pytest

from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from klamm.records.batch import build_batch
from klamm.replication.replica_fetcher import FETCH, VERSION, ReplicaFetcher

from .test_follower_append import TOPIC_ID, Member, rows

LEADER, FOLLOWER = 1, 2


class Loop:
    """Runs what is to be called soon when told."""

    def __init__(self) -> None:
        self.soon = []

    def call_soon(self, callback, *args) -> None:
        self.soon.append((callback, args))

    def run(self) -> None:
        while self.soon:
            callback, args = self.soon.pop(0)
            callback(*args)

    def call_later(self, *_):
        raise AssertionError("the partition was paused")


class Line:
    """The leader's end of the connection: requests as messages, answers as frames."""

    closed = False

    def __init__(self) -> None:
        self.requests = []

    def send(self, data) -> None:
        header, offset = decode_request_header(memoryview(data), 4)
        request, _ = decode(FetchRequest, VERSION, memoryview(data), offset)
        self.requests.append((header.correlation_id, request))


class Following:
    """A follower with one partition and an open session."""

    def __init__(self, member) -> None:
        self.member = member
        self.loop = Loop()
        self.line = Line()
        self.fetcher = ReplicaFetcher(
            self.loop, ManualClock(), member.manager, LEADER, address=lambda _: None, broker_epoch=lambda: 7
        )
        self.fetcher._line = self.line
        self.begin(epoch=1)
        self.answer(high_watermark=0)

    def begin(self, epoch) -> None:
        self.member.follow(LEADER, epoch)
        self.fetcher.add(self.member.replica)
        self.loop.run()

    def named(self):
        """(epoch, fetch offset) of the partition in every request not answered yet."""
        return [
            [(p.current_leader_epoch, p.fetch_offset) for topic in request.topics for p in topic.partitions]
            for _, request in self.line.requests
        ]

    def answer(self, *values, base=0, high_watermark=0, error=0) -> None:
        """Answer the oldest request."""
        number, _ = self.line.requests.pop(0)
        records = b""
        if values:
            records = bytearray(build_batch([(1, None, value, ()) for value in values], base_offset=base))
        data = PartitionData(
            partition_index=0, records=records, high_watermark=high_watermark, log_start_offset=0, error_code=error
        )
        response = FetchResponse(
            session_id=99, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])]
        )
        frame = encode_response_header(number, FETCH, VERSION) + encode(response, VERSION)
        self.fetcher._on_frame(memoryview(bytearray(frame)))
        self.loop.run()

    def values(self):
        return [value for _, _, value in rows(self.member.log)]


@pytest.fixture
def follower(tmp_path):
    member = Member(FOLLOWER, str(tmp_path))
    yield Following(member)
    member.logs.close(clean=False)


def test_records_of_the_epoch_before_are_not_appended_twice(follower):
    assert follower.named() == [[]], "a fetch waits at the leader"
    follower.begin(epoch=2)
    assert follower.named() == [[], [(2, 0)]]
    follower.answer(b"a", b"b")  # what the append of the epoch before has woken
    follower.answer(b"a", b"b")  # what the leader had when the partition was named again
    assert follower.values() == [b"a", b"b"]
    assert follower.named() == [[(2, 2)]]


def test_an_epoch_that_no_request_named_takes_no_answer(follower):
    follower.member.follow(LEADER, 2)
    follower.fetcher.add(follower.member.replica)
    follower.answer(b"a", b"b")
    assert follower.values() == []
    assert follower.named() == [[(2, 0)]]
    follower.answer(b"a", b"b")
    assert follower.values() == [b"a", b"b"]


def test_a_refusal_of_an_earlier_fetch_pauses_nothing(follower):
    follower.begin(epoch=2)
    follower.answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert follower.named() == [[(2, 0)]]


def test_a_high_watermark_counts_although_the_partition_was_named_again(follower):
    follower.answer(b"a", b"b")
    assert follower.named() == [[(1, 2)]]
    follower.answer()
    following = next(iter(follower.fetcher.plan.partitions.values()))
    follower.fetcher.plan.mark_moved(following)
    follower.fetcher._schedule()
    follower.loop.run()
    assert follower.named() == [[], [(1, 2)]]
    follower.answer(high_watermark=2)
    assert follower.member.log.high_watermark == 2

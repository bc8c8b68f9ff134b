"""A follower applies an answer only to the fetch it has asked for last: what is on its way twice is appended once."""

import pytest

from klamm.model.clock import ManualClock
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
        self.member.learn(LEADER, epoch)
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
def story(tmp_path):
    member = Member(FOLLOWER, str(tmp_path))
    yield Following(member)
    member.logs.close(clean=False)


def test_records_of_the_epoch_before_are_not_appended_twice(story):
    assert story.named() == [[]], "a fetch waits at the leader"
    story.begin(epoch=2)
    assert story.named() == [[], [(2, 0)]]
    story.answer(b"a", b"b")  # what the append of the epoch before has woken
    story.answer(b"a", b"b")  # what the leader found when it was asked anew
    assert story.values() == [b"a", b"b"]
    assert story.named() == [[(2, 2)]]


def test_an_epoch_that_the_leader_was_not_told_of_takes_no_answer(story):
    story.member.learn(LEADER, 2)
    story.fetcher.add(story.member.replica)
    story.answer(b"a", b"b")
    assert story.values() == []
    assert story.named() == [[(2, 0)]]
    story.answer(b"a", b"b")
    assert story.values() == [b"a", b"b"]


def test_a_refusal_of_an_earlier_fetch_pauses_nothing(story):
    story.begin(epoch=2)
    story.answer(error=6)
    assert story.named() == [[(2, 0)]]


def test_a_high_watermark_counts_although_the_partition_was_named_again(story):
    story.answer(b"a", b"b")
    assert story.named() == [[(1, 2)]]
    story.answer()
    following = next(iter(story.fetcher.plan.partitions.values()))
    story.fetcher.plan.mark_moved(following)
    story.fetcher._schedule()
    story.loop.run()
    assert story.named() == [[], [(1, 2)]]
    story.answer(high_watermark=2)
    assert story.member.log.high_watermark == 2

"""Whatever happens to a replica, every pending reply is answered once, in offset order, and never too early."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import ErrorCode
from klamm.replication.core.acknowledgements import NEVER_MS, Acknowledgements


class Reply:
    """Notes what a replica was like when it was answered."""

    def __init__(self, replica, required_offset, *, acks_all, deadline_ms=NEVER_MS) -> None:
        self.replica, self.acks_all = replica, acks_all
        self.required_offset, self.deadline_ms = required_offset, deadline_ms
        self.answers = []

    def succeed(self) -> None:
        self.fail(ErrorCode.NONE)

    def fail(self, error, message=None) -> None:
        self.answers.append((error, self.replica.written, self.replica.high_watermark, self.replica.now_ms))
        self.replica.answered.append(self)
        self.replica.on_answer(error)


@dataclass
class Replica:
    """What a leader does to its acknowledgements, as numbers."""

    acknowledgements: Acknowledgements = field(default_factory=Acknowledgements)
    next_offset: int = 0
    end: int = 0
    written: int = 0
    """What counts: `end`, or with flush.messages what is synced."""
    high_watermark: int = 0
    now_ms: int = 0
    replies: list = field(default_factory=list)
    answered: list = field(default_factory=list)
    stages_again: int = 0
    """How many answers make their receiver stage at once, as coordinators do."""

    def stage(self, count, *, acks_all, timeout_ms=NEVER_MS) -> None:
        self.next_offset += count
        reply = Reply(self, self.next_offset, acks_all=acks_all, deadline_ms=min(self.now_ms + timeout_ms, NEVER_MS))
        self.replies.append(reply)
        stage = self.acknowledgements.until_committed if acks_all else self.acknowledgements.until_written
        stage.append(reply)

    def on_answer(self, _error) -> None:
        if self.stages_again:
            self.stages_again -= 1
            self.stage(1, acks_all=True)

    def write(self, *, synced) -> None:
        self.end = self.next_offset
        if synced:
            self.sync()

    def sync(self) -> None:
        self.written = self.end
        self.acknowledgements.on_written(self.written)
        self.acknowledgements.on_committed(self.high_watermark)

    def fail_write(self) -> None:
        self.next_offset = self.end
        concerned = [reply for reply in self.replies if not reply.answers and reply.required_offset > self.end]
        before = len(self.answered)
        lost = self.acknowledgements.take_above(self.end)
        self.acknowledgements.on_written(self.written)
        self.acknowledgements.on_committed(self.high_watermark)
        for reply in lost:
            reply.fail(ErrorCode.KAFKA_STORAGE_ERROR, "full")
        failed = [reply for reply in self.answered[before:] if reply.answers[0][0] is ErrorCode.KAFKA_STORAGE_ERROR]
        assert {id(reply) for reply in failed} == {id(reply) for reply in concerned}

    def fail_sync(self) -> None:
        self.next_offset = self.end = self.written
        self.acknowledgements.fail_above(self.written, ErrorCode.KAFKA_STORAGE_ERROR, "gone")

    def commit(self, share, error) -> None:
        self.high_watermark += (self.written - self.high_watermark) * share // 4
        self.acknowledgements.on_committed(self.high_watermark, error)

    def pass_time(self, ms) -> None:
        self.now_ms += ms
        self.acknowledgements.expire(self.now_ms)

    def lose_min_isr(self) -> None:
        self.acknowledgements.fail_uncommitted(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def lose_leadership(self) -> None:
        self.acknowledgements.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)


ERRORS = st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), st.integers(0, 3), st.booleans(), st.sampled_from([10, 100, NEVER_MS])),
        st.tuples(st.just("stage"), st.integers(0, 3), st.booleans(), st.sampled_from([10, 100, NEVER_MS])),
        st.tuples(st.just("write"), st.booleans()),
        st.tuples(st.just("sync")),
        st.tuples(st.just("fail_write")),
        st.tuples(st.just("fail_sync")),
        st.tuples(st.just("commit"), st.integers(0, 4), ERRORS),
        st.tuples(st.just("pass_time"), st.integers(0, 60)),
        st.tuples(st.just("lose_min_isr")),
        st.tuples(st.just("lose_leadership")),
    ),
    max_size=40,
)


def take(replica, step) -> list:
    """Do one step; returns the replies it answered."""
    before = len(replica.answered)
    kind, *args = step
    if kind == "stage":
        replica.stage(args[0], acks_all=args[1], timeout_ms=args[2])
    elif kind == "write":
        replica.write(synced=args[0])
    else:
        getattr(replica, kind)(*args)
    return replica.answered[before:]


@given(STEPS, st.integers(0, 3))
def test_every_reply_is_answered_once_in_order_and_not_too_early(steps, stages_again):
    replica = Replica(stages_again=stages_again)
    for step in steps:
        answered = take(replica, step)
        for acks_all in (False, True):
            offsets = [reply.required_offset for reply in answered if reply.acks_all == acks_all]
            assert offsets == sorted(offsets)
    waiting = [*replica.acknowledgements.until_written, *replica.acknowledgements.until_committed]
    assert len(waiting) == len(replica.acknowledgements)
    assert {id(reply) for reply in replica.replies if not reply.answers} == {id(reply) for reply in waiting}
    replica.stages_again = 0
    replica.lose_leadership()
    assert not replica.acknowledgements
    for reply in replica.replies:
        (error, written, high_watermark, now_ms), *more = reply.answers
        assert not more
        if error is ErrorCode.NONE:
            assert reply.required_offset <= (high_watermark if reply.acks_all else written)
        if error is ErrorCode.REQUEST_TIMED_OUT:
            assert reply.acks_all
            assert reply.deadline_ms <= now_ms


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12), st.integers(0, 36))
def test_a_failure_concerns_exactly_what_lies_above_the_end(appends, end):
    replica = Replica()
    for count, acks_all in appends:
        replica.stage(count, acks_all=acks_all)
    replica.acknowledgements.fail_above(end, ErrorCode.KAFKA_STORAGE_ERROR, "full")
    for reply in replica.replies:
        assert bool(reply.answers) == (reply.required_offset > end)


def test_a_reply_that_grew_past_its_neighbours_fails_alone():
    replica = Replica()
    for _ in range(3):
        replica.stage(1, acks_all=False)
    replica.replies[0].required_offset = 9
    replica.acknowledgements.fail_above(3, ErrorCode.KAFKA_STORAGE_ERROR)
    assert [bool(reply.answers) for reply in replica.replies] == [True, False, False]
    replica.written = 3
    replica.acknowledgements.on_written(3)
    assert [len(reply.answers) for reply in replica.replies] == [1, 1, 1]

"""A Produce is answered once, when all of its partitions are settled or its time is up."""

from types import SimpleNamespace

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.produce import PartitionProduceResponse
from klamm.replication.core.acknowledgements import Acknowledgements
from klamm.server.handlers.data.produce_replies import DelayedProduce, PendingPartition


class Timer:
    def __init__(self, delay, callback) -> None:
        self.delay, self.callback, self.cancelled = delay, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay, callback, *args):
        self.timers.append(Timer(delay, lambda: callback(*args)))
        return self.timers[-1]


class Story:
    """A pending Produce and its answers."""

    def __init__(self, deadline_ms=1000) -> None:
        self.answers = []
        self.loop = Loop()
        self.produce = DelayedProduce(lambda: self.answers.append("done"), deadline_ms)

    def partition(self):
        replica = SimpleNamespace(log=SimpleNamespace(next_offset=10), acknowledgements=Acknowledgements())
        partition = PendingPartition(self.produce, replica, PartitionProduceResponse(index=0, base_offset=5))
        self.produce.add(partition)
        replica.acknowledgements.until_committed.append(partition)
        return partition


def test_all_partitions_must_be_settled():
    story = Story()
    first, second = story.partition(), story.partition()
    story.produce.start(story.loop, 1000)
    second.succeed()
    assert story.answers == []
    first.fail(ErrorCode.KAFKA_STORAGE_ERROR, "full")
    assert story.answers == ["done"]
    assert (first.response.error_code, first.response.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, "full")
    assert (first.response.base_offset, second.response.base_offset, second.response.error_code) == (-1, 5, 0)
    assert story.loop.timers[0].cancelled


def test_nothing_staged_is_answered_at_once():
    story = Story()
    story.produce.start(story.loop, 1000)
    assert story.answers == ["done"]


def test_what_is_added_in_several_turns_is_answered_as_one():
    story = Story()
    story.partition().succeed()
    assert story.answers == []
    last = story.partition()
    story.produce.start(story.loop, 1000)
    assert story.answers == []
    last.succeed()
    assert story.answers == ["done"]


def test_time_up_fails_what_is_open_and_nothing_else():
    story = Story(deadline_ms=250)
    first, second = story.partition(), story.partition()
    story.produce.start(story.loop, 250)
    assert story.loop.timers[0].delay == 0.25
    first.replica.acknowledgements.on_committed(10)
    story.loop.timers[0].callback()
    assert story.answers == ["done"]
    assert (first.response.error_code, second.response.error_code) == (0, ErrorCode.REQUEST_TIMED_OUT)
    assert not second.replica.acknowledgements
    second.replica.acknowledgements.on_committed(10)
    assert story.answers == ["done"]


def test_only_acks_all_has_a_timeout():
    produce = DelayedProduce(lambda: None)
    story = Story()
    story.produce = produce
    story.partition()
    produce.start(story.loop, 250)
    assert story.loop.timers == []


def test_a_cancelled_produce_is_never_answered():
    story = Story()
    staged = story.partition()
    story.produce.start(story.loop, 250)
    story.produce.cancel()
    staged.succeed()
    assert story.answers == []
    assert story.loop.timers[0].cancelled

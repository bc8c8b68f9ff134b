"""Requests that wait are answered once: when their condition holds, or when their time is up."""

from types import SimpleNamespace

from klamm.model.errors import ErrorCode
from klamm.replication.waiters import AckWaiter, FetchWaiter, PendingAppend


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


def replica():
    return SimpleNamespace(ack_waiters={}, fetch_waiters={})


def pending(waiter, where=None):
    made = PendingAppend(where or replica(), waiter, 10, 5)
    made.replica.ack_waiters[made] = None
    waiter.add(made)
    return made


def test_all_appends_must_be_settled():
    told, loop = [], Loop()
    waiter = AckWaiter(lambda: told.append("done"), acks_all=True)
    first, second = pending(waiter), pending(waiter)
    waiter.start(loop, 1000)
    second.settle()
    assert told == []
    first.settle(ErrorCode.KAFKA_STORAGE_ERROR, "full")
    assert told == ["done"]
    assert (first.error, first.message, second.error) == (ErrorCode.KAFKA_STORAGE_ERROR, "full", ErrorCode.NONE)
    assert loop.timers[0].cancelled


def test_nothing_staged_is_answered_at_once():
    told = []
    waiter = AckWaiter(lambda: told.append("done"), acks_all=True)
    waiter.start(Loop(), 1000)
    assert told == ["done"]


def test_what_is_added_in_several_turns_is_answered_as_one():
    told = []
    waiter = AckWaiter(lambda: told.append("done"), acks_all=True, gathering=True)
    pending(waiter).settle()
    assert told == []
    last = pending(waiter)
    waiter.start(Loop(), 1000)
    assert told == []
    last.settle()
    assert told == ["done"]


def test_time_up_fails_what_is_open_and_nothing_else():
    told, loop = [], Loop()
    waiter = AckWaiter(lambda: told.append("done"), acks_all=True)
    first, second = pending(waiter), pending(waiter)
    waiter.start(loop, 250)
    assert loop.timers[0].delay == 0.25
    first.settle()
    loop.timers[0].callback()
    assert told == ["done"]
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    assert second not in second.replica.ack_waiters
    second.settle()
    assert told == ["done"]


def test_only_acks_all_has_a_timeout():
    loop = Loop()
    waiter = AckWaiter(lambda: None, acks_all=False)
    pending(waiter)
    waiter.start(loop, 250)
    assert loop.timers == []


def test_a_cancelled_produce_is_never_answered():
    told, loop = [], Loop()
    waiter = AckWaiter(lambda: told.append("done"), acks_all=True)
    staged = pending(waiter)
    waiter.start(loop, 250)
    waiter.cancel()
    staged.settle()
    assert told == []
    assert loop.timers[0].cancelled


def fetch(answers, replicas):
    told = []

    def attempt(force):
        told.append("forced" if force else "looked")
        return force or answers.pop(0)

    return FetchWaiter(attempt, replicas), told


def test_a_fetch_looks_again_until_there_is_enough():
    loop, replicas = Loop(), [replica(), replica()]
    waiter, told = fetch([False, True], replicas)
    waiter.start(loop, 500)
    assert all(waiter in r.fetch_waiters for r in replicas)
    waiter.look_again()
    assert not waiter.done
    waiter.look_again()
    assert waiter.done
    assert not any(r.fetch_waiters for r in replicas)
    waiter.look_again()
    loop.timers[0].callback()
    assert told == ["looked", "looked"]


def test_a_fetch_is_answered_when_its_time_is_up():
    loop, replicas = Loop(), [replica()]
    waiter, told = fetch([False], replicas)
    waiter.start(loop, 500)
    assert loop.timers[0].delay == 0.5
    loop.timers[0].callback()
    assert told == ["forced"]
    assert not replicas[0].fetch_waiters
    assert waiter.done


def test_a_cancelled_fetch_is_forgotten():
    loop, replicas = Loop(), [replica()]
    waiter, told = fetch([True], replicas)
    waiter.start(loop, 500)
    waiter.cancel()
    waiter.look_again()
    loop.timers[0].callback()
    assert told == []
    assert not replicas[0].fetch_waiters

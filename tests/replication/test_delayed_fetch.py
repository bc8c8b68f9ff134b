"""A Fetch that waits is answered once: when there is enough, or when its time is up."""

from types import SimpleNamespace

from klamm.replication.delayed_fetch import DelayedFetch


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
    return SimpleNamespace(delayed_fetches={})


def fetch(answers, replicas):
    attempts = []

    def attempt(force):
        attempts.append("forced" if force else "looked")
        return force or answers.pop(0)

    return DelayedFetch(attempt, replicas), attempts


def test_a_fetch_looks_again_until_there_is_enough():
    loop, replicas = Loop(), [replica(), replica()]
    delayed_fetch, attempts = fetch([False, True], replicas)
    delayed_fetch.start(loop, 500)
    assert all(delayed_fetch in r.delayed_fetches for r in replicas)
    delayed_fetch.try_complete()
    assert not delayed_fetch.done
    delayed_fetch.try_complete()
    assert delayed_fetch.done
    assert not any(r.delayed_fetches for r in replicas)
    delayed_fetch.try_complete()
    loop.timers[0].callback()
    assert attempts == ["looked", "looked"]


def test_a_fetch_is_answered_when_its_time_is_up():
    loop, replicas = Loop(), [replica()]
    delayed_fetch, attempts = fetch([False], replicas)
    delayed_fetch.start(loop, 500)
    assert loop.timers[0].delay == 0.5
    loop.timers[0].callback()
    assert attempts == ["forced"]
    assert not replicas[0].delayed_fetches
    assert delayed_fetch.done


def test_a_cancelled_fetch_is_forgotten():
    loop, replicas = Loop(), [replica()]
    delayed_fetch, attempts = fetch([True], replicas)
    delayed_fetch.start(loop, 500)
    delayed_fetch.cancel()
    delayed_fetch.try_complete()
    loop.timers[0].callback()
    assert attempts == []
    assert not replicas[0].delayed_fetches

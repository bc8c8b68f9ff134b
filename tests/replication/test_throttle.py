"""Copying that is slowed: bytes per second over a window, and which replicas it is about."""

from klamm.replication.core.throttle import WINDOW_MS, Throttle
from klamm.replication.settings import is_throttled


def test_without_a_rate_nothing_is_too_fast():
    throttle = Throttle()
    throttle.record(10**15, 0)
    assert not throttle.exceeded(0)


def test_what_was_copied_counts_until_it_is_paid_for():
    throttle = Throttle(1000)
    assert not throttle.exceeded(0)
    throttle.record(5000, 0)
    assert throttle.exceeded(1000)
    assert throttle.exceeded(4999)
    assert not throttle.exceeded(5000)


def test_the_past_is_forgotten_after_a_window():
    throttle = Throttle(1000)
    throttle.record(10**9, 0)
    assert throttle.exceeded(WINDOW_MS)
    assert not throttle.exceeded(WINDOW_MS + 1)


def test_a_steady_stream_below_the_rate_is_never_stopped():
    throttle = Throttle(1000)
    for now in range(0, 60_000, 100):
        assert not throttle.exceeded(now) or now < 1000
        throttle.record(90, now)


def test_a_rate_of_nothing_lets_nothing_through():
    assert Throttle(0).exceeded(0)


def test_names():
    assert is_throttled(frozenset({"*"}), 3, 2)
    assert is_throttled(frozenset({"3:2", "1:1"}), 3, 2)
    assert not is_throttled(frozenset({"2:3"}), 3, 2)
    assert not is_throttled(frozenset(), 3, 2)

"""Windows of quotas: bursts, long-run rates, and buckets of changes."""

import random

import pytest

from klamm.security.core.quota_windows import RateWindow, TokenBucket, WindowConfig

LIMIT = 400_000.0
CONFIG = WindowConfig()


def test_a_young_window_counts_as_ten_samples():
    window = RateWindow(CONFIG)
    window.record(1_000_000, 0)
    assert window.rate(0) == 100_000
    assert window.rate(500) == pytest.approx(1_000_000 * 1000 / 10_500)


def test_a_quiet_client_may_use_the_quota_of_a_window_at_once():
    window = RateWindow(CONFIG)
    window.record(10 * LIMIT, 0)
    assert window.throttle_ms(LIMIT, 0) == 0
    window.record(LIMIT, 0)
    assert window.throttle_ms(LIMIT, 0) == 1_000


def test_samples_leave_the_window_after_eleven():
    window = RateWindow(CONFIG)
    window.record(11 * LIMIT, 0)
    assert window.rate(10_999) > 0
    assert window.rate(11_000) == 0


def test_a_sample_leaves_the_window_after_its_last_event():
    """As in Kafka: what was recorded at the end of a sample counts for a whole window, too."""
    window = RateWindow(CONFIG)
    window.record(1, 0)
    window.record(10 * LIMIT, 900)
    assert window.rate(11_899) > 0
    assert window.rate(11_900) == 0


def test_what_was_not_sent_is_taken_back():
    window = RateWindow(CONFIG)
    window.record(50, 0)
    window.record(1_000, 100)
    window.record(-1_000, 100)
    assert window.rate(100) == pytest.approx(50 * 1000 / 10_100)


@pytest.mark.parametrize("size", [1_000, 40_000, 200_000])
def test_the_rate_of_a_minute_is_the_quota(size):
    """A client that always has something to send and waits for the throttle time, within 5 %."""
    window, now_ms, sent = RateWindow(CONFIG), 0, 0
    measured_from = None
    while now_ms < 200_000:
        if measured_from is None and now_ms > 20_000:
            measured_from, sent = now_ms, 0
        window.record(size, now_ms)
        sent += size
        now_ms += max(window.throttle_ms(LIMIT, now_ms), 1)
    assert measured_from is not None
    assert sent * 1000 / (now_ms - measured_from) == pytest.approx(LIMIT, rel=0.05)


def test_requests_larger_than_a_window_exceed_the_quota_as_in_kafka():
    """The throttle time counts from a window of ten samples, and the request has left the window when it is over."""
    window = RateWindow(CONFIG)
    window.record(9_000_000, 0)
    assert window.throttle_ms(LIMIT, 0) == 12_500
    assert window.rate(12_500) == 0


def test_the_number_of_samples_is_bounded():
    window, chance, now_ms = RateWindow(CONFIG), random.Random(5), 0
    for _ in range(5_000):
        now_ms += chance.randrange(700)
        window.record(1, now_ms)
        assert len(window._samples) <= CONFIG.samples + 1


def test_a_new_bucket_is_full_and_never_fuller():
    bucket = TokenBucket(CONFIG)
    assert bucket.tokens(2.0, 1_000) == 22
    assert bucket.tokens(2.0, 1_000_000) == 22


def test_a_request_may_take_more_than_there_is_and_the_next_one_waits():
    bucket = TokenBucket(CONFIG)
    bucket.take(30, 2.0, 0)
    assert bucket.tokens(2.0, 0) == -8
    assert bucket.throttle_ms(2.0, 0) == 4_000
    assert bucket.throttle_ms(2.0, 3_000) == 1_000
    assert bucket.throttle_ms(2.0, 4_000) == 0

"""Distributions of times: buckets, windows, quantiles."""

import pytest

from klamm.telemetry.histogram import BOUNDS, EMPTY, Histogram, quantile


def test_times_are_counted_below_the_bounds_they_do_not_exceed():
    histogram = Histogram()
    for seconds in (0.0, 20e-6, 100e-6, 0.003, 2.0, 3600.0):
        histogram.observe(seconds)
    read = histogram.read()
    below = dict(zip(BOUNDS, read.cumulative(), strict=True))
    assert below[BOUNDS[0]] == 2  # 32 us: none and 20 us
    assert below[128 / 1e6] == 3
    assert below[4096 / 1e6] == 4
    assert below[BOUNDS[-1]] == 5  # an hour is beyond the last bound
    assert read.count == 6
    assert read.sum == pytest.approx(3602.00312)


@pytest.mark.parametrize("power", range(5, 25))
def test_every_time_is_in_a_bucket_whose_bound_it_does_not_exceed(power):
    histogram = Histogram()
    histogram.observe((2**power - 1) / 1e6)
    cumulative = dict(zip(BOUNDS, histogram.read().cumulative(), strict=True))
    assert cumulative[2**power / 1e6] == 1
    assert power == 5 or cumulative[2 ** (power - 1) / 1e6] == 0


def test_a_quantile_is_interpolated_within_its_bucket():
    histogram = Histogram()
    histogram.observe_many(0.0006, 100)  # between 512 and 1024 us
    assert quantile(histogram.counts, 0.5) == pytest.approx(768e-6)
    assert quantile(histogram.counts, 1.0) == pytest.approx(1024e-6)
    histogram.observe_many(0.1, 1)
    assert quantile(histogram.counts, 0.999) > 0.06
    assert quantile(EMPTY.counts, 0.5) == 0.0


def test_the_window_has_what_came_since_the_mark_before_the_last():
    histogram = Histogram()
    histogram.observe(1.0)
    histogram.mark()
    assert histogram.recent().count == 1
    histogram.observe(2.0)
    histogram.mark()
    assert (histogram.recent().count, histogram.recent().sum) == (1, 2.0)
    histogram.mark()
    assert histogram.recent().count == 0
    assert histogram.read().count == 2


def test_a_shape_is_scaled_to_a_number_of_requests():
    histogram = Histogram()
    histogram.observe_many(0.0006, 3)
    histogram.observe(0.1)
    scaled = histogram.read().scale(1001)
    assert scaled.count == 1001
    assert scaled.counts[17] in (250, 251)
    assert EMPTY.scale(7).count == 7

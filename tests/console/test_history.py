"""24 hours of samples."""

import pytest

from klamm.console.core.samples import ClusterSample
from klamm.console.history import BYTE_RATE, HOUR_MS, KEPT_MS, MINUTE_MS, RATE, SampleHistory, topic_series
from klamm.console.offset_resets import OffsetResets
from klamm.model.ids import TopicPartition

NOW = 500_000 * HOUR_MS + 30 * MINUTE_MS


@pytest.fixture
def history(tmp_path):
    history = SampleHistory(str(tmp_path / "history"))
    yield history
    history.close()


def values(history, name, begin, end):
    return [point.value for point in history.read("c", [name], begin, end)[name]]


def test_values_come_back_by_the_minute(history):
    history.write("c", NOW - MINUTE_MS, {RATE: 1.0, topic_series("orders"): 5.0})
    history.write("c", NOW + MINUTE_MS, {RATE: 2.0})
    assert values(history, RATE, NOW - MINUTE_MS, NOW + MINUTE_MS) == [1.0, None, 2.0]
    # No sample is a gap; a sample without the topic means that nothing happened there.
    assert values(history, topic_series("orders"), NOW - MINUTE_MS, NOW + MINUTE_MS) == [5.0, None, 0.0]


def test_a_restart_keeps_them(tmp_path):
    path = str(tmp_path / "history")
    first = SampleHistory(path)
    first.write("c", NOW, {RATE: 7.0})
    first.close()
    second = SampleHistory(path)
    second.write("c", NOW + MINUTE_MS, {RATE: 8.0})
    assert values(second, RATE, NOW, NOW + MINUTE_MS) == [7.0, 8.0]
    second.close()


def test_what_is_older_than_a_day_is_dropped(history):
    history.write("c", NOW - KEPT_MS - HOUR_MS, {RATE: 1.0})
    history.write("c", NOW, {RATE: 2.0})
    with history.lock:
        assert history.connection.execute("SELECT count(*) FROM hours").fetchone() == (1,)


def test_names_of_what_is_gone_are_dropped_with_their_last_hour(history):
    history.write("c", 0, {"rate": 1.0, "topic/gone": 1.0, "group/gone": 2.0})
    history.write("c", KEPT_MS, {"rate": 1.0, "topic/kept": 1.0})
    history.write("c", KEPT_MS + HOUR_MS, {"rate": 1.0})
    names = history.connection.execute("SELECT name FROM series ORDER BY name").fetchall()
    assert names == [("rate",), ("topic/kept",)]


def test_clusters_are_apart(history):
    history.write("c", NOW, {RATE: 1.0})
    history.write("other", NOW, {RATE: 2.0})
    assert values(history, RATE, NOW, NOW) == [1.0]


def test_a_minute_is_kept_once(history):
    from .test_samples import sample, topic

    for seconds, rate in ((0, 5.0), (10, 6.0)):
        taken = sample(topic("orders"), time_ms=NOW + seconds * 1000)
        history.record("c", ClusterSample(**{**vars(taken), "rates": {"orders": rate}, "collected_s": 0.1}))
    assert values(history, topic_series("orders"), NOW, NOW) == [5.0]


def test_a_minute_has_the_mean_of_its_rates(history):
    """A burst between two minutes is not lost, and one at the turn does not stand for the whole minute."""
    from .test_samples import sample, topic

    for seconds in range(0, 65, 5):
        taken = sample(topic("orders"), time_ms=NOW + seconds * 1000)
        rates = {"orders": 120.0 if seconds in (30, 35) else 0.0}
        fields = {**vars(taken), "rates": rates, "byte_rates": {"orders": rates["orders"] * 10}, "collected_s": 0.1}
        history.record("c", ClusterSample(**fields))
    later = NOW + MINUTE_MS
    assert values(history, topic_series("orders"), NOW, later) == [0.0, pytest.approx(20.0)]
    assert values(history, RATE, NOW, later) == [0.0, pytest.approx(20.0)]
    assert values(history, BYTE_RATE, NOW, later) == [0.0, pytest.approx(200.0)]


def test_a_sample_without_byte_rates_does_not_lower_the_mean(history):
    from .test_samples import sample, topic

    for seconds, byte_rates in ((0, {}), (30, {"orders": 70.0}), (45, {}), (60, {"orders": 70.0})):
        taken = sample(topic("orders"), time_ms=NOW + seconds * 1000)
        fields = {**vars(taken), "rates": {"orders": 1.0}, "byte_rates": byte_rates, "collected_s": 0.1}
        history.record("c", ClusterSample(**fields))
    assert values(history, BYTE_RATE, NOW + MINUTE_MS, NOW + MINUTE_MS) == [pytest.approx(70.0)]


def test_a_first_sample_without_rates_is_not_kept(history):
    from .test_samples import sample, topic

    first = sample(topic("orders"), time_ms=NOW)
    history.record("c", ClusterSample(**{**vars(first), "collected_s": 0.1}))
    second = sample(topic("orders"), time_ms=NOW + 5000)
    history.record("c", ClusterSample(**{**vars(second), "rates": {"orders": 5.0}, "collected_s": 0.1}))
    assert values(history, RATE, NOW, NOW) == [5.0]


def test_names_of_series_are_values_and_no_sql(history):
    name = "topic/'; DROP TABLE hours; --"
    history.write("c", NOW, {RATE: 1.0, name: 3.0})
    assert values(history, name, NOW, NOW) == [3.0]


def test_offsets_from_before_a_reset(history):
    resets = OffsetResets(history)
    place = TopicPartition("orders", 3)
    without = TopicPartition("orders", 4)
    number = resets.keep("c", "g", "anna", NOW, {place: 7, without: None})
    assert resets.find("c", "g", number) == {place: 7, without: None}
    assert resets.find("c", "other", number) is None
    assert resets.find("other", "g", number) is None
    resets.mark_undone(number)
    assert [(reset.person, reset.partitions, reset.undone) for reset in resets.list_recent("c", "g")] == [
        ("anna", 2, True)
    ]
    resets.keep("c", "g", "anna", NOW + KEPT_MS + 1, {})
    assert resets.find("c", "g", number) is None

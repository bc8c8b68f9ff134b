"""Lag in seconds: in the list of groups, in the history, and read from the log no more often than needed."""

import asyncio
import re

import pytest

from klamm.client import TopicPartition
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.console.core.charts import value_ticks
from klamm.console.core.numbers import format_seconds
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.samples import ClusterSample, GroupSample, TopicSample
from klamm.console.history import MINUTE_MS, SampleHistory, group_age_series
from klamm.console.unread_times import PARTITIONS_PER_COLLECTION, UnreadTimes, find_unread, read_unread_times
from klamm.testing import unique

NOW_MS = 1_700_000_000_000


def make_group(name, committed, oldest_ms=None):
    places = {TopicPartition(*place): offset for place, offset in committed.items()}
    return GroupSample(name, "classic", "consumer", "Empty", 1, places, 1, oldest_ms)


def make_sample(*groups, time_ms=NOW_MS, end=100):
    topic = TopicSample("orders", False, (PartitionSample(0, 1, (1,), (1,), 10, end, 1000),))
    samples = {group.name: group for group in groups}
    return ClusterSample(time_ms, "id", 1, (), {"orders": topic}, samples, {"orders": 1.0}, collected_s=1)


def test_the_lag_in_time_is_the_age_of_the_oldest_unread_record():
    behind = make_group("behind", {("orders", 0): 50}, NOW_MS - 5000)
    done = make_group("done", {("orders", 0): 100}, NOW_MS - 9000)
    unknown = make_group("unknown", {("orders", 0): 50})
    future = make_group("future", {("orders", 0): 50}, NOW_MS + 5000)
    sample = make_sample(behind, done, unknown, future)
    assert sample.lags_ms == {"behind": 5000, "done": 0, "unknown": None, "future": 0}


def test_offsets_below_the_log_start_are_read_from_there():
    topics = make_sample().topics
    group = make_group("behind", {("orders", 0): 3, ("orders", 7): 3, ("deleted", 0): 3})
    assert find_unread(group, topics) == {TopicPartition("orders", 0): 10}
    assert find_unread(make_group("done", {("orders", 0): 100}), topics) == {}


def test_the_history_has_the_age_and_gaps_where_it_is_not_known(tmp_path):
    history = SampleHistory(str(tmp_path / "console.sqlite"))
    groups = [
        [make_group("a", {("orders", 0): 50}, NOW_MS - 90_000)],
        [make_group("a", {("orders", 0): 50})],
        [make_group("a", {("orders", 0): 100})],
    ]
    for minute, samples in enumerate(groups):
        history.record("test", make_sample(*samples, time_ms=NOW_MS + minute * MINUTE_MS))
    series = history.read("test", [group_age_series("a")], NOW_MS, NOW_MS + 2 * MINUTE_MS)[group_age_series("a")]
    assert [point.value for point in series] == [90, None, 0]
    history.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.5, "0.5 s"), (90, "90 s"), (150, "2.5 min"), (7200, "2 h"), (172_800, "2 d"), (900_000, "10.4 d")],
)
def test_seconds_of_axes(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("top", "last"), [(45, "50 s"), (400, "8 min"), (30_000, "10 h"), (0.4, "0.4 s")])
def test_ticks_of_seconds_are_round(top, last):
    ticks = value_ticks(top, 60)
    assert ticks[-1] >= top
    assert format_seconds(ticks[-1]) == last


class CountingAdmin:
    """Answers Fetch without records, and counts the partitions of the first round."""

    def __init__(self):
        self.partitions = []

    async def request(self, request, *, broker, version):
        assert (broker, version) == (1, 12)
        self.partitions.append(sum(len(topic.partitions) for topic in request.topics))
        return type("Response", (), {"responses": []})


def topics_of(**partitions):
    return {
        name: TopicSample(name, False, tuple(PartitionSample(i, 1, (1,), (1,), 0, 10, 1) for i in range(count)))
        for name, count in partitions.items()
    }


def groups_of(*groups):
    return {group.name: group for group in groups}


def test_a_collection_reads_a_limited_number_of_partitions():
    admin, times = CountingAdmin(), UnreadTimes()
    large = make_group("large", {("large", number): 5 for number in range(10_000)})
    groups = groups_of(large, make_group("small", {("small", 0): 5}))
    topics = topics_of(large=10_000, small=1)
    timed = asyncio.run(times.add_to_groups(admin, groups, topics, NOW_MS))
    assert admin.partitions[0] == PARTITIONS_PER_COLLECTION
    assert {name: group.timed_ms for name, group in timed.items()} == {"large": NOW_MS, "small": 0}
    # The small group has its turn next.
    admin.partitions.clear()
    timed = asyncio.run(times.add_to_groups(admin, timed, topics, NOW_MS + 1))
    assert timed["small"].timed_ms == NOW_MS + 1


def test_a_group_that_stands_still_is_read_once(broker):
    topic = unique("still")
    times = UnreadTimes()
    requests = []

    async def read():
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.create_topic(topic, num_partitions=2)
            with broker.producer() as producer:
                for timestamp in (1000, 2000, 3000):
                    producer.send(topic, b"x", partition=0, timestamp=timestamp)
                # A batch that is larger than what is requested first, in a partition that is not the first.
                producer.send(topic, b"x" * 20_000, partition=1, timestamp=500)
                producer.flush()
            send = admin.request

            async def count(message, **options):
                requests.append(type(message).__name__)
                return await send(message, **options)

            admin.request = count

            async def find_oldest(*groups):
                requests.clear()
                timed = await times.add_to_groups(admin, groups_of(*groups), topics_of(**{topic: 2}), NOW_MS)
                return {name: group.oldest_unread_ms for name, group in timed.items()}, len(requests)

            still = [make_group(name, {(topic, 0): 1}) for name in ("a", "b")]
            first, again = await find_oldest(*still), await find_oldest(*still)
            moved = await find_oldest(make_group("a", {(topic, 0): 2}))
            large = await find_oldest(make_group("c", {(topic, 0): 0, (topic, 1): 0}))
            beyond = await read_unread_times(admin, {TopicPartition(topic, 0): 99}, lambda _where: 1)
            return first, again, moved, large, beyond

    first, again, moved, large, beyond = asyncio.run(read())
    assert first == ({"a": 2000, "b": 2000}, 1)
    assert again == ({"a": 2000, "b": 2000}, 0)
    assert moved == ({"a": 3000}, 1)
    assert large == ({"c": 500}, 2)
    assert beyond == {}


def test_timestamps_are_kept_for_a_limited_number_of_offsets(monkeypatch):
    monkeypatch.setattr("klamm.console.unread_times.TIMES_MAX", 3)

    async def answer(_admin, offsets, _find_leader):
        return dict.fromkeys(offsets, 1000)

    monkeypatch.setattr("klamm.console.unread_times.read_unread_times", answer)
    times, topics = UnreadTimes(), topics_of(orders=10)
    for offset in range(9):
        timed = asyncio.run(
            times.add_to_groups(None, groups_of(make_group("a", {("orders", 0): offset})), topics, NOW_MS)
        )
        assert timed["a"].oldest_unread_ms == 1000
    assert len(times._times) == 3


def test_the_list_and_the_page_of_a_group_show_how_long_it_is_behind(broker, console, visit):
    topic, group = unique("late"), unique("group")
    now_ms = console.service.app.parts.now_ms()
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic, num_partitions=2)
        for partition, age_s in ((0, 7200), (0, 600), (1, 300)):
            producer.send(topic, b"x", partition=partition, timestamp=now_ms - age_s * 1000)
        producer.flush()
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0})
    console.collect()
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", visit.get(f"/c/test/groups?q={group}&sort=-behind")))
    assert re.search(rf"{group} Empty classic 1 2 10 min", words), words
    console.service.app.parts.history.write("test", now_ms - 60_000, {"rate": 1, group_age_series(group): 540.0})
    page = visit.get(f"/c/test/groups/{group}?span=1h")
    assert "Age of the oldest unread record" in page
    assert "9 min" in page  # of the point in the chart


@pytest.mark.parametrize("span", ["1h", "6h", "24h"])
def test_charts_of_topics_and_groups_have_spans(broker, console, visit, span):
    topic, group = unique("topic"), unique("group")
    with broker.admin() as admin:
        admin.create_topic(topic)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    console.collect()
    for path in (f"/c/test/topics/{topic}", f"/c/test/groups/{group}"):
        page = visit.get(f"{path}?span={span}")
        assert f'<a href="?span={span}" aria-current="true">' in page
        begin_ms, end_ms = (int(re.findall(r'class="tick"[^>]* data-ms="(\d+)"', page)[i]) for i in (0, 4))
        assert end_ms - begin_ms == int(span[:-1]) * 3_600_000
    # Anything else is the default.
    assert '<a href="?span=6h" aria-current="true">' in visit.get(f"/c/test/topics/{topic}?span=2y")

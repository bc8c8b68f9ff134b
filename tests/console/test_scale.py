"""A cluster of 10,000 topics, 100,000 partitions and 15,000 groups, read by the console's own client.

Nothing here is judged by the clock: a page may send few requests, read few series, be small, and use a bounded
processor time. `python -m benchmarks.console` measures the times.
"""

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import threading
import time

import pytest

from benchmarks.console import CLUSTER, fill_history, list_pages
from benchmarks.fake_cluster import PARTITIONS, FakeCluster
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.partition_offsets import PartitionOffsets
from klamm.console.core.samples import TopicSample
from klamm.console.history import SampleHistory
from klamm.console.service import ConsoleConfig, now_ms
from klamm.model.ids import TopicPartition

from .served import ServedConsole

# One worker for the module: the collection takes some seconds.
pytestmark = pytest.mark.xdist_group("console-scale")

WAIT_S = 400
TOPICS = 10_000
GROUPS = 15_000
PAGE_BYTES_MAX = 200_000
ROWS_MAX = 610
"""Of the page with the most: 300 users and at most 500 rules."""
SERIES_MAX = 251
REQUESTS_MAX = 130
"""Of the page with the most: two for each of 50 transactions, one for each broker."""
CPU_S_MAX = 1.0
"""Of one page, with the answers of the fake cluster: five times what the slowest one takes."""
LISTS = {"DescribeTopicPartitions", "ListOffsets", "DescribeLogDirs", "ListGroups", "OffsetFetch"}
"""Requests whose answers grow with the cluster: for the collector only."""
STEPS = 3
SMALL_TOPICS = 2_000
SMALL_GROUPS = 3_000
GROWTH_MB_MAX = 25.0
"""For a fifth of the cluster above, which takes 21. Metadata kept twice, or a key for each partition, doubles it."""


@contextlib.contextmanager
def served_cluster(topics, groups):
    """A fake cluster in a thread."""
    cluster = FakeCluster(topics, groups)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake cluster", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(cluster.start(), loop).result(WAIT_S)
    try:
        yield cluster
    finally:
        asyncio.run_coroutine_threadsafe(cluster.stop(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


@pytest.fixture(scope="module")
def cluster():
    with served_cluster(TOPICS, GROUPS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def large(cluster, tmp_path_factory):
    """A console that has collected the cluster, with the history of its last hours."""
    path = str(tmp_path_factory.mktemp("history") / "console.sqlite")
    fill_history(path, cluster, now_ms(), hours=2)
    config = ConsoleConfig(
        (ConsoleCluster(CLUSTER, cluster.bootstrap, registry_url=cluster.registry),), history_path=path, interval_s=600
    )
    with ServedConsole(config) as console:
        (link,) = console.service.links
        deadline_s = time.monotonic() + WAIT_S
        while link.views is None and not link.error:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield console


@pytest.fixture(scope="module")
def visit(large):
    visit = large.visitor()
    yield visit
    visit.client.close()


def test_all_of_it_is_collected(large, cluster):
    (link,) = large.service.links
    sample = link.sample
    assert link.error == ""
    assert sample.partial == ()
    assert len(sample.topics) == TOPICS
    assert link.views.partitions == link.views.in_sync == TOPICS * PARTITIONS
    assert len(sample.groups) == GROUPS
    topic = sample.topics[cluster.topics[-1].name]
    assert [partition.index for partition in topic.partitions] == list(range(PARTITIONS))
    assert all(partition.end >= partition.start for partition in topic.partitions)
    assert {len(partition.replicas) for partition in topic.partitions} == {3}
    assert topic.sized_replicas == 3 * PARTITIONS
    assert sum(broker.leaders for broker in sample.brokers) == TOPICS * PARTITIONS
    # So many in each collection.
    assert sum(1 for group in sample.groups.values() if group.committed is not None) == 500


@pytest.mark.parametrize("name", list_pages(FakeCluster(1, 1)))
def test_a_page_takes_no_work_that_grows_with_the_cluster(large, cluster, visit, monkeypatch, name):
    address = list_pages(cluster)[name]
    series = []
    read = SampleHistory.read

    def note_series(history, of_cluster, names, *span):
        names = list(names)
        series.append(len(names))
        return read(history, of_cluster, names, *span)

    monkeypatch.setattr(SampleHistory, "read", note_series)
    chance = random.Random(5)
    # The first request connects the client of the pages.
    visit.get(f"/c/{CLUSTER}{address(chance)}")
    for _ in range(STEPS):
        series.clear()
        before, began_s = dict(cluster.requests), time.process_time()
        html = visit.get(f"/c/{CLUSTER}{address(chance)}")
        cpu_s = time.process_time() - began_s
        sent = {api: count - before.get(api, 0) for api, count in cluster.requests.items()}
        assert {api for api, count in sent.items() if count} & LISTS == set()
        assert sum(sent.values()) <= REQUESTS_MAX
        assert sum(series) <= SERIES_MAX
        assert len(re.findall("<tr", html)) <= ROWS_MAX
        assert cpu_s < CPU_S_MAX
    compressed = visit.client.get(f"/c/{CLUSTER}{address(chance)}", headers={"Accept-Encoding": "gzip"})
    assert int(compressed.headers["content-length"]) < PAGE_BYTES_MAX


def test_a_search_finds_one_of_many(large, cluster, visit):
    name = cluster.topics[4321].name
    assert re.findall(r'<th scope="row"><a [^>]*>([^<]+)<', visit.get(f"/c/{CLUSTER}/topics?q={name}")) == [name]
    assert re.findall(r'<th scope="row"><a [^>]*>([^<]+)<', visit.get(f"/c/{CLUSTER}/groups?q=14321")) == [
        "group-14321"
    ]


MEASURE = """
import asyncio, sys
from benchmarks.fake_cluster import serving_fake_cluster
from klamm.console import collector
from klamm.console.clusters import ClusterLink, ConsoleCluster
from klamm.console.history import SampleHistory
from klamm.console.service import now_ms

def peak_mb():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / 1e6

async def collect(name, topics, groups, history):
    with serving_fake_cluster(topics, groups) as addresses:
        link = ClusterLink(ConsoleCluster(name, addresses.bootstrap))
        admin = await collector._connect(link)
        samples = collector.SampleCollector(now_ms)
        for _ in range(3):
            sample = await samples.collect(admin, link.sample)
            link.publish(sample)
            history.record(name, sample)
        assert not sample.partial and len(sample.groups) == groups
        assert all(group.committed for group in sample.groups.values())
        await admin.close()

async def main(topics, groups, path):
    collector._GROUPS_PER_COLLECTION = groups
    history = SampleHistory(path)
    # A few topics first: modules, connections and caches of SQLite do not grow with the cluster.
    await collect("small", 100, 150, history)
    before_mb = peak_mb()
    await collect("large", topics, groups, history)
    print(before_mb, peak_mb())

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
"""


def measure_collections(topics, groups, path):
    """Return the peak of resident memory before and after collections, in a process of their own."""
    command = [sys.executable, "-c", MEASURE, str(topics), str(groups), path]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return tuple(map(float, ended.stdout.split()))


def test_a_collection_needs_little_memory_for_each_partition(tmp_path):
    before_mb, after_mb = measure_collections(SMALL_TOPICS, SMALL_GROUPS, str(tmp_path / "history.sqlite"))
    assert after_mb - before_mb < GROWTH_MB_MAX


@pytest.mark.long
def test_a_console_of_a_large_cluster_stays_below_150_mb(tmp_path):
    _, after_mb = measure_collections(TOPICS, GROUPS, str(tmp_path / "history.sqlite"))
    assert after_mb < 150


def test_offsets_of_a_group_are_a_mapping():
    offsets = {TopicPartition("b", 2): 7, TopicPartition("a", 11): 2**40, TopicPartition("b", 0): 0}
    kept = PartitionOffsets(offsets)
    assert dict(kept) == dict(kept.items()) == offsets
    assert list(kept) == sorted(offsets)
    assert kept[TopicPartition("a", 11)] == 2**40
    assert kept.get(TopicPartition("a", 0)) is None
    assert TopicPartition("c", 0) not in kept
    assert len(kept) == 3
    assert not PartitionOffsets({})
    assert kept == offsets


def test_a_partition_is_found_also_where_others_are_missing():
    topic = TopicSample("t", False, tuple(PartitionSample(index, 1, (1,), (1,), 0, index * 10) for index in (0, 1, 5)))
    assert [topic.partition(index).end for index in (0, 1, 5)] == [0, 10, 50]
    assert topic.partition(2) is None
    assert topic.partition(-1) is None

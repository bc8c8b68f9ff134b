"""Newest records: read from the end backwards, so that what is shown is the newest also when a reading stops early."""

import json
import re

import pytest

from klamm.console import newest_reader

from .test_pages import make_topic, places

BASE_MS = 1_700_000_000_000


@pytest.fixture
def small_readings(monkeypatch):
    """A reading stops after 512 KiB, in slices of 32 KiB."""
    monkeypatch.setattr("klamm.console.message_reader.SCAN_BYTES_MAX", 512 << 10)
    monkeypatch.setattr("klamm.console.newest_reader._SLICE_BYTES", 32 << 10)
    monkeypatch.setattr("klamm.console.newest_reader._GROUP_BYTES", 128 << 10)


def write(broker, topic, count, size, partitions):
    with broker.producer() as producer:
        for number in range(count):
            value = json.dumps({"n": number, "rest": "x" * size}).encode()
            producer.send(topic, value, partition=number % partitions, timestamp=BASE_MS + number)
        producer.flush()


def older_link(page):
    following = re.search(r'rel="next" href="([^"]+)"', page)
    return following and following[1].replace("&amp;", "&")


def follow_links(visit, topic, query, pages_max=200):
    """All records of the pages from the first one on, as `partition/offset`, in the order shown."""
    shown, link = [], query
    for _ in range(pages_max):
        page = visit.get(f"/c/test/topics/{topic}/messages{link}")
        shown += places(page)
        link = older_link(page)
        if not link:
            return shown
    raise AssertionError(f"more than {pages_max} pages")


def test_a_filter_finds_the_newest_records_of_a_topic_that_is_larger_than_a_reading(
    broker, console, visit, small_readings
):
    topic = make_topic(broker, console, partitions=4)
    write(broker, topic, 4000, 1000, 4)
    page = visit.get(f"/c/test/topics/{topic}/messages", params={"where": "value.n >= 3980"})
    assert len(places(page)) == 20
    assert places(page)[:4] == ["3/999", "2/999", "1/999", "0/999"]
    assert older_link(page)


def test_the_link_of_a_stopped_search_goes_on_where_it_stopped(broker, console, visit, small_readings):
    topic = make_topic(broker, console, partitions=4)
    write(broker, topic, 2000, 1000, 4)
    page = visit.get(f"/c/test/topics/{topic}/messages", params={"where": "value.n < 8"})
    assert places(page) == []
    assert "Stopped after" in page
    shown = follow_links(visit, topic, "?where=value.n+%3C+8")
    assert sorted(shown) == sorted(f"{number % 4}/{number // 4}" for number in range(8))


def test_all_passing_records_come_once_and_newest_first(broker, console, visit, small_readings):
    topic = make_topic(broker, console, partitions=3)
    write(broker, topic, 1500, 500, 3)
    shown = follow_links(visit, topic, "?where=value.n+%25+5+%3D%3D+0&limit=25")
    assert shown == [f"{number % 3}/{number // 3}" for number in range(1495, -1, -5)]


def test_newest_records_that_are_larger_than_a_reading_are_read_in_parts(broker, console, visit, small_readings):
    topic = make_topic(broker, console, partitions=2)
    write(broker, topic, 60, 100_000, 2)
    page = visit.get(f"/c/test/topics/{topic}/messages?limit=50")
    assert places(page)[:2] == ["1/29", "0/29"]
    assert "Stopped after" in page
    shown = follow_links(visit, topic, "?limit=50")
    assert sorted(shown) == sorted(f"{number % 2}/{number // 2}" for number in range(60))


def test_newest_records_go_on_to_the_oldest(broker, console, visit):
    topic = make_topic(broker, console, partitions=3)
    write(broker, topic, 130, 10, 3)
    shown = follow_links(visit, topic, "?limit=25")
    assert shown == [f"{number % 3}/{number // 3}" for number in range(129, -1, -1)]


def test_a_partition_of_old_records_does_not_hide_newer_ones(broker, console, visit):
    topic = make_topic(broker, console, partitions=2)
    with broker.producer() as producer:
        for number in range(100):
            producer.send(topic, b"old", partition=0, timestamp=BASE_MS + number)
            producer.send(topic, b"new", partition=1, timestamp=BASE_MS + 1_000_000 + number)
        producer.flush()
    page = visit.get(f"/c/test/topics/{topic}/messages?limit=50")
    assert places(page) == [f"1/{offset}" for offset in range(99, 49, -1)]


def test_records_out_of_order_in_time_are_neither_lost_nor_repeated(broker, console, visit):
    topic = make_topic(broker, console, partitions=2)
    with broker.producer() as producer:
        for number in range(100):
            producer.send(topic, b"x", partition=number % 2, timestamp=BASE_MS + number * 7919 % 1000)
        producer.flush()
    shown = follow_links(visit, topic, "?limit=25")
    assert len(shown) == len(set(shown)) == 100


def test_newest_records_end_where_the_oldest_were_deleted(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    write(broker, topic, 3000, 10, 1)
    with broker.admin() as admin:
        admin.delete_records({(topic, 0): 2990})
    assert places(visit.get(f"/c/test/topics/{topic}/messages?limit=25")) == [
        f"0/{offset}" for offset in range(2999, 2989, -1)
    ]


def test_one_record_that_is_larger_than_a_reading_is_shown(broker, console, visit, monkeypatch):
    monkeypatch.setattr("klamm.console.message_reader.SCAN_BYTES_MAX", 1000)
    monkeypatch.setattr("klamm.console.newest_reader._GROUP_BYTES", 1000)
    topic = make_topic(broker, console, partitions=2)
    write(broker, topic, 4, 5000, 2)
    assert sorted(follow_links(visit, topic, "?limit=25")) == ["0/0", "0/1", "1/0", "1/1"]


def test_the_size_of_a_slice_follows_the_size_of_its_records():
    tail = newest_reader.PartitionTail(0, 1_000_000)
    assert tail.slice_offsets() < 10
    tail.keep([], 999_996, scanned_bytes=4 * 100)
    grown = tail.slice_offsets()
    assert grown > 10
    tail.keep([], 999_996 - grown, scanned_bytes=grown << 20)
    assert tail.slice_offsets() <= 2

"""Scenarios of `read_topic` while a topic changes, and of its times, as in `client_stories`."""

import asyncio
import contextlib
import datetime as dt
import time
from collections.abc import Awaitable, Callable, Iterator
from unittest.mock import patch

import pyarrow as pa
import pytest

import klamm
from harness.client_stories import PATIENCE_S, Story, topic
from harness.wire import unique
from klamm.client import AsyncAdmin, AsyncConsumer, AsyncProducer, Producer, TopicPartition
from klamm.client.errors import KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

SMALL_FETCHES = {"max_partition_fetch_bytes": 100_000, "queued_max_messages_kbytes": 200}
"""So that most of a topic of `COUNT` records is not fetched yet when the first rows are there."""
COUNT = 400
BASE_MS = 1_700_000_000_000


def table(name: str, bootstrap: str, **options) -> pa.Table:
    return klamm.read_topic(name, bootstrap=bootstrap, timeout_s=PATIENCE_S, **options)


def filled(bootstrap: str) -> str:
    name = topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, batch_size=1) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d " % number + b"x" * 30_000)
    return name


@contextlib.contextmanager
def after_the_first_rows(change: Callable[[], Awaitable[object]]) -> Iterator[None]:
    """Change something once between two polls of a read."""
    poll, seen = AsyncConsumer.poll_arrow, []

    async def polled(self, *args, **options):
        if seen == [True]:
            seen.append(False)
            await change()
        rows = await poll(self, *args, **options)
        if rows.num_rows and not seen:
            seen.append(True)
        return rows

    with patch.object(AsyncConsumer, "poll_arrow", polled):
        yield
    assert seen == [True, False], "the change was made"


def what_is_deleted_while_it_is_read_does_not_take_the_rest_with_it(bootstrap: str) -> None:
    name = filled(bootstrap)
    where = TopicPartition(name, 0)

    async def delete() -> None:
        async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
            await admin.delete_records({where: 300})

    with after_the_first_rows(delete):
        rows = table(name, bootstrap, **SMALL_FETCHES)
    offsets = rows["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 0, "what was there when it began"
    assert [offset for offset in offsets if offset >= 300] == list(range(300, COUNT))
    assert table(name, bootstrap, start={0: 10})["offset"].to_pylist() == list(range(300, COUNT))
    with pytest.raises(OffsetOutOfRangeError, match="no offset 10"):
        table(name, bootstrap, start={0: 10}, auto_offset_reset="none")


def a_topic_that_is_deleted_while_it_is_read_is_told(bootstrap: str) -> None:
    name = filled(bootstrap)

    async def delete() -> None:
        async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
            await admin.delete_topics([name])

    with (
        after_the_first_rows(delete),
        pytest.raises(UnknownTopicOrPartitionError, match=f"{name} was deleted"),
    ):
        table(name, bootstrap, **SMALL_FETCHES)


def another_topic_of_that_name_is_not_mixed_in(bootstrap: str) -> None:
    name = filled(bootstrap)

    async def replace() -> None:
        async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
            await admin.delete_topics([name])
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with contextlib.suppress(TopicAlreadyExistsError):
                        await admin.create_topic(name, 1, 1)
                        break
        async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
            for _ in range(COUNT):
                await producer.send(name, b"of another topic")

    with (
        after_the_first_rows(replace),
        pytest.raises(UnknownTopicOrPartitionError, match=f"{name} was deleted"),
    ):
        table(name, bootstrap, **SMALL_FETCHES)
    assert table(name, bootstrap).num_rows == COUNT


def what_does_not_exist_is_said_soon(bootstrap: str) -> None:
    name = unique("nowhere")
    began = time.monotonic()
    with pytest.raises(UnknownTopicOrPartitionError, match=f"no topic {name}"):
        klamm.read_topic(name, bootstrap=bootstrap)
    assert time.monotonic() - began < 20
    with pytest.raises(UnknownTopicOrPartitionError, match="1 partitions, and no partition 7"):
        klamm.read_topic(topic(bootstrap), bootstrap=bootstrap, partitions=[0, 7])
    with pytest.raises(KafkaError, match="INVALID_TOPIC"):
        klamm.read_topic("no name!", bootstrap=bootstrap)


def moments_are_told_as_people_tell_them(bootstrap: str) -> None:
    name = topic(bootstrap, 2)
    now_ms = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, partition=number % 2, timestamp=BASE_MS + number * 1000)
        producer.send(name, b"20", partition=0, timestamp=now_ms)

    def numbers(**options) -> list[int]:
        return sorted(int(value) for value in table(name, bootstrap, **options)["value"].to_pylist())

    moment = dt.datetime.fromtimestamp(BASE_MS / 1000 + 10, dt.UTC)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=-7)))
    assert numbers(start=moment) == numbers(start=elsewhere) == list(range(10, 21))
    assert numbers(end=moment) == list(range(10))
    assert numbers(start=moment + dt.timedelta(microseconds=1), end=moment + dt.timedelta(seconds=2)) == [11]
    assert numbers(end=moment + dt.timedelta(microseconds=1)) == list(range(11)), "the record of that moment is before"
    assert numbers(start=dt.timedelta(days=1)) == [20]
    assert numbers(end=dt.timedelta(days=1)) == list(range(20))
    assert numbers(start={0: 9}) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19, 20]
    assert numbers(start={0: 2, 1: 3}, end={0: 3, 1: 1000}) == [4, 7, 9, 11, 13, 15, 17, 19]
    assert numbers(start={0: 1000}, partitions=[0]) == []
    with pytest.raises(ValueError, match="partition 1, which is not read"):
        numbers(start={1: 0}, partitions=[0])


BOUNDED: dict[str, Story] = {
    story.__name__: story
    for story in (
        what_is_deleted_while_it_is_read_does_not_take_the_rest_with_it,
        a_topic_that_is_deleted_while_it_is_read_is_told,
        another_topic_of_that_name_is_not_mixed_in,
        what_does_not_exist_is_said_soon,
        moments_are_told_as_people_tell_them,
    )
}

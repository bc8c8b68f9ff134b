"""Tables decoded in a thread: what happens to positions and batches while it works. No broker, no sleeps."""

import asyncio
import random
import threading
from types import SimpleNamespace as N

import pyarrow as pa
import pytest

from klamm.client.client_settings import consumer_settings
from klamm.client.consumer import tables
from klamm.client.consumer.core.fetch_buffer import FetchBuffer
from klamm.client.consumer.core.subscription import Subscription
from klamm.client.consumer.fetcher import Fetcher
from klamm.client.consumer.tables import Tables
from klamm.client.errors import CorruptRecordError
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.records import BatchView, build_batch
from klamm.records.control import build_end_txn_marker

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
PATIENCE_S = 60
ROWS = 400
NOISE = random.Random(1).randbytes(ROWS * 1000)
"""Does not become small when it is packed."""
LZ4 = 3


class Desk:
    """A shelf with two partitions and the tables made of it; `gate` holds the thread back."""

    def __init__(self, **settings):
        self.subscription = Subscription()
        self.subscription.assign_manually([A, B])
        for state in self.subscription.assigned.values():
            state.seek(0)
        self.fetch_buffer = FetchBuffer(
            self.subscription, consumer_settings({"bootstrap.servers": "x:1", **settings}, {})
        )
        self.tables = Tables(self.fetch_buffer)
        self.gate = threading.Event()
        self.gate.set()
        self.decoding = threading.Event()
        self.threads = []

    def put(self, where, base, *, value=b"", size=1000, rows=ROWS, damaged=False, packed=False):
        """Rows of a value and as much noise as makes it `size` bytes."""
        noise = size - len(value)
        made = [(1, b"k", value + NOISE[index * noise : (index + 1) * noise], []) for index in range(rows)]
        data = build_batch(made, base_offset=base, codec=LZ4 if packed else 0)
        if damaged:
            data[-1] ^= 1
        state = self.subscription.state(where)
        batch = BatchView(data)
        state.batches.append(batch)
        state.buffered += batch.size
        state.fetch_offset = batch.next_offset

    def state(self, where):
        return self.subscription.state(where)

    async def begin(self):
        """A poll that is being decoded."""
        self.gate.clear()
        takes = self.tables.take(None)
        polled = asyncio.create_task(self.tables.table(takes))
        await asyncio.to_thread(self.decoding.wait, PATIENCE_S)
        return polled


@pytest.fixture
def desk(monkeypatch):
    made = Desk()
    real = tables._arrow

    def held(*arguments, **options):
        made.threads.append(threading.current_thread())
        made.decoding.set()
        if threading.current_thread() is not threading.main_thread():
            assert made.gate.wait(PATIENCE_S)
        return real(*arguments, **options)

    monkeypatch.setattr(tables, "_arrow", held)
    yield made
    made.gate.set()
    made.tables.close()


def fill(desk):
    for number in range(4):
        desk.put(A, number * ROWS, packed=True)
        desk.put(B, number * ROWS, packed=True)


def offsets(table, where):
    return table.filter(pa.compute.equal(table["partition"], where.partition))["offset"].to_pylist()


def begin_with(table, value):
    return all(text.startswith(value) for text in table["value"].to_pylist())


def test_what_is_much_and_packed_does_not_stay_on_the_loop(desk):
    async def story():
        desk.put(A, 0, rows=3, packed=True)
        assert (await desk.tables.table(desk.tables.take(None))).num_rows == 3
        for number in range(15):
            desk.put(A, 3 + ROWS * number)
        assert (await desk.tables.table(desk.tables.take(None))).num_rows == 15 * ROWS
        assert {thread.name for thread in desk.threads} == {threading.main_thread().name}
        fill(desk)
        desk.state(A).position = desk.state(B).position = 0
        table = await desk.tables.table(desk.tables.take(None))
        assert desk.threads[-1].name.startswith("klamm-tables")
        assert offsets(table, A) == offsets(table, B) == list(range(4 * ROWS))

    asyncio.run(story())


def test_positions_move_when_a_table_is_handed_out_and_not_before(desk):
    async def story():
        fill(desk)
        polled = await desk.begin()
        assert (desk.state(A).position, desk.state(A).buffered) == (0, 0)
        desk.put(A, 4 * ROWS, packed=True)  # comes meanwhile, and is not for another poll: it would be before its time
        assert desk.tables.take(None) is None
        assert desk.fetch_buffer.collect() == []
        assert desk.fetch_buffer.chunk() is None
        desk.gate.set()
        assert (await polled).num_rows == 8 * ROWS
        assert desk.state(A).position == desk.state(B).position == 4 * ROWS
        assert (await desk.tables.table(desk.tables.take(None)))["offset"].to_pylist()[0] == 4 * ROWS

    asyncio.run(story())


def test_a_marker_that_comes_meanwhile_does_not_move_the_position_past_rows_not_returned(desk):
    ended = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp": 1}
    marker = bytes(build_end_txn_marker(committed=True, base_offset=4 * ROWS, **ended))
    answered = N(
        error_code=ErrorCode.NONE, high_watermark=9, last_stable_offset=9, log_start_offset=0,
        preferred_read_replica=-1, records=marker, aborted_transactions=None,
    )  # fmt: skip

    async def story():
        fill(desk)
        polled = await desk.begin()
        state = desk.state(A)
        assert not Fetcher._buffer_records(N(_committed=False), state, answered, None)
        assert (state.position, state.fetch_offset) == (0, 4 * ROWS + 1)
        desk.gate.set()
        await polled
        assert state.position == 4 * ROWS + 1

    asyncio.run(story())


@pytest.mark.parametrize("how", ["seek", "unassign", "reset"])
def test_what_was_left_meanwhile_is_not_handed_out(desk, how):
    async def story():
        fill(desk)
        polled = await desk.begin()
        if how == "seek":
            desk.state(A).seek(7)
            desk.put(A, 5)
        elif how == "reset":
            desk.state(A).need_reset(-1)
        else:
            desk.subscription.assign_manually([B])
        desk.gate.set()
        table = await polled
        assert set(table["partition"].to_pylist()) == {1}
        assert desk.state(B).position == 4 * ROWS
        if how == "seek":
            assert desk.state(A).position == 7
            assert (await desk.tables.table(desk.tables.take(None)))["offset"].to_pylist()[0] == 7
        elif how == "reset":
            assert desk.state(A).position is None

    asyncio.run(story())


def test_all_left_is_no_table(desk):
    async def story():
        fill(desk)
        polled = await desk.begin()
        desk.state(A).seek(1)
        desk.state(B).seek(2)
        desk.gate.set()
        assert await polled is None
        assert (desk.state(A).position, desk.state(B).position) == (1, 2)

    asyncio.run(story())


def test_a_pause_meanwhile_keeps_the_rows_for_later(desk):
    async def story():
        fill(desk)
        held = desk.state(A).buffered
        polled = await desk.begin()
        desk.state(A).paused = True
        desk.gate.set()
        assert set((await polled)["partition"].to_pylist()) == {1}
        assert desk.state(A).buffered == held
        desk.state(A).paused = False
        assert offsets(await desk.tables.table(desk.tables.take(None)), A) == list(range(4 * ROWS))

    asyncio.run(story())


def test_a_poll_given_up_gives_everything_back(desk):
    async def story():
        fill(desk)
        held = desk.subscription.buffered
        polled = await desk.begin()
        desk.put(A, 4 * ROWS)
        polled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polled
        assert desk.subscription.buffered == held + desk.state(A).batches[-1].size
        desk.gate.set()
        table = await desk.tables.table(desk.tables.take(None))
        assert offsets(table, A) == list(range(5 * ROWS))
        assert offsets(table, B) == list(range(4 * ROWS))

    asyncio.run(story())


def test_closing_meanwhile_lets_the_poll_end(desk):
    async def story():
        fill(desk)
        polled = await desk.begin()
        desk.tables.close()
        desk.gate.set()
        assert (await polled).num_rows == 8 * ROWS

    asyncio.run(story())


@pytest.mark.parametrize("packed", [True, False], ids=["in the thread", "on the loop"])
def test_damage_is_told_for_its_partition_and_costs_the_others_nothing(desk, packed):
    async def story():
        for number in range(4):
            desk.put(A, number * ROWS, damaged=number == 2, packed=packed)
            desk.put(B, number * ROWS, packed=packed)
        seen = {A: [], B: []}
        errors = []
        while len(seen[B]) < 4 * ROWS or not errors:
            takes = desk.tables.take(None)
            if takes is None:
                break
            try:
                table = await desk.tables.table(takes)
            except CorruptRecordError as error:
                errors.append(str(error))
                continue
            for where in seen:
                seen[where] += offsets(table, where)
        assert seen == {A: list(range(2 * ROWS)), B: list(range(4 * ROWS))}
        assert len(errors) == 1
        assert f"t-0 at offset {2 * ROWS}" in errors[0]
        assert desk.state(A).position == desk.state(A).fetch_offset == 2 * ROWS

    asyncio.run(story())


def test_a_surprise_in_the_thread_loses_nothing(desk, monkeypatch):
    async def story():
        fill(desk)
        working = tables._arrow

        def surprise(*_, **__):
            raise MemoryError("no room")

        monkeypatch.setattr(tables, "_arrow", surprise)
        with pytest.raises(MemoryError):
            await desk.tables.table(desk.tables.take(None))
        monkeypatch.setattr(tables, "_arrow", working)
        assert (await desk.tables.table(desk.tables.take(None))).num_rows == 8 * ROWS

    asyncio.run(story())


@pytest.mark.parametrize("packed", [True, False], ids=["in the thread", "on the loop"])
def test_memory_is_used_again_only_when_a_table_is_gone(desk, packed):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def story():
        kept = []
        for number in range(40):
            value = bytes([number]) * chance.randrange(1000, 1500)
            size = len(value) + 300
            for where in (A, B):
                for index in range(2):
                    desk.put(where, (2 * number + index) * ROWS, value=value, size=size, packed=packed)
            table = await desk.tables.table(desk.tables.take(None))
            assert begin_with(table, value)
            if chance.random() < 0.4:
                kept.append((table.slice(chance.randrange(100)), value))
            del table
            if kept and chance.random() < 0.3:
                kept.pop(chance.randrange(len(kept)))
            for table, expected in kept:
                assert begin_with(table, expected), seed
        assert 2 <= len(desk.tables._buffer_pool._buffers) <= 4
        assert (desk.threads[-1] is threading.main_thread()) != packed

    asyncio.run(story())

"""What clients ask of the kernels, in both forms: rows for consumers, places for keys."""

import random

import pyarrow as pa
import pytest

from klamm.client.types import Record
from klamm.model.errors import CorruptBatch
from klamm.records import BatchView, build_batch
from klamm.records.arrow import binary_buffers


def rows(form, batch, first=0, count=None):
    view = BatchView(batch)
    return form.decode_client_records(
        view.records,
        view.record_count if count is None else count,
        view.base_offset,
        view.base_timestamp,
        view.max_timestamp if view.is_log_append_time else None,
        first,
        Record,
        "topic",
        3,
        9,
    )


def test_rows_say_where_they_come_from(form):
    batch = build_batch([(5, b"k", b"v", [("h", b"x"), ("n", None)]), (6, None, None, ())], base_offset=10)
    first, second = rows(form, batch)
    assert first == Record("topic", 3, 10, 5, b"k", b"v", (("h", b"x"), ("n", None)), 0, 9)
    assert second == Record("topic", 3, 11, 6, None, None, (), 0, 9)
    assert type(first) is Record


def test_rows_before_the_position_are_left_out(form):
    batch = build_batch([(1, None, b"%d" % number, ()) for number in range(10)], base_offset=100)
    assert [row.offset for row in rows(form, batch, 107)] == [107, 108, 109]
    assert rows(form, batch, 110) == []


def test_damaged_rows_are_refused(form):
    batch = build_batch([(1, b"k", b"v", ())])
    with pytest.raises(CorruptBatch):
        rows(form, batch, count=2)
    with pytest.raises(CorruptBatch):
        rows(form, batch, count=0)
    with pytest.raises(TypeError):
        form.decode_client_records(b"", 0, 0, 0, None, 0, list, "t", 0, 0)


def test_both_forms_hash_alike(compiled, interpreted):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for size in range(64):
        key = chance.randbytes(size)
        assert compiled.murmur2(key) == interpreted.murmur2(key)


def test_rows_are_placed_and_grouped(form):
    keys = pa.array([b"a", None, b"b", b"", b"c", b"a"], pa.binary()).slice(1)
    placed, counts = bytearray(4 * 5), bytearray(8 * 3)
    assert form.partition_rows(5, binary_buffers(keys), 3, placed, counts) == 1
    partitions = list(memoryview(placed).cast("i"))
    assert partitions[0] == -1
    assert partitions[1:] == [(form.murmur2(key) & 0x7FFFFFFF) % 3 for key in (b"b", b"", b"c", b"a")]
    assert list(memoryview(counts).cast("q")) == [partitions.count(partition) for partition in range(3)]
    memoryview(placed).cast("i")[0] = 2
    sizes = [list(memoryview(placed).cast("i")).count(partition) for partition in range(3)]
    starts, order = bytearray(8 * 3), bytearray(8 * 5)
    memoryview(starts).cast("q")[1] = sizes[0]
    memoryview(starts).cast("q")[2] = sizes[0] + sizes[1]
    form.group_rows(5, placed, starts, order)
    now = list(memoryview(placed).cast("i"))
    assert list(memoryview(order).cast("q")) == sorted(range(5), key=lambda row: (now[row], row))


def test_rows_that_fit_nowhere_are_refused(form):
    with pytest.raises(ValueError, match="partitions"):
        form.group_rows(1, bytearray(b"\x05\0\0\0"), bytearray(8), bytearray(8))
    with pytest.raises(ValueError, match="leave its data"):
        form.partition_rows(1, (None, b"\0\0\0\0\xff\0\0\0", b"abc", 0), 3, bytearray(4), bytearray(24))
    with pytest.raises(ValueError, match="smaller"):
        form.partition_rows(9, (None, b"\0" * 40, b"", 0), 3, bytearray(4), bytearray(24))


def test_blank_room_has_its_size(form):
    assert len(form.blank(100)) == 100
    assert form.blank(0) == bytearray()
    with pytest.raises(ValueError, match="negative"):
        form.blank(-1)

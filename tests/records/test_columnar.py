"""Columns equal rows, in both forms, and pyarrow takes them as they are."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records import BatchView, arrow, build_batch, columnar, decode_batch
from klamm.records.arrow import from_arrow, to_arrow
from klamm.records.columnar import decode_columns
from klamm.records.control import build_end_txn_marker

BLOB = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
ROW = st.tuples(st.integers(0, 2**50), BLOB, BLOB, HEADERS)
BATCHES = st.lists(st.tuples(st.lists(ROW, min_size=1, max_size=20), st.integers(0, 4), st.booleans()), max_size=4)


def use_columns(patch, form):
    for name in ("fill_columns", "measure_records", "blank"):
        patch.setattr(columnar, name, getattr(form, name))


def buffer_of(batches):
    """A log of the drawn batches and the rows a table of it should have."""
    log, rows, offset = bytearray(), [], 100
    for records, codec, stamped in batches:
        batch = build_batch(records, base_offset=offset, codec=codec)
        if stamped:
            BatchView(batch).set_log_append_time(777)
        rows += [(r, int(stamped)) for r in BatchView(batch).decode()]
        log += batch
        offset += len(records)
    return bytes(log), rows


def table_rows(table):
    return [
        (r["offset"], r["key"], r["value"], [(h["key"], h["value"]) for h in r["headers"]], r["timestampType"])
        for r in table.drop_columns(["timestamp"]).to_pylist()
    ]


@given(BATCHES)
def test_columns_equal_rows(form, drawn):
    log, rows = buffer_of(drawn)
    with pytest.MonkeyPatch.context() as patch:
        use_columns(patch, form)
        table = to_arrow(log, "orders", 3)
    table.validate(full=True)
    assert table_rows(table) == [(r.offset, r.key, r.value, list(r.headers), kind) for r, kind in rows]
    milliseconds = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert milliseconds == [r.timestamp * 1000 for r, _ in rows]


def test_the_schema_is_that_of_sparks_connector():
    table = to_arrow(build_batch([(1_700_000_000_123, b"k", None, [])], base_offset=8), "orders", 3)
    assert table.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": None,
            "topic": "orders",
            "partition": 3,
            "offset": 8,
            "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
            "timestampType": 0,
            "headers": [],
        }
    ]
    assert "headers" not in to_arrow(b"", "orders", 3, include_headers=False).schema.names


def test_a_fetch_begins_inside_a_batch():
    log = build_batch([(i, None, b"%d" % i, []) for i in range(10)], base_offset=50)
    assert to_arrow(log, "t", 0, from_offset=57).column("value").to_pylist() == [b"7", b"8", b"9"]
    assert to_arrow(log, "t", 0, from_offset=90).num_rows == 0


def test_markers_and_cut_tails_are_left_out():
    first = build_batch([(1, b"a", b"1", [])])
    marker = build_end_txn_marker(
        committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=2, base_offset=1
    )
    last = build_batch([(3, b"b", b"2", [])], base_offset=2)
    table = to_arrow(bytes(first + marker + last + first[:65]), "t", 0)
    assert table.column("offset").to_pylist() == [0, 2]


def test_chosen_batches_and_no_batches():
    chosen = [BatchView(build_batch([(1, b"a", b"1", [])], base_offset=4))]
    assert to_arrow(iter(chosen), "t", 0).column("offset").to_pylist() == [4]
    assert to_arrow(b"", "t", 0).num_rows == 0


def test_damage_and_limits_are_errors():
    batch = build_batch([(1, b"a", bytes(5000), [])] * 10, codec=4)
    with pytest.raises(KlammError) as refusal:
        decode_columns(bytes(batch + batch), limit=70_000)
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        decode_columns(batch)
    with pytest.raises(CorruptBatch):
        to_arrow(build_batch([(2**62, None, None, [])]), "t", 0)


def test_header_names_that_are_not_text_are_replaced():
    table = to_arrow(build_batch([(1, None, None, [(b"\xffa", b"1"), ("b", None)])]), "t", 0)
    table.validate(full=True)
    assert table.to_pylist()[0]["headers"] == [{"key": "\ufffda", "value": b"1"}, {"key": "b", "value": None}]


def test_rows_without_buffers_are_refused_and_bytes_without_room_wait(form):
    data = bytes(form.encode_records([(0, b"key", b"value", [("h", b"x")])], 0)[0])
    whole = [8, 8, 1, 8, 3, 1, 8, 5, 8, 1, 8, 1, 1, 8, 1]
    full = tuple(bytearray(n) for n in whole)
    assert form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 1, full) == (1, len(data), 1)
    for index in range(15):
        columns = tuple(bytearray(n - (i == index)) for i, n in enumerate(whole))
        if index not in (4, 7, 11, 14):
            with pytest.raises(ValueError, match="smaller"):
                form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 1, columns)
            continue
        assert form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 1, columns) == (0, 0, 0)
        columns[index].append(0)
        assert form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 1, columns, 0, 0) == (1, len(data), 1)
        assert columns == full
    assert form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 0, full) == (0, 0, 0), "its header does not fit"
    for row, header, columns in ((1, 0, 15), (-1, 0, 15), (0, 2, 15), (0, -1, 15), (0, 0, 14)):
        with pytest.raises(ValueError, match="fit"):
            form.fill_columns(data, 1, 0, 0, None, row, header, 1, 1, full[:columns])
    for record, position in ((2, 0), (-1, 0), (0, len(data) + 1), (0, -1)):
        with pytest.raises(ValueError, match="fit"):
            form.fill_columns(data, 1, 0, 0, None, 0, 0, 1, 1, full, record, position)


def test_more_records_than_bytes_are_damage(form, monkeypatch):
    use_columns(monkeypatch, form)
    batch = build_batch([(1, b"a", b"1", [])])
    for count in (-1, 2, 1 << 30):
        batch[57:61] = count.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptBatch):
            decode_columns(bytes(batch), check_crc=False)


def test_memory_may_come_from_elsewhere():
    rows = [(1, b"key", b"value", [("h", b"x")]), (2, None, b"", []), (3, b"longer key", None, [])]
    given = []

    def allocate(size):
        given.append(bytearray(b"\xff" * (size + 100)))
        return given[-1]

    table = arrow.to_arrow(decode_columns(build_batch(rows), allocate=allocate), "t", 0)
    table.validate(full=True)
    assert len(given) == 2, "one for values, one for keys"
    assert table.column("key").to_pylist() == [b"key", None, b"longer key"]
    assert table.column("value").to_pylist() == [b"value", b"", None]
    assert table.column("value").buffers()[2].size == 5


@given(rows=st.lists(ROW, min_size=1, max_size=30), cut=st.integers(0, 29), codec=st.integers(0, 4))
def test_tables_become_batches(form, rows, cut, codec):
    log = build_batch(rows)
    table = to_arrow(log, "t", 0).slice(min(cut, len(rows) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "encode_columns", form.encode_columns)
        batch = from_arrow(table, now_ms=0, codec=codec)
    assert batch == build_batch(rows[min(cut, len(rows) - 1) :], codec=codec)


def test_columns_may_be_missing_null_or_text(form, monkeypatch):
    monkeypatch.setattr(arrow, "encode_columns", form.encode_columns)
    only_text = pa.RecordBatch.from_pydict({"value": pa.array(["soup", None, "größe"], pa.large_string())})
    batch = from_arrow(only_text, now_ms=44, base_offset=7, producer_id=3, producer_epoch=1, base_sequence=2)
    assert [tuple(r) for r in decode_batch(batch)] == [
        (7, 44, None, b"soup", ()),
        (8, 44, None, None, ()),
        (9, 44, None, "größe".encode(), ()),
    ]
    assert BatchView(batch).producer_id == 3
    nothing = pa.RecordBatch.from_pydict({"key": pa.nulls(2), "timestamp": pa.array([5, None]), "headers": pa.nulls(2)})
    assert [r[1:] for r in decode_batch(from_arrow(nothing, now_ms=9))] == [(5, None, None, ()), (9, None, None, ())]
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [], [{"key": "a", "value": None}, {"key": "b", "value": b"1"}]], pairs)
    table = pa.RecordBatch.from_pydict({"headers": headers}).slice(1)
    assert [r.headers for r in decode_batch(from_arrow(table, now_ms=9))] == [(), (("a", None), ("b", b"1"))]
    with pytest.raises(ValueError, match="row"):
        from_arrow(table.slice(2), now_ms=9)
    with pytest.raises(ValueError, match="headers"):
        from_arrow(pa.RecordBatch.from_pydict({"headers": [1]}), now_ms=9)
    unnamed = pa.RecordBatch.from_pydict({"headers": pa.array([[{"key": None, "value": None}]], pairs)})
    with pytest.raises(ValueError, match="name"):
        from_arrow(unnamed, now_ms=9)


def test_a_buffer_used_before_changes_nothing_but_where_bytes_lie(form):
    column = (None, b"".join(at.to_bytes(4, "little") for at in (0, 3, 3, 9)), b"abcdefghi", 0)
    plain, largest = form.encode_columns(3, 0, bytes(24), None, column, None, 61)
    smallest = 61 + 256  # the kernel begins with 256 bytes after the prefix
    for size in (0, 10, smallest - 1, smallest, 400, 5000):
        spare = bytearray(b"\xee") * size
        again, same = form.encode_columns(3, 0, bytes(24), None, column, None, 61, spare)
        assert (again[61:], same, len(again)) == (plain[61:], largest, len(plain))
        assert (again is spare) == (size >= smallest)


@pytest.mark.parametrize("offsets", [[0, 9], [5, 3], [-1, 2], [2**31 - 1, 2**31 - 1], [0]])
def test_columns_that_lie_are_refused(form, offsets):
    raw = b"".join(o.to_bytes(4, "little", signed=True) for o in offsets)
    with pytest.raises(ValueError, match=r"Arrow|smaller"):
        form.encode_columns(1, 0, bytes(8), (None, raw, b"12345678", 0), None, None)
    with pytest.raises(ValueError, match=r"Arrow|smaller"):
        form.encode_columns(1, 0, bytes(8), None, (None, raw, b"12345678", 0), None)
    good = (None, bytes(8), b"", 0)
    with pytest.raises(ValueError, match=r"Arrow|smaller"):
        form.encode_columns(
            1, 0, bytes(8), None, None, (None, b"\0\0\0\0\1\0\0\0", (None, raw, b"12345678", 0), good, 0)
        )


def test_columns_shorter_than_their_rows_are_refused(form):
    column = (b"\xff", bytes(12), b"", 0)
    form.encode_columns(2, 0, bytes(16), column, column, None)
    for arguments in (
        (2, 0, bytes(15), column, column, None),
        (3, 0, bytes(24), column, None, None),
        (2, 0, bytes(16), None, (b"", bytes(12), b"", 0), None),
        (2, 0, bytes(16), None, (None, bytes(12), b"", -1), None),
        (2, 0, bytes(16), None, None, (None, bytes(8), column, column, 0)),
        (2, 0, bytes(16), None, None, (b"", bytes(12), column, column, 0)),
    ):
        with pytest.raises(ValueError, match=r"Arrow|smaller"):
            form.encode_columns(*arguments)

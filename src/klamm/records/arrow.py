"""Columns to pyarrow and back; the only module here that imports pyarrow, an optional extra, and only when called.

Column names and types are those of Spark's Kafka connector: key, value, topic, partition, offset, timestamp,
timestampType, headers.
"""

import bisect
import functools
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch
from klamm.records.batch import HEADER_OVERHEAD, HEADER_SIZE, RECORD_OVERHEAD, BatchView, seal_batch
from klamm.records.columnar import BinaryColumn, RecordColumns, decode_columns
from klamm.records.kernels.encode import encode_columns

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_REPEATED_ROWS_MAX = 16_384
"""A topic column is cached for the next table up to this length."""


@functools.cache
def schema(*, include_headers: bool = True) -> "pa.Schema":
    """The columns of every table."""
    import pyarrow as pa  # noqa: PLC0415 - an optional extra

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))))
    return pa.schema(fields)


def to_arrow(
    source: RecordColumns | Buffer | Iterable[BatchView],
    topic: str,
    partition: int,
    *,
    from_offset: int | None = None,
    include_headers: bool = True,
) -> "pa.RecordBatch":
    """A pyarrow RecordBatch over the columns, in the schema of Spark's Kafka connector; needs pyarrow.

    `from_offset` drops earlier records: a fetch returns the whole batch that contains its offset.
    """
    columns = source if isinstance(source, RecordColumns) else decode_columns(source)
    places = [(topic, partition, columns.rows)]
    return to_arrow_of(columns, places, from_offset=from_offset, include_headers=include_headers)


def to_arrow_of(
    columns: RecordColumns,
    places: Sequence[tuple[str, int, int]],
    *,
    from_offset: int | None = None,
    include_headers: bool = True,
) -> "pa.RecordBatch":
    """As `to_arrow`, of several partitions: `places` are topic, partition and number of rows, as they follow.

    `from_offset` is for one partition alone.
    """
    import pyarrow as pa  # noqa: PLC0415 - an optional extra

    rows = columns.rows
    topics = [_topic_column(topic, count) for topic, _, count in _by_topic(places)]
    partitions = bytearray().join(partition.to_bytes(4, sys.byteorder) * count for _, partition, count in places)
    arrays = [
        _arrow_binary(columns.keys, rows, pa.binary()),
        _arrow_binary(columns.values, rows, pa.binary()),
        topics[0] if len(topics) == 1 else pa.concat_arrays(topics),
        _arrow_fixed(partitions, rows, pa.int32()),
        _arrow_fixed(columns.offsets, rows, pa.int64()),
        _arrow_timestamps(columns.timestamps, rows),
        _arrow_fixed(columns.timestamp_types, rows, pa.int32()),
    ]
    if include_headers:
        arrays.append(_arrow_headers(columns))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema(include_headers=include_headers))
    if from_offset is not None:
        # Offsets ascend within one partition, so the first wanted row is found by bisection.
        batch = batch.slice(bisect.bisect_left(memoryview(columns.offsets).cast("q"), from_offset))
    return batch


def _by_topic(places: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Merge neighbours of one topic, adding up their rows."""
    merged: list[tuple[str, int, int]] = []
    for topic, partition, rows in places:
        before = merged.pop()[2] if merged and merged[-1][0] == topic else 0
        merged.append((topic, partition, before + rows))
    return merged


def _topic_column(topic: str, rows: int) -> "pa.Array":
    """The topic in every row: a slice of a cached column, unless that would be long."""
    if rows > _REPEATED_ROWS_MAX:
        return _repeat(topic, rows)
    # Powers of two, so that tables of any length share a few cached columns.
    return _repeat_cached(topic, 1 << max(rows - 1, 1).bit_length()).slice(0, rows)


def _repeat(topic: str, rows: int) -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    return pa.repeat(pa.scalar(topic, pa.string()), rows)


_repeat_cached = functools.lru_cache(maxsize=8)(_repeat)


def _arrow_fixed(data: bytearray, rows: int, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def _arrow_timestamps(data: bytearray, rows: int) -> "pa.Array":
    """Milliseconds as Spark's microseconds; Arrow multiplies, and raises where that overflows."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        return _arrow_fixed(data, rows, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        raise CorruptBatch("a timestamp does not fit microseconds in 64 bits") from None


def _arrow_binary(column: BinaryColumn, rows: int, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    data = pa.py_buffer(column.data)
    if len(column.data) > column.measure(rows):
        # The buffer may be larger than its content, and the rest is no part of the column.
        data = data.slice(0, column.measure(rows))
    buffers = [pa.py_buffer(column.validity), pa.py_buffer(column.offsets), data]
    return pa.Array.from_buffers(kind, rows, buffers)


def _arrow_headers(columns: RecordColumns) -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    names = _arrow_binary(columns.header_names, columns.headers, pa.binary())
    try:
        texts = names.cast(pa.string()) if columns.headers else names.view(pa.string())
    except pa.ArrowInvalid:  # a header name should be UTF-8; one that is not must not spoil the table
        # One by one: slow, but only for a batch that has such a name.
        texts = pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    pairs = pa.StructArray.from_arrays(
        [
            texts,
            _arrow_binary(columns.header_values, columns.headers, pa.binary()),
        ],
        names=["key", "value"],
    )
    kind = pa.list_(pairs.type)
    return pa.Array.from_buffers(kind, columns.rows, [None, pa.py_buffer(columns.header_offsets)], children=[pairs])


def from_arrow(table: "pa.RecordBatch", *, now_ms: int, **header: Any) -> bytearray:
    """A batch of the rows of a pyarrow RecordBatch: the way back, again without a Python object per record.

    Reads the columns key, value (binary or text), timestamp (now_ms where absent or null) and headers, each optional;
    others are ignored. `header` are the keyword arguments of `seal_batch`: codec, producer_id, base_offset ...
    """
    return ArrowRows(table, now_ms).encode(0, table.num_rows, **header)


class ArrowRows:
    """The buffers of a pyarrow RecordBatch's columns, taken out once: a batch of any of its rows is one kernel call.

    Columns are as for `from_arrow`. The buffers are read whenever a batch is made, not copied.
    """

    __slots__ = ("_headers", "_keys", "_now_ms", "_spans", "_timestamps", "_values", "rows")

    def __init__(self, table: "pa.RecordBatch", now_ms: int) -> None:
        names = ("key", "value", "timestamp", "headers")
        columns = {name: table.column(name) for name in names if name in table.schema.names}
        self.rows: int = table.num_rows
        self._now_ms = now_ms
        self._timestamps = _milliseconds(columns.get("timestamp"), now_ms)
        self._keys = binary_buffers(columns.get("key"))
        self._values = binary_buffers(columns.get("value"))
        self._headers = _header_buffers(columns.get("headers"))
        self._spans = [
            memoryview(column[1]).cast("i")[column[3] :] for column in (self._keys, self._values) if column is not None
        ]

    def size(self, first: int, end: int) -> int:
        """The most bytes that the records of these rows take, uncompressed."""
        size = RECORD_OVERHEAD * (end - first)
        for span in self._spans:
            size += span[end] - span[first]
        return size if self._headers is None else size + _headers_size(self._headers, first, end)

    def encode(self, first: int, rows: int, *, spare: bytearray | None = None, **header: Any) -> bytearray:
        """A batch of `rows` rows from `first`, built in `spare` where one is given and large enough."""
        if not rows:
            raise ValueError("a batch needs at least one row")
        if self._timestamps is None:
            timestamps = memoryview(self._now_ms.to_bytes(8, "little", signed=True) * rows)
        else:
            timestamps = self._timestamps[8 * first : 8 * (first + rows)]
        base_timestamp = timestamps.cast("q")[0]
        batch, max_timestamp = encode_columns(
            rows,
            base_timestamp,
            timestamps,
            _from(self._keys, first),
            _from(self._values, first),
            _from(self._headers, first),
            HEADER_SIZE,
            spare,
        )
        return seal_batch(
            batch,
            record_count=rows,
            last_offset_delta=rows - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            **header,
        )


def _from(column: tuple[Any, ...] | None, first: int) -> tuple[Any, ...] | None:
    """A column's buffers with its first index moved on."""
    return None if column is None else (*column[:-1], column[-1] + first)


def _headers_size(headers: tuple[Any, ...], first: int, end: int) -> int:
    """The most bytes that the headers of some rows take."""
    _, offsets, names, values, start = headers
    lists = memoryview(offsets).cast("i")
    low, high = lists[start + first], lists[start + end]
    size = HEADER_OVERHEAD * (high - low)
    for _, spans, _, at in (names, values):
        span = memoryview(spans).cast("i")
        size += span[at + high] - span[at + low]
    return int(size)


def _milliseconds(column: "pa.Array | None", now_ms: int) -> memoryview | None:
    import pyarrow as pa  # noqa: PLC0415

    if column is None:
        return None
    if pa.types.is_timestamp(column.type):
        # A batch has milliseconds: finer timestamps are cut, not refused.
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    column = column.cast(pa.int64()).fill_null(now_ms)
    # Buffers belong to the array that was sliced; the offset is where this one begins.
    return _bytes_of(column.buffers()[1])[8 * column.offset :]


def _bytes_of(buffer: "pa.Buffer | None") -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")


def binary_buffers(column: "pa.Array | None") -> tuple[memoryview | None, memoryview, memoryview, int] | None:
    """Validity, offsets, data and first index of a column as the kernels take them."""
    import pyarrow as pa  # noqa: PLC0415

    if column is None or pa.types.is_null(column.type):
        return None
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    if offsets is None:  # Arrow allows an empty column without an offsets buffer
        return None, memoryview(bytes(4)), memoryview(b""), 0
    return None if validity is None else _bytes_of(validity), _bytes_of(offsets), _bytes_of(data), column.offset


def _header_buffers(column: "pa.Array | None") -> tuple[Any, ...] | None:
    import pyarrow as pa  # noqa: PLC0415

    if column is None or pa.types.is_null(column.type):
        return None
    if not pa.types.is_list(column.type):
        raise ValueError(f"headers are a list of (key, value) structs, not {column.type}")
    validity, offsets = column.buffers()[:2]
    pairs = column.values
    return (
        None if validity is None else _bytes_of(validity),
        _bytes_of(offsets),
        binary_buffers(pairs.field("key").cast(pa.binary())),
        binary_buffers(pairs.field("value").cast(pa.binary())),
        column.offset,
    )

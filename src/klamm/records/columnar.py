"""Batches to columns and back, for readers that want tables: no Python object is made per record.

`decode_columns` measures the records, allocates each buffer once and fills it in one pass. The buffers have Arrow's
shape (validity bits, 32-bit offsets, data), so `to_arrow` only wraps them. Column names and types are those of Spark's
Kafka connector: key, value, topic, partition, offset, timestamp, timestampType, headers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records import kernels
from klamm.records.batch import BatchView, Buffer, iter_batches
from klamm.records.compression import DECOMPRESSED_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_INT32_MAX = 0x7FFFFFFF


class BinaryColumn:
    """A nullable column of byte strings: validity bits (lowest first), int32 offsets (one more than rows), data."""

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, rows: int, data_bytes: int) -> None:
        if data_bytes > _INT32_MAX:
            raise KlammError(ErrorCode.MESSAGE_TOO_LARGE, f"{data_bytes} bytes do not fit one column of 2 GB")
        self.validity = bytearray((rows + 7) // 8)
        self.offsets = bytearray(4 * (rows + 1))
        self.data = bytearray(data_bytes)

    def buffers(self) -> tuple[bytearray, bytearray, bytearray]:
        """The three buffers as the kernels take them."""
        return self.validity, self.offsets, self.data


@dataclass(slots=True)
class RecordColumns:
    """The records of one or more batches, one buffer per column.

    `offsets` and `timestamps` (milliseconds) are int64, `timestamp_types` int32 (0 CreateTime, 1 LogAppendTime).
    Headers are a list per row: row i has entries `header_offsets[i]` to `header_offsets[i + 1]` of names and values.
    """

    rows: int
    headers: int
    offsets: bytearray
    timestamps: bytearray
    timestamp_types: bytearray
    keys: BinaryColumn
    values: BinaryColumn
    header_offsets: bytearray
    header_names: BinaryColumn
    header_values: BinaryColumn


def decode_columns(
    batches: Buffer | Iterable[BatchView], *, limit: int = DECOMPRESSED_BYTES_MAX, check_crc: bool = True
) -> RecordColumns:
    """The data records of a buffer of batches, or of chosen batches (without those of aborted transactions, say).

    Control batches are left out. All batches together unpack to at most `limit` bytes.
    """
    if isinstance(batches, bytes | bytearray | memoryview):
        batches = iter_batches(batches, allow_incomplete_tail=True)
    sections: list[tuple[BatchView, memoryview | bytes]] = []
    sizes = [0] * 5
    rows = 0
    room = limit
    for batch in batches:
        if check_crc:
            batch.check_crc()
        if batch.is_control:
            continue
        section = batch.unpacked_records(room)
        room -= len(section) if batch.codec else 0
        sizes = [a + b for a, b in zip(sizes, kernels.measure_records(section, batch.record_count), strict=True)]
        rows += batch.record_count
        sections.append((batch, section))
    key_bytes, value_bytes, headers, name_bytes, header_value_bytes = sizes
    columns = RecordColumns(
        rows=rows,
        headers=headers,
        offsets=bytearray(8 * rows),
        timestamps=bytearray(8 * rows),
        timestamp_types=bytearray(),
        keys=BinaryColumn(rows, key_bytes),
        values=BinaryColumn(rows, value_bytes),
        header_offsets=bytearray(4 * (rows + 1)),
        header_names=BinaryColumn(headers, name_bytes),
        header_values=BinaryColumn(headers, header_value_bytes),
    )
    _fill(columns, sections)
    return columns


def _fill(columns: RecordColumns, sections: list[tuple[BatchView, memoryview | bytes]]) -> None:
    buffers = (
        columns.offsets,
        columns.timestamps,
        *columns.keys.buffers(),
        *columns.values.buffers(),
        columns.header_offsets,
        *columns.header_names.buffers(),
        *columns.header_values.buffers(),
    )
    row = header = 0
    for batch, section in sections:
        count = batch.record_count
        stamped = batch.is_log_append_time
        header = kernels.fill_columns(
            section,
            count,
            batch.base_offset,
            batch.base_timestamp,
            batch.max_timestamp if stamped else None,
            row,
            header,
            columns.rows,
            columns.headers,
            buffers,
        )
        columns.timestamp_types += (1 if stamped else 0).to_bytes(4, "little") * count
        row += count


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
    import pyarrow as pa  # noqa: PLC0415 - an optional extra

    columns = source if isinstance(source, RecordColumns) else decode_columns(source)
    rows = columns.rows
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    arrays = [
        _arrow_binary(columns.keys, rows, pa.binary()),
        _arrow_binary(columns.values, rows, pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        _arrow_fixed(columns.offsets, rows, pa.int64()),
        _arrow_timestamps(columns.timestamps, rows),
        _arrow_fixed(columns.timestamp_types, rows, pa.int32()),
    ]
    if include_headers:
        names.append("headers")
        arrays.append(_arrow_headers(columns))
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    if from_offset is not None:
        import bisect  # noqa: PLC0415

        batch = batch.slice(bisect.bisect_left(memoryview(columns.offsets).cast("q"), from_offset))
    return batch


def _arrow_fixed(data: bytearray, rows: int, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def _arrow_timestamps(data: bytearray, rows: int) -> "pa.Array":
    """Spark's timestamps are microseconds; the multiplication is Arrow's, and checked."""
    import pyarrow as pa  # noqa: PLC0415

    try:
        return _arrow_fixed(data, rows, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    except pa.ArrowInvalid:
        raise CorruptBatch("a timestamp lies beyond what microseconds in 64 bits can say") from None


def _arrow_binary(column: BinaryColumn, rows: int, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    buffers = [pa.py_buffer(column.validity), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers)


def _arrow_headers(columns: RecordColumns) -> "pa.Array":
    import pyarrow as pa  # noqa: PLC0415

    names = _arrow_binary(columns.header_names, columns.headers, pa.binary())
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:  # a header name should be UTF-8; one that is not must not spoil the table
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

"""Batches to columns, for readers that want tables: no Python object is made per record.

`decode_columns` measures the records, allocates each buffer once and fills it in one pass. The buffers have Arrow's
shape (validity bits, 32-bit offsets, data), so `records.arrow` only wraps them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from klamm.model.errors import ErrorCode, KlammError
from klamm.records import kernels
from klamm.records.batch import BatchView, Buffer, iter_batches
from klamm.records.compression import DECOMPRESSED_BYTES_MAX

_INT32_MAX = 0x7FFFFFFF
Room = Callable[[int], bytearray]
"""Where the bytes of keys and values go: at least so many, of any value."""


class BinaryColumn:
    """A nullable column of byte strings: validity bits (lowest first), int32 offsets (one more than rows), data.

    `size` bytes of the data are the column's; there may be more.
    """

    __slots__ = ("data", "offsets", "size", "validity")

    def __init__(self, rows: int, data_bytes: int, room: Room) -> None:
        if data_bytes > _INT32_MAX:
            raise KlammError(ErrorCode.MESSAGE_TOO_LARGE, f"{data_bytes} bytes do not fit one column of 2 GB")
        self.validity = bytearray((rows + 7) // 8)
        self.offsets = bytearray(4 * (rows + 1))
        self.size = data_bytes
        self.data = room(data_bytes)  # measured to the byte, and filled to the last one

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
    batches: Buffer | Iterable[BatchView],
    *,
    limit: int = DECOMPRESSED_BYTES_MAX,
    check_crc: bool = True,
    room: Room | None = None,
) -> RecordColumns:
    """The data records of a buffer of batches, or of chosen batches (without those of aborted transactions, say).

    Control batches are left out. All batches together unpack to at most `limit` bytes. `room` may give memory that was
    used before. Other threads run while large batches are decoded.
    """
    room = room or kernels.blank
    if isinstance(batches, bytes | bytearray | memoryview):
        batches = iter_batches(batches, allow_incomplete_tail=True)
    sections: list[tuple[BatchView, memoryview | bytes]] = []
    sizes = [0] * 5
    rows = 0
    unpacked = limit
    for batch in batches:
        if check_crc:
            batch.check_crc()
        if batch.is_control:
            continue
        section = batch.unpacked_records(unpacked)
        unpacked -= len(section) if batch.codec else 0
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
        keys=BinaryColumn(rows, key_bytes, room),
        values=BinaryColumn(rows, value_bytes, room),
        header_offsets=bytearray(4 * (rows + 1)),
        header_names=BinaryColumn(headers, name_bytes, kernels.blank),
        header_values=BinaryColumn(headers, header_value_bytes, kernels.blank),
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

"""Batches to columns, for readers of tables: no Python object is made per record.

`decode_columns` allocates values for all bytes there are, keys and headers when the first one shows, and fills the
buffers in one pass, batch by batch, while the processor's cache still has what the checksum has read. The buffers have
Arrow's shape (validity bits, 32-bit offsets, data), so `records.arrow` only wraps them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch, ErrorCode, KlammError
from klamm.records.batch import BatchView, iter_batches
from klamm.records.compression import DECOMPRESSED_BYTES_MAX
from klamm.records.kernels.columns import fill_columns, measure_records
from klamm.records.kernels.memory import blank

_INT32_MAX = 0x7FFFFFFF
_RECORD_BYTES_MIN = 7
"""Size, attributes, timestamp, offset, two lengths, number of headers: a byte each."""
Section = tuple[BatchView, memoryview | bytes | bytearray]
Allocate = Callable[[int], bytearray]
"""Returns memory for keys and values: at least so many bytes, of any value."""


class BinaryColumn:
    """A nullable column of byte strings: validity bits (lowest first), int32 offsets (one more than rows), data.

    There may be more data than the last offset says.
    """

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, rows: int, data: bytearray | None = None) -> None:
        self.validity = bytearray((rows + 7) // 8)
        self.offsets = bytearray(4 * (rows + 1))
        self.data = bytearray() if data is None else data

    def buffers(self) -> tuple[bytearray, bytearray, bytearray]:
        """The three buffers as the kernels take them."""
        return self.validity, self.offsets, self.data

    def measure(self, rows: int) -> int:
        """Bytes of the data that the first `rows` rows have."""
        with memoryview(self.offsets).cast("i") as offsets:
            return offsets[rows]

    def more_rows(self, rows: int) -> None:
        """Make the buffers large enough for so many rows."""
        self.validity += bytes(max((rows + 7) // 8 - len(self.validity), 0))
        self.offsets += bytes(max(4 * (rows + 1) - len(self.offsets), 0))

    def more_data(self, rows: int, size: int, allocate: Allocate, at_once: int = 0) -> bool:
        """Make the data large enough for `size` bytes more behind the first `rows` rows; False when it was already.

        New memory has `at_once` bytes in all, if that is more.
        """
        used = self.measure(rows)
        if used + size > _INT32_MAX:
            raise KlammError(ErrorCode.MESSAGE_TOO_LARGE, f"{used + size} bytes do not fit one column of 2 GB")
        if used + size <= len(self.data):
            return False
        grown = allocate(max(used + size, min(at_once, _INT32_MAX)))
        grown[:used] = memoryview(self.data)[:used]
        self.data = grown
        return True


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

    def buffers(self) -> tuple[bytearray, ...]:
        """All but the types of timestamps, as the kernels take them."""
        return (
            self.offsets,
            self.timestamps,
            *self.keys.buffers(),
            *self.values.buffers(),
            self.header_offsets,
            *self.header_names.buffers(),
            *self.header_values.buffers(),
        )


def decode_columns(
    batches: Buffer | Iterable[BatchView],
    *,
    limit: int = DECOMPRESSED_BYTES_MAX,
    check_crc: bool = True,
    allocate: Allocate | None = None,
) -> RecordColumns:
    """The data records of a buffer of batches, or of chosen batches (without those of aborted transactions, say).

    Control batches are left out. All batches together unpack to at most `limit` bytes. `allocate` may return used
    memory. Other threads run while long batches are decoded.
    """
    if isinstance(batches, bytes | bytearray | memoryview):
        batches = iter_batches(batches, allow_incomplete_tail=True)
    sections: list[Section] = []
    rows = size = 0
    unpacked = limit
    for batch in batches:
        # Compressed bytes are verified before they are unpacked, the others when they are filled into columns.
        if check_crc and (batch.codec or batch.is_control):
            batch.check_crc()
        if batch.is_control:
            continue
        section = batch.unpacked_records(unpacked)
        # Uncompressed bytes are in memory already: the limit is for what unpacking adds.
        unpacked -= len(section) if batch.codec else 0
        # Before columns are allocated: the count is what the header claims.
        if not 0 <= batch.record_count * _RECORD_BYTES_MIN <= len(section):
            raise CorruptBatch(f"{batch.record_count} records do not fit {len(section)} bytes")
        rows += batch.record_count
        size += len(section)
        sections.append((batch, section))
    columns = RecordColumns(
        rows=rows,
        headers=0,
        offsets=bytearray(8 * rows),
        timestamps=bytearray(8 * rows),
        timestamp_types=bytearray(),
        keys=BinaryColumn(rows),
        values=BinaryColumn(rows, (allocate or blank)(min(size, _INT32_MAX))),
        header_offsets=bytearray(4 * (rows + 1)),
        header_names=BinaryColumn(0),
        header_values=BinaryColumn(0),
    )
    _Filling(columns, size, allocate or blank).fill(sections, check_crc=check_crc)
    # Borrowed memory keeps its size for the next use; own memory is cut to its content.
    if allocate is None:
        for column in (columns.keys, columns.values):
            del column.data[column.measure(rows) :]
    return columns


class _Filling:
    """Columns being filled: their positions, and more memory for those that turn out to need it."""

    __slots__ = ("_allocate", "_columns", "_header", "_row", "_size")

    def __init__(self, columns: RecordColumns, size: int, allocate: Allocate) -> None:
        self._columns = columns
        self._size = size
        self._allocate = allocate
        self._row = self._header = 0

    def fill(self, sections: Iterable[Section], *, check_crc: bool) -> None:
        columns = self._columns
        buffers = columns.buffers()
        for batch, section in sections:
            if check_crc and not batch.codec:
                batch.check_crc()  # only now: the bytes are in the processor's cache when they are decoded
            count = batch.record_count
            stamped = batch.is_log_append_time
            record = position = 0
            while True:
                record, position, self._header = fill_columns(
                    section,
                    count,
                    batch.base_offset,
                    batch.base_timestamp,
                    batch.max_timestamp if stamped else None,
                    self._row,
                    self._header,
                    columns.rows,
                    columns.headers,
                    buffers,
                    record,
                    position,
                )
                if record == count:
                    break
                self._enlarge(section[position:], self._row + record, count - record)
                buffers = columns.buffers()
            columns.timestamp_types += (1 if stamped else 0).to_bytes(4, "little") * count
            self._row += count

    def _enlarge(self, rest: memoryview | bytes | bytearray, row: int, count: int) -> None:
        """Measure the rest of a batch, whose records begin at `row`, and enlarge the columns it does not fit."""
        columns, header = self._columns, self._header
        keys, values, headers, names, header_values = measure_records(rest, count)
        made = columns.keys.more_data(row, keys, self._allocate, self._size)
        made = columns.values.more_data(row, values, self._allocate, self._size) or made
        if header + headers > columns.headers:
            columns.headers = header + headers
            columns.header_names.more_rows(columns.headers)
            columns.header_values.more_rows(columns.headers)
            made = True
        made = columns.header_names.more_data(header, names, blank, 2 * len(columns.header_names.data)) or made
        made = (
            columns.header_values.more_data(header, header_values, blank, 2 * len(columns.header_values.data)) or made
        )
        if not made:
            raise ValueError("a column buffer is smaller than measured")

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")

COMPILED: bool
END: int
SPECIAL: int
FULL: int
DAMAGED: int
BROKEN: int
MISPLACED: int
BEYOND: int
TRAILING: int
NOTED_MAX: int

def encode_records(
    records: Sequence[Any], base_timestamp: int, prefix: int = 0, offset_deltas: Sequence[int] | None = None
) -> tuple[bytearray, int]: ...
def decode_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None = None,
    kind: type | None = None,
) -> list[Any]: ...
def walk_records(data: bytes | bytearray | memoryview, count: int) -> tuple[list[int], bool, int, int, int, int]: ...
def measure_records(data: bytes | bytearray | memoryview, count: int) -> tuple[int, int, int, int, int]: ...
def fill_columns(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    first_row: int,
    first_header: int,
    rows: int,
    headers: int,
    columns: tuple[bytearray, ...],
    record: int = 0,
    position: int = 0,
) -> tuple[int, int, int]: ...
def encode_columns(
    rows: int,
    base_timestamp: int,
    timestamps: Any,
    keys: tuple[Any, ...] | None,
    values: tuple[Any, ...] | None,
    headers: tuple[Any, ...] | None,
    prefix: int = 0,
    spare: bytearray | None = None,
) -> tuple[bytearray, int]: ...
def map_keys(
    data: bytes | bytearray | memoryview, first_offset: int, table: bytearray, limit: int, seed: bytes, w: bytearray
) -> int: ...
def map_section(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    first_offset: int,
    table: bytearray,
    limit: int,
    seed: bytes,
    w: bytearray,
) -> int: ...
def filter_batches(
    data: bytes | bytearray | memoryview,
    out: bytearray,
    table: bytearray,
    seed: bytes,
    map_end: int,
    now_ms: int,
    keep: bytes,
    interval: int,
    marks: bytearray,
    w: bytearray,
) -> int: ...
def filter_section(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    table: bytearray,
    seed: bytes,
    map_end: int,
    drop_tombstones: bool,
    prefix: int,
) -> tuple[bytearray, int, int, int]: ...
def shift_timestamps(data: bytes | bytearray | memoryview, count: int, shift: int, prefix: int) -> bytearray: ...
def check_batches(
    data: bytes | bytearray | memoryview,
    segment_base: int,
    end_offset: int,
    checked: bool,
    interval: int,
    marks: bytearray,
    producers: bytearray,
    w: bytearray,
) -> int: ...
def check_records(data: bytes | bytearray | memoryview, w: bytearray) -> int: ...

PlainHeader: TypeAlias = tuple[int, int, int, int, int, int, int, bool]

def plain_header(batch: memoryview) -> PlainHeader | None: ...
def known_batch(
    view: memoryview, start: int, end: int, lengths: list[int], known: dict[bytes, _T]
) -> tuple[_T, int, int, int, PlainHeader] | None: ...
def blank(size: int) -> bytearray: ...
def decode_client_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    first_offset: int,
    kind: type,
    topic: str,
    partition: int,
    leader_epoch: int,
) -> list[Any]: ...
def murmur2(data: bytes) -> int: ...
def partition_rows(rows: int, keys: tuple[Any, ...], partitions: int, out: bytearray, counts: bytearray) -> int: ...
def group_rows(rows: int, placed: bytearray, starts: bytearray, order: bytearray) -> None: ...

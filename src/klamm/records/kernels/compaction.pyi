COMPILED: bool

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

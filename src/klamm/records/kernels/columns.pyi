COMPILED: bool

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

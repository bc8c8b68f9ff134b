COMPILED: bool

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

from typing import Any

COMPILED: bool

def decode_records(
    data: bytes | bytearray | memoryview,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None = None,
    kind: type | None = None,
) -> list[Any]: ...
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

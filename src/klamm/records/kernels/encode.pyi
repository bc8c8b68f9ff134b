from collections.abc import Sequence
from typing import Any

COMPILED: bool

def encode_records(
    records: Sequence[Any], base_timestamp: int, prefix: int = 0, offset_deltas: Sequence[int] | None = None
) -> tuple[bytearray, int]: ...
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

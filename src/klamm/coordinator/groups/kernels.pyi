from collections.abc import Iterable
from typing import Any, TypeAlias

COMPILED: bool

Topics: TypeAlias = list[tuple[Any, list[tuple[int, int, int, str]]]]

def read_commit(
    frame: bytes | bytearray | memoryview, version: int
) -> tuple[str, int, str, str | None, Topics] | None: ...
def read_sync(
    frame: bytes | bytearray | memoryview, version: int
) -> tuple[str, int, str, str | None, str | None, str | None] | None: ...
def add_records(
    records: list[Any],
    group: str,
    topic: str,
    topic_id: bytes,
    partitions: list[tuple[int, int, int, str]],
    wall_ms: int,
    kind: type,
) -> None: ...
def replay_offsets(
    places: dict[bytes, tuple[str, dict[int, Any]]],
    records: Iterable[tuple[bytes, bytes | None]],
    first_offset: int,
    kind: type,
) -> int: ...
def write_answer(correlation_id: int, version: int, topics: Topics) -> bytearray: ...

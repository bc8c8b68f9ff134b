"""The interface that tests use of a client."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

PATIENCE_S = 60.0
"""How long a client may take for one step; a healthy one needs milliseconds."""

Headers = Sequence[tuple[str, bytes]]


class Delivery(NamedTuple):
    """What became of a record: its place, or Kafka's error code."""

    partition: int
    offset: int
    error: int = 0


class Row(NamedTuple):
    """A record as a reader got it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    log_append_time: bool = False


class Producer(Protocol):
    """Sends in the background; `flush` returns the result of all since the last flush, in the order of sending."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> None: ...

    def flush(self) -> list[Delivery]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Client(Protocol):
    """A client of one cluster."""

    name: str
    codecs: tuple[str, ...]

    def __init__(self, bootstrap: str) -> None: ...

    def close(self) -> None: ...

    def producer(self, *, codec: str = "none", acks: str = "all", idempotent: bool = False) -> Producer: ...

    def read(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Row]: ...

    def beginning(self, topic: str, partition: int = 0) -> int: ...

    def end(self, topic: str, partition: int = 0) -> int: ...

    def offset_at(self, topic: str, timestamp: int, partition: int = 0) -> int | None: ...

    def create_topic(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def topics(self) -> set[str]: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def partition_count(self, topic: str) -> int: ...

    def topic_settings(self, topic: str) -> dict[str, str | None]: ...

    def set_topic_settings(self, topic: str, configs: dict[str, str]) -> None: ...

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None: ...

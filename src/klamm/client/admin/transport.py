"""What admin families need of the connections to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from klamm.client.core.metadata import BrokerAddress, ClusterTable
from klamm.client.errors import KafkaError

T = TypeVar("T")


class AdminConnection(Protocol):
    """A connection to one broker."""

    def version_of(self, name: str) -> int:
        """The newest version of an API both sides speak; UnsupportedVersionError when there is none."""

    def request(self, request: Any, version: int | None = None) -> Awaitable[Any]:
        """Send a request; the result is its response."""


class AdminTransport(Protocol):
    """The connections to a cluster, as far as admin requests need them."""

    @property
    def table(self) -> ClusterTable:
        """The newest known metadata."""

    async def any_connection(self) -> AdminConnection:
        """A connection to any broker."""

    async def connection(self, node_id: int, purpose: str) -> AdminConnection:
        """The connection to one broker."""

    async def connect(self, host: str, port: int, purpose: str) -> AdminConnection:
        """The connection to an address."""

    async def refresh(self, topics: Iterable[str] = ()) -> None:
        """Update the metadata of the brokers and of `topics`."""

    async def find_coordinator(self, kind: int, key: str) -> BrokerAddress:
        """The coordinator of a group or transactional id."""

    def request_update(self) -> None:
        """Have the metadata updated before it is used again."""

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], timeout_s: float, on_failure: Callable[[KafkaError], None]
    ) -> T:
        """Repeat `attempt` while it fails with a retriable error."""

    async def gather(self, work: Iterable[Awaitable[T]]) -> Sequence[T | BaseException]:
        """The result or the exception of each awaitable, concurrently where the transport can."""

"""The memory for requests that are being received, over all connections: queued.max.request.bytes (KIP-72)."""

from collections.abc import Hashable, Iterator


class RequestMemory:
    """Bytes that large requests take before they are received; requests that find nothing left wait.

    As in Kafka's pool, a request may take more than is left as long as something is: it could otherwise wait for ever
    while smaller ones pass. So the limit is exceeded by one request at most.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._taken: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, None] = {}

    @property
    def exhausted(self) -> bool:
        """Whether the next request has to wait."""
        return self._left <= 0

    def take(self, owner: Hashable, size: int) -> bool:
        """Reserve the bytes of one request; False lets its owner wait, in the order of these calls."""
        if owner in self._taken:
            return True
        if self.exhausted:
            self._waiting[owner] = None
            return False
        self._waiting.pop(owner, None)
        self._taken[owner] = size
        self._left -= size
        return True

    def release(self, owner: Hashable) -> None:
        """Return the bytes of a request that has been received, or whose connection is closed."""
        self._waiting.pop(owner, None)
        self._left += self._taken.pop(owner, 0)

    def waiting(self) -> Iterator[Hashable]:
        """Yield the owners that wait, as long as the next one would find bytes."""
        for owner in list(self._waiting):
            if self.exhausted:
                return
            yield owner

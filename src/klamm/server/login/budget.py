"""A limit of memory for all peers that are not logged in: a thousand idle handshakes must not cost the others anything.

Honest clients log in within milliseconds, so when the budget is used up the oldest of those that wait is closed.
"""

from typing import Final

from klamm.net import Channel

BYTES_MAX: Final = 64 * 1024 * 1024
"""For receive buffers and TLS states of connections before their login, over all listeners of a node."""

TLS_BYTES: Final = 64 * 1024
"""The state of a handshake: 17 KB in OpenSSL, the certificates of the peer, and what the kernel has received."""


class LoginBudget:
    """The connections that are not logged in, oldest first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._waiting: dict[Channel, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, channel: Channel, bytes_max: int) -> None:
        """Count a new connection, which may use so many bytes; closes the oldest while there are too many."""
        self._waiting[channel] = bytes_max
        self._used += bytes_max
        while self._used > self._bytes_max and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            self.remove(oldest)
            if not oldest.closed:
                oldest.close("too many connections that are not logged in")

    def remove(self, channel: Channel) -> None:
        """Count a connection no more: it is logged in, or closed."""
        self._used -= self._waiting.pop(channel, 0)

"""A limit of memory for all peers that are not logged in: a thousand idle handshakes must not cost the others anything.

When the budget is used up, a waiting connection is closed. Honest clients log in within milliseconds, so it is an old
one; but not one that has begun its login while others are silent, and not one of another address while a single address
has most of them.
"""

from dataclasses import dataclass
from typing import Final

from klamm.net import Channel
from klamm.server.login.counts import LoginCounts

BYTES_MAX: Final = 64 * 1024 * 1024
"""For receive buffers and TLS states of connections before their login, over all listeners of a node."""

TLS_BYTES: Final = 64 * 1024
"""The state of a handshake: 17 KB in OpenSSL, the certificates of the peer, and what the kernel has received."""

SILENT_BYTES: Final = 32 * 1024
"""The receive buffer of a connection that has sent no whole frame."""

SHARE_MAX: Final = 4
"""An address with more than 1/SHARE_MAX of the connections loses its own first."""


@dataclass(slots=True)
class _Waiting:
    address: str
    reserved: int
    reserved_later: int


class _LoginStage:
    """Connections in the order in which they came, also by address."""

    def __init__(self) -> None:
        self._all: dict[Channel, None] = {}
        self._by_address: dict[str, dict[Channel, None]] = {}

    def add(self, channel: Channel, address: str) -> None:
        self._all[channel] = None
        self._by_address.setdefault(address, {})[channel] = None

    def remove(self, channel: Channel, address: str) -> bool:
        if channel not in self._all:
            return False
        del self._all[channel]
        of_address = self._by_address[address]
        del of_address[channel]
        if not of_address:
            del self._by_address[address]
        return True

    def count(self, address: str) -> int:
        return len(self._by_address.get(address, ()))

    def oldest(self, newcomer: Channel, address: str | None = None) -> Channel | None:
        """Return the oldest connection, of an address if one is given, other than the newcomer."""
        candidates = self._all if address is None else self._by_address.get(address, {})
        return next((channel for channel in candidates if channel is not newcomer), None)


class LoginBudget:
    """The connections that are not logged in."""

    def __init__(self, bytes_max: int = BYTES_MAX, counts: LoginCounts | None = None) -> None:
        self._counts = counts or LoginCounts()
        self._bytes_max = bytes_max
        self._used = 0
        self._waiting: dict[Channel, _Waiting] = {}
        self._silent, self._begun = _LoginStage(), _LoginStage()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, channel: Channel, reserved: int, reserved_later: int) -> None:
        """Count a new connection, and the bytes it may use before and after `begin`."""
        waiting = self._waiting[channel] = _Waiting(channel.peer_address[0], reserved, reserved_later)
        self._silent.add(channel, waiting.address)
        self._used += reserved
        self._make_room(channel, waiting.address)

    def begin(self, channel: Channel) -> None:
        """Count a connection as one that has begun its login."""
        waiting = self._waiting.get(channel)
        if waiting is not None and self._silent.remove(channel, waiting.address):
            self._begun.add(channel, waiting.address)
            self._used += waiting.reserved_later - waiting.reserved
            waiting.reserved = waiting.reserved_later
            self._make_room(channel, waiting.address)

    def remove(self, channel: Channel) -> None:
        """Count a connection no more: it is logged in, or closed."""
        waiting = self._waiting.pop(channel, None)
        if waiting is not None:
            self._used -= waiting.reserved
            self._silent.remove(channel, waiting.address)
            self._begun.remove(channel, waiting.address)

    def _make_room(self, newcomer: Channel, address: str) -> None:
        while self._used > self._bytes_max:
            victim = self._choose_victim(newcomer, address)
            if victim is None:
                return
            self.remove(victim)
            if not victim.closed:
                self._counts.evicted += 1
                victim.close("too many connections that are not logged in")

    def _choose_victim(self, newcomer: Channel, address: str) -> Channel | None:
        silent, begun = self._silent, self._begun
        if SHARE_MAX * (silent.count(address) + begun.count(address)) > len(self._waiting):
            own = silent.oldest(newcomer, address) or begun.oldest(newcomer, address)
            if own is not None:
                return own
        return silent.oldest(newcomer) or begun.oldest(newcomer)

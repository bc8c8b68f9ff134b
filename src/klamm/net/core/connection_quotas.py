"""How many connections a node serves and how fast new ones come: Kafka's ConnectionQuotas (KIP-402, KIP-612)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.security.core.quota_windows import RateWindow, WindowConfig

UNLIMITED: Final = 2**31 - 1
"""Kafka's default of all limits."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The max.connection* settings; limits of single listeners are keyed by the listener's name."""

    connections: int = UNLIMITED
    connections_per_ip: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """Limits of single addresses, which replace `connections_per_ip`."""
    creation_rate: int = UNLIMITED
    """New connections per second, over all listeners."""
    listener_connections: Mapping[str, int] = field(default_factory=dict)
    listener_creation_rates: Mapping[str, int] = field(default_factory=dict)


class ConnectionQuotas:
    """The open connections of some listeners, and the limits for new ones.

    A connection over `max.connections` waits until another one closes. The protected listener, that between brokers, is
    exempt from the total as long as there is another listener: clients must not keep brokers from replicating. If its
    connections exceed the total, connections of other listeners are closed (`excess`).
    """

    def __init__(self, limits: ConnectionLimits, protected: str = "", window: WindowConfig | None = None) -> None:
        self.limits = limits
        self._protected = protected
        self._window = window or WindowConfig()
        self._rate = RateWindow(self._window)
        self._listener_rates: dict[str, RateWindow] = {}
        self._per_listener: dict[str, int] = {}
        self._per_ip: Counter[str] = Counter()
        self.total = 0

    def add_listener(self, name: str) -> None:
        """Count the connections of a listener, too."""
        self._per_listener[name] = 0
        self._listener_rates[name] = RateWindow(self._window)

    def is_protected(self, listener: str) -> bool:
        """Whether a listener is exempt from the limits of the broker."""
        return listener == self._protected and len(self._per_listener) > 1

    # New connections

    def record_delay_ms(self, listener: str, now_ms: int) -> int:
        """Count a new connection in the creation rates; returns how long it has to wait, one sample at most."""
        limits, delay_ms = self.limits, 0
        if not self.is_protected(listener):
            delay_ms = self._record(self._rate, limits.creation_rate, now_ms)
        listener_limit = limits.listener_creation_rates.get(listener, UNLIMITED)
        return max(delay_ms, self._record(self._listener_rates[listener], listener_limit, now_ms))

    def _record(self, rate: RateWindow, limit: int, now_ms: int) -> int:
        rate.record(1, now_ms)
        # A limit of 0 is allowed: each connection then waits as long as any may.
        delay_ms = rate.throttle_ms(limit, now_ms) if limit else self._window.sample_ms
        return min(delay_ms, self._window.sample_ms)

    def has_slot(self, listener: str) -> bool:
        """Whether one more connection of a listener may be opened now."""
        if self._per_listener[listener] >= self.limits.listener_connections.get(listener, UNLIMITED):
            return False
        return self.is_protected(listener) or self.total < self.limits.connections

    def exceeds_ip_limit(self, ip: str) -> bool:
        """Whether one more connection of an address would be too many."""
        return self._per_ip[ip] >= self.limits.per_ip_overrides.get(ip, self.limits.connections_per_ip)

    # Open connections

    def add(self, listener: str, ip: str) -> None:
        """Count an opened connection."""
        self._per_listener[listener] += 1
        self._per_ip[ip] += 1
        self.total += 1

    def remove(self, listener: str, ip: str) -> None:
        """Count a closed connection no more."""
        self._per_listener[listener] -= 1
        self._per_ip[ip] -= 1
        # Or every address that ever connected would stay in memory.
        if not self._per_ip[ip]:
            del self._per_ip[ip]
        self.total -= 1

    def per_listener(self) -> dict[str, int]:
        """Return the open connections by listener."""
        return dict(self._per_listener)

    @property
    def excess(self) -> int:
        """How many connections of listeners that are not protected must be closed."""
        return max(self.total - self.limits.connections, 0)

"""What clients use, measured against their quotas: how long a client has to wait; pure: time is an argument."""

import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.security.core.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    EntityParts,
    find_quota,
)
from klamm.security.core.quota_windows import RateWindow, TokenBucket, WindowConfig

CLIENTS_MAX: Final = 10_000
"""Clients whose quotas are kept resolved: client ids are chosen by clients, and are many if one wants them to be."""
NAME_CHARS_MAX: Final = 255
"""Longer names of users and clients, of up to 32 KB, are neither kept resolved nor kept as keys of windows."""
_IDLE_CHECKS: Final = 8
"""Windows that are looked at, and forgotten if they are idle, for every client that is resolved; it adds four at most.
"""

Quotas = Mapping[EntityParts, Mapping[str, float]]


class RateQuota(NamedTuple):
    """A quota of bytes or time, and the window of all clients that share it."""

    limit: float
    window: RateWindow

    def record(self, value: float, now_ms: int) -> int:
        """Add what was used; return how long the client has to wait, in ms."""
        self.window.record(value, now_ms)
        return self.window.throttle_ms(self.limit, now_ms)

    def take_back(self, value: float, now_ms: int) -> None:
        """Remove what was recorded now and not used."""
        self.window.record(-value, now_ms)


class MutationQuota(NamedTuple):
    """A quota of changes of the cluster, and the bucket of all clients that share it."""

    limit: float
    bucket: TokenBucket


class ClientLimits(NamedTuple):
    """The quotas that apply to one client."""

    produce: RateQuota | None
    fetch: RateQuota | None
    request: RateQuota | None
    mutations: MutationQuota | None


class QuotaUsage(NamedTuple):
    """What the clients that share a quota use of it."""

    quota: str
    user: str
    client_id: str
    ip: str
    rate: float | None
    """Per second; None for a quota of changes, which is no rate of this node."""
    throttled_ms: int


_WindowKey = tuple[str, str, str]
_FETCH_BYTES_MAX: Final = 2**31 - 1
"""The largest size that a Fetch request can name."""


class ClientQuotas:
    """The quotas of all clients of a broker, or of the controller."""

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self.active = False
        """Whether any user or client id has a quota."""
        self.limits_addresses = False
        """Whether any address has a quota."""
        self._quotas: Quotas = {}
        self._limits: dict[tuple[str, str], ClientLimits | None] = {}
        self._windows: dict[_WindowKey, RateWindow] = {}
        self._buckets: dict[_WindowKey, TokenBucket] = {}

    def set_quotas(self, quotas: Quotas) -> None:
        """Replace all quotas; what clients have used stays counted. Limits that are no positive numbers are ignored."""
        # A request cannot set an entity without parts or such a limit, but a log written elsewhere may hold one: it is
        # ignored, as configs that cannot be parsed are.
        self._quotas = {
            entity: {key: limit for key, limit in limits.items() if 0 < limit < math.inf}
            for entity, limits in quotas.items()
            if entity
        }
        self._limits.clear()
        self.active = any(entity[0][0] != IP for entity in self._quotas)
        self.limits_addresses = any(entity[0][0] == IP for entity in self._quotas)

    def connection_creation_rate(self, address: str) -> float | None:
        """Return the connections per second that an address may open; None without a quota."""
        for name in (address, None):
            limit = self._quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if limit is not None:
                return limit
        return None

    def record_connection(self, address: str, now_ms: int) -> int:
        """Count a new connection; return for how long a refused one is held, one sample at most, or 0 to accept it."""
        limit = self.connection_creation_rate(address)
        if limit is None:
            return 0
        key = (CONNECTION_CREATION_RATE, address, "")
        window = self._windows.get(key)
        if window is None:
            self._forget_idle(now_ms)
            window = self._windows[key] = RateWindow(self.config)
        window.record(1, now_ms)
        delay_ms = min(window.throttle_ms(limit, now_ms), self.config.sample_ms)
        if delay_ms:
            # Refused connections are not counted, as in Kafka: an address that goes on trying gets its rate.
            window.record(-1, now_ms)
        return delay_ms

    def find(self, user: str, client_id: str, now_ms: int) -> ClientLimits | None:
        """Return the quotas of a client; None if it has none."""
        key = (user, client_id)
        try:
            return self._limits[key]
        except KeyError:
            pass
        if len(self._limits) >= CLIENTS_MAX:
            self._limits.clear()
        # Before this client gets windows: new ones are idle, too.
        self._forget_idle(now_ms)
        limits: ClientLimits | None = ClientLimits(
            self._rate_quota(user, client_id, PRODUCER_BYTE_RATE),
            self._rate_quota(user, client_id, CONSUMER_BYTE_RATE),
            self._rate_quota(user, client_id, REQUEST_PERCENTAGE),
            self._mutation_quota(user, client_id),
        )
        if limits == (None, None, None, None):
            limits = None
        if len(user) <= NAME_CHARS_MAX and len(client_id) <= NAME_CHARS_MAX:
            self._limits[key] = limits
        return limits

    def fetch_bytes_max(self, quota: RateQuota) -> int:
        """Return what one Fetch may return: more could never be sent within the quota."""
        config = self.config
        size = quota.limit * (config.samples - 1) * config.sample_ms / 1000
        return max(int(min(size, _FETCH_BYTES_MAX)), 1)

    def usage(self, now_ms: int) -> Iterator[QuotaUsage]:
        """Yield what is used now; clients that are idle for a while are forgotten."""
        for (quota, name, client_id), window in list(self._windows.items()):
            is_address = quota == CONNECTION_CREATION_RATE
            user, ip = ("", name) if is_address else (name, "")
            yield QuotaUsage(quota, user, client_id, ip, window.rate(now_ms), window.throttled_ms)
        for (quota, user, client_id), bucket in list(self._buckets.items()):
            yield QuotaUsage(quota, user, client_id, "", None, bucket.throttled_ms)

    def _rate_quota(self, user: str, client_id: str, key: str) -> RateQuota | None:
        quota = find_quota(self._quotas, user, client_id, key)
        if quota is None:
            return None
        window_key = (key, _shorten(quota.user), _shorten(quota.client_id))
        window = self._windows.get(window_key)
        if window is None:
            window = self._windows[window_key] = RateWindow(self.config)
        return RateQuota(quota.limit, window)

    def _mutation_quota(self, user: str, client_id: str) -> MutationQuota | None:
        quota = find_quota(self._quotas, user, client_id, CONTROLLER_MUTATION_RATE)
        if quota is None:
            return None
        key = (CONTROLLER_MUTATION_RATE, _shorten(quota.user), _shorten(quota.client_id))
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self.config)
        return MutationQuota(quota.limit, bucket)

    def _forget_idle(self, now_ms: int) -> None:
        """Forget the oldest windows that are like new ones; a default quota gives every client id a window."""
        tables: tuple[dict[_WindowKey, Any], ...] = (self._windows, self._buckets)
        for table in tables:
            for _ in range(min(_IDLE_CHECKS, len(table))):
                key = next(iter(table))
                window = table.pop(key)
                if window.is_idle(now_ms):
                    # Or a client would go on with a window that the others of its quota do not share.
                    self._limits.clear()
                else:
                    table[key] = window  # at the end: the others are looked at first


def _shorten(name: str) -> str:
    """The name, or for a long one its beginning and a digest: clients with different names share no window."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    return f"{name[:100]}...{sha256(name.encode(errors='backslashreplace')).hexdigest()}"


class MutationCharge:
    """What one admin request of a client takes from its quota of changes (KIP-599).

    `strict` refuses changes while the bucket is below zero; older versions of the APIs are carried out, and only have
    to wait.
    """

    __slots__ = ("_now_ms", "_quota", "_strict", "throttle_ms")

    def __init__(self, quota: MutationQuota, now_ms: int, *, strict: bool) -> None:
        self._quota = quota
        self._now_ms = now_ms
        self._strict = strict
        self.throttle_ms = 0

    def charge(self, partitions: int) -> None:
        """Count created or deleted partitions; KlammError THROTTLING_QUOTA_EXCEEDED if the client has to wait."""
        limit, bucket = self._quota
        if self._strict and bucket.tokens(limit, self._now_ms) < 0:
            self._wait(bucket.throttle_ms(limit, self._now_ms))
            raise KlammError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        bucket.take(partitions, limit, self._now_ms)
        if not self._strict:
            self._wait(bucket.throttle_ms(limit, self._now_ms))

    def _wait(self, throttle_ms: int) -> None:
        self.throttle_ms = max(self.throttle_ms, throttle_ms)

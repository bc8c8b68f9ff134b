"""Quotas of clients on a broker: what each request uses, and how long its connection is muted for it (KIP-13, KIP-219).

A client above its quota gets its response at once, with the time to wait in `throttle_time_ms`, and its connection is
not read for that time. Clients without a quota have no meter, and their Produce requests keep the quick path.
"""

import copy
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.clock import Clock
from klamm.security.core.client_quotas import ClientLimits, ClientQuotas
from klamm.security.core.quota_windows import RateWindow, TokenBucket, WindowConfig

if TYPE_CHECKING:
    from klamm.net import Channel
    from klamm.server.requests.context import RequestContext

ADD_PARTITIONS_TO_TXN: Final = 24
WRITE_TXN_MARKERS: Final = 27
QUOTA_KINDS: Final = ("produce", "fetch", "request", "controller_mutation")
BROKERS_ADD_PARTITIONS_SINCE: Final = 4
"""The version from which AddPartitionsToTxn is a request of brokers (KIP-890)."""


class ThrottledNet(Protocol):
    """The connections of a node."""

    throttle_ip: Callable[[str, int], int] | None
    """Counts a new connection of an address; returns for how long it is held before it is refused, 0 to accept it."""

    def channels(self) -> "Iterable[Channel]":
        """Return the open connections."""


class BrokerQuotas:
    """The quotas that this broker enforces; follows the metadata log."""

    def __init__(self, config: WindowConfig, clock: Clock, net: ThrottledNet, cpu_ns: Callable[[], int]) -> None:
        self.clients = ClientQuotas(config)
        self.active = False
        """Whether any user or client id has a quota."""
        self._clock = clock
        self._net = net
        self.cpu_ns = cpu_ns
        self.throttled_requests: dict[str, int] = dict.fromkeys(QUOTA_KINDS, 0)
        """Requests above a quota, by its kind."""
        self.throttle_ms: dict[str, int] = dict.fromkeys(QUOTA_KINDS, 0)
        """The times for which connections were muted, by the kind of the quota."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the quotas of the metadata log."""
        if not delta.quotas_changed:
            return
        self.clients.set_quotas({entity.parts: limits for entity, limits in image.client_quotas.items()})
        self.active = self.clients.active
        self._net.throttle_ip = self.clients.record_connection if self.clients.limits_addresses else None
        # The quick path of Produce does not measure: it serves only prefixes of clients that had no quota when they
        # were learned.
        for channel in self._net.channels():
            if channel.state is not None:
                channel.state.forget_prefixes()

    def measures(self, context: "RequestContext") -> bool:
        """Whether a client has quotas: the quick path of Produce must not learn its requests."""
        return self.active and self.open_meter(context) is not None

    def open_meter(self, context: "RequestContext") -> "RequestMeter | None":
        """Return the meter of a request; None for a client without quotas, and for requests of brokers."""
        # A default quota of users also applies to the brokers' principal: it must not hold back the cluster itself.
        if context.api_key == WRITE_TXN_MARKERS or (
            context.api_key == ADD_PARTITIONS_TO_TXN and context.version >= BROKERS_ADD_PARTITIONS_SINCE
        ):
            return None
        limits = self.clients.find(context.principal.name, context.client_id or "", self._clock.monotonic_ms())
        return None if limits is None else RequestMeter(self, limits, context.channel, self._clock)


class RequestMeter:
    """Measures one request of a client that has quotas, and mutes its connection."""

    __slots__ = ("_busy_ns", "_channel", "_clock", "_limits", "_quotas", "_resumed_ns", "_time_recorded", "throttle_ms")

    def __init__(self, quotas: BrokerQuotas, limits: ClientLimits, channel: "Channel", clock: Clock) -> None:
        self._quotas = quotas
        self._limits = limits
        self._channel = channel
        self._clock = clock
        self._busy_ns = 0
        self._resumed_ns: int | None = None
        self._time_recorded = False
        self.throttle_ms = 0

    # Time

    def resume(self) -> None:
        """Begin to count time of the loop."""
        self._resumed_ns = self._quotas.cpu_ns()

    def pause(self) -> None:
        """Stop counting; what follows the response, such as its encoding, is recorded without a throttle time."""
        self._count_time()
        self._resumed_ns = None
        if self._time_recorded:
            self._record_time()

    def _count_time(self) -> None:
        if self._resumed_ns is not None:
            now_ns = self._quotas.cpu_ns()
            self._busy_ns += now_ns - self._resumed_ns
            self._resumed_ns = now_ns

    def _record_time(self) -> int:
        quota = self._limits.request
        if quota is None:
            return 0
        percent_seconds = self._busy_ns * 100 / 1e9
        self._busy_ns = 0
        # At most one window, as in Kafka: the time of a request is not in the client's hands.
        return min(quota.record(percent_seconds, self._clock.monotonic_ms()), self._quotas.clients.config.sample_ms)

    # Bytes

    def record_produced(self, size: int, *, has_response: bool) -> None:
        """Count the bytes of a Produce request; a connection above its quota is muted from here on."""
        # Not with the response, as in Kafka: requests behind this one are handled before it is answered.
        if self._limits.produce is not None:
            quota = self._limits.produce
            self._throttle(quota.record(size, self._clock.monotonic_ms()), "produce", quota.window)
        # With acks=0 the time of the request is counted, and has no place to be reported in.
        self._time_recorded = not has_response

    @property
    def fetch_bytes_max(self) -> int | None:
        """The bytes that one Fetch may return; None without a quota."""
        quota = self._limits.fetch
        return None if quota is None else self._quotas.clients.fetch_bytes_max(quota)

    def record_fetched(self, size: int) -> bool:
        """Count the bytes of a Fetch response; True if an empty one has to be sent, whose bytes are not counted."""
        self._record_time_once()
        quota = self._limits.fetch
        if quota is None:
            return self.throttle_ms > 0
        now_ms = self._clock.monotonic_ms()
        # A batch that is larger than a window of the quota is sent when nothing else is counted, and throttled after
        # it. Kafka never sends it.
        is_alone = quota.window.rate(now_ms) <= 0 and not self.throttle_ms
        self._throttle(quota.record(size, now_ms), "fetch", quota.window)
        if not self.throttle_ms or is_alone:
            return False
        quota.take_back(size, now_ms)
        return True

    # The response

    def finish(self, response: Any) -> Any:
        """Return the response with the time that the client has to wait."""
        self._record_time_once()
        # A decision of the controller has the time for the quota of changes already.
        decided_ms = getattr(response, "throttle_time_ms", None)
        if decided_ms is None:
            return response
        mutations = self._limits.mutations
        self._throttle(decided_ms, "controller_mutation", mutations.bucket if mutations is not None else None)
        if self.throttle_ms == decided_ms:
            return response
        # A copy: coordinators may send one response to several members.
        response = copy.copy(response)
        response.throttle_time_ms = self.throttle_ms
        return response

    def finish_encoded(self) -> int:
        """Return the time that the client has to wait, for a response that is encoded already."""
        self._record_time_once()
        return self.throttle_ms

    def _record_time_once(self) -> None:
        """Count the time up to the response, once."""
        if not self._time_recorded:
            self._time_recorded = True
            self._count_time()
            quota = self._limits.request
            self._throttle(self._record_time(), "request", quota.window if quota is not None else None)

    def _throttle(self, throttle_ms: int, kind: str, used: RateWindow | TokenBucket | None) -> None:
        if throttle_ms > self.throttle_ms:
            self._quotas.throttled_requests[kind] += 1
            self._quotas.throttle_ms[kind] += throttle_ms - self.throttle_ms
            if used is not None:
                used.throttled_ms += throttle_ms - self.throttle_ms
            self.throttle_ms = throttle_ms
            self._channel.mute(throttle_ms)


class _MeteredSteps(Awaitable[Any]):
    """Counts the time of a coroutine's steps, and not the time in which it waits."""

    def __init__(self, work: Coroutine[Any, Any, Any], meter: RequestMeter) -> None:
        self._work = work
        self._meter = meter

    def __await__(self) -> Generator[Any, Any, Any]:
        work, meter = self._work, self._meter
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            meter.resume()
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            finally:
                meter.pause()
            try:
                step = partial(work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - the coroutine handles it, as it would without this class
                step = partial(work.throw, error)


async def run_metered(work: Coroutine[Any, Any, Any], meter: RequestMeter) -> Any:
    """Await a coroutine whose time on the loop is counted."""
    return await _MeteredSteps(work, meter)


def system_cpu_ns() -> int:
    """Return the CPU time of the loop's thread, by which requests are measured: other processes must not count."""
    return time.thread_time_ns()

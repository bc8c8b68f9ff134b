"""Metrics of a client by Kafka's names, counted per request and batch, never per record.

Totals only grow. `RateSampler` adds a rate to every total, and `Reporter` calls statistics.callback with both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from klamm.client.client_settings import ClientSettings

_log = logging.getLogger(__name__)

Metrics = dict[str, float]
"""Kafka's names of metrics to their values; times are milliseconds."""


# The oldest of four samples is 30 to 40 s old, about Java's window (two samples of metrics.sample.window.ms, 30 s).
_SAMPLE_S: Final = 10.0
_SAMPLES: Final = 4
_RATE_S_MIN: Final = 1.0  # a rate over a shorter time would be noise
_TOTAL: Final = "-total"
_PER_HOUR: Final = frozenset({"rebalance-total", "failed-rebalance-total"})
"""Rare events, which Kafka counts per hour."""


class Traffic:
    """Requests and responses over all connections of a client."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "latency_max_s",
        "latency_s",
        "requests",
        "responses",
    )

    def __init__(self) -> None:
        self.connections = 0
        """Connections that were opened."""
        self.requests = 0
        self.responses = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.latency_s = 0.0
        """Seconds from request to response, over all responses."""
        self.latency_max_s = 0.0

    def count_sent(self, size: int) -> None:
        """Count a request of `size` bytes."""
        self.requests += 1
        self.bytes_out += size

    def count_answered(self, size: int, latency_s: float) -> None:
        """Count a response of `size` bytes, `latency_s` after its request."""
        self.responses += 1
        self.bytes_in += size
        self.latency_s += latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)

    def metrics(self) -> Metrics:
        """A snapshot."""
        return {
            "connection-creation-total": self.connections,
            "request-total": self.requests,
            "response-total": self.responses,
            "outgoing-byte-total": self.bytes_out,
            "incoming-byte-total": self.bytes_in,
            "request-latency-avg": _mean(self.latency_s * 1000, self.responses),
            "request-latency-max": self.latency_max_s * 1000,
        }


class SentRecords:
    """Counts of a producer's records."""

    __slots__ = ("batches", "bytes", "errors", "records", "retries")

    def __init__(self) -> None:
        self.records = 0
        """Records that were acknowledged."""
        self.batches = 0
        self.bytes = 0
        self.errors = 0
        """Records that failed."""
        self.retries = 0
        """Records that were sent again."""

    def metrics(self) -> Metrics:
        """A snapshot."""
        return {
            "record-send-total": self.records,
            "record-error-total": self.errors,
            "record-retry-total": self.retries,
            "batch-size-avg": _mean(self.bytes, self.batches),
            "records-per-batch-avg": _mean(self.records, self.batches),
        }


class FetchedRecords:
    """Counts of what a consumer fetched and returned."""

    __slots__ = ("bytes", "fetches", "records")

    def __init__(self) -> None:
        self.records = 0
        """Records returned to the user."""
        self.fetches = 0
        self.bytes = 0
        """Bytes of batches that were fetched."""

    def metrics(self) -> Metrics:
        """A snapshot."""
        return {
            "records-consumed-total": self.records,
            "bytes-consumed-total": self.bytes,
            "fetch-total": self.fetches,
        }


class CoordinatorWork:
    """Commits and rebalances of a consumer; a rebalance lasts from the join to the assignment."""

    __slots__ = (
        "_rebalance_began",
        "commits",
        "commits_max_s",
        "commits_s",
        "failed_rebalances",
        "rebalances",
        "rebalances_max_s",
        "rebalances_s",
    )

    def __init__(self) -> None:
        self.commits = 0
        """Commits that succeeded."""
        self.commits_s = 0.0
        self.commits_max_s = 0.0
        self.rebalances = 0
        """Rebalances that ended with an assignment."""
        self.rebalances_s = 0.0
        self.rebalances_max_s = 0.0
        self.failed_rebalances = 0
        self._rebalance_began: float | None = None

    def count_commit(self, latency_s: float) -> None:
        """Count a commit that took `latency_s`."""
        self.commits += 1
        self.commits_s += latency_s
        self.commits_max_s = max(self.commits_max_s, latency_s)

    def begin_rebalance(self) -> None:
        """Start the clock at a join or a new assignment; a second call before the end does nothing."""
        if self._rebalance_began is None:
            self._rebalance_began = time.monotonic()

    def end_rebalance(self) -> None:
        """Count a rebalance that ended with an assignment."""
        if self._rebalance_began is not None:
            latency_s = time.monotonic() - self._rebalance_began
            self._rebalance_began = None
            self.rebalances += 1
            self.rebalances_s += latency_s
            self.rebalances_max_s = max(self.rebalances_max_s, latency_s)

    def fail_rebalance(self) -> None:
        """Count a rebalance that failed."""
        if self._rebalance_began is not None:
            self._rebalance_began = None
            self.failed_rebalances += 1

    def metrics(self) -> Metrics:
        """A snapshot."""
        return {
            "commit-total": self.commits,
            "commit-latency-avg": _mean(self.commits_s * 1000, self.commits),
            "commit-latency-max": self.commits_max_s * 1000,
            "rebalance-total": self.rebalances,
            "failed-rebalance-total": self.failed_rebalances,
            "rebalance-latency-avg": _mean(self.rebalances_s * 1000, self.rebalances),
            "rebalance-latency-max": self.rebalances_max_s * 1000,
        }


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


class RateSampler:
    """Rates of all totals per second, over the last half minute.

    Totals are sampled on the client's loop, so that a rate does not depend on how often `snapshot` is called.
    """

    def __init__(self, collect: Callable[[], Metrics], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect = collect
        self._clock = clock
        self._samples: deque[tuple[float, Metrics]] = deque(maxlen=_SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        self.sample()

    def start(self) -> None:
        """Sample every _SAMPLE_S, until `stop`."""
        self._timer = asyncio.get_running_loop().call_later(_SAMPLE_S, self._sample_again)

    def stop(self) -> None:
        """End the sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def _sample_again(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """Keep the current totals; the oldest are dropped."""
        self._samples.append((self._clock(), self._collect()))

    def snapshot(self) -> Metrics:
        """All metrics with a rate beside every total."""
        metrics = self._collect()
        since, before = self._samples[0]
        elapsed_s = max(self._clock() - since, _RATE_S_MIN)
        rates: Metrics = {}
        for name, total in metrics.items():
            if name in _PER_HOUR:
                rates[f"{name.removesuffix(_TOTAL)}-rate-per-hour"] = (total - before[name]) * 3600 / elapsed_s
            elif name.endswith(_TOTAL):
                rates[f"{name.removesuffix(_TOTAL)}-rate"] = (total - before[name]) / elapsed_s
        return metrics | rates


class Reporter:
    """Calls statistics.callback every statistics.interval.ms, on the client's loop."""

    def __init__(self, settings: ClientSettings, role: str, metrics: Callable[[], Metrics]) -> None:
        self._interval_s = settings.seconds("statistics.interval.ms")
        self._callback = settings["statistics.callback"]
        self._labels = {"type": role, "client-id": settings["client.id"]}
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        if self._interval_s and self._callback is not None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._report)

    def _report(self) -> None:
        self._wait()  # first: a callback that raises must not end the reports
        try:
            self._callback({**self._labels, "time-ms": time.time_ns() // 1_000_000, **self._metrics()})
        except Exception as error:  # noqa: BLE001 - a user's function must not stop the client
            _log.warning("statistics.callback failed: %r", error)

    def stop(self) -> None:
        """End the reports."""
        if self._timer is not None:
            self._timer.cancel()

"""What a client has done so far, by Kafka's names for it; counted per request and batch, never per record.

Totals only grow while a client lives. `RateSampler` adds what they grow by a second, and `Reporter` calls
statistics.callback with all of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from klamm.client.config import ClientSettings

_log = logging.getLogger(__name__)

Metrics = dict[str, float]
"""Kafka's names of metrics to their values; times are milliseconds."""


_SAMPLE_S: Final = 10.0
_SAMPLES: Final = 4
_RATE_S_MIN: Final = 1.0
_TOTAL: Final = "-total"
_PER_HOUR: Final = frozenset({"rebalance-total", "failed-rebalance-total"})
"""What is too rare to be told by the second."""


class Traffic:
    """Requests and answers over all connections of a client."""

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
        """Seconds from request to answer, over all answers."""
        self.latency_max_s = 0.0

    def sent(self, size: int) -> None:
        """A request of so many bytes was handed over."""
        self.requests += 1
        self.bytes_out += size

    def answered(self, size: int, latency_s: float) -> None:
        """An answer of so many bytes came, so long after its request."""
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
    """What became of a producer's records."""

    __slots__ = ("batches", "bytes", "errors", "records", "retries")

    def __init__(self) -> None:
        self.records = 0
        """Records that are stored."""
        self.batches = 0
        self.bytes = 0
        self.errors = 0
        """Records that were given up."""
        self.retries = 0
        """Records that were sent once more."""

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
    """What a consumer fetched and handed out."""

    __slots__ = ("bytes", "fetches", "records")

    def __init__(self) -> None:
        self.records = 0
        """Records handed out."""
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
    """What a consumer did with its group's coordinator: commits, and rebalances from their start to the partitions."""

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
        """Commits that were stored."""
        self.commits_s = 0.0
        self.commits_max_s = 0.0
        self.rebalances = 0
        """Rebalances after which this member had its partitions."""
        self.rebalances_s = 0.0
        self.rebalances_max_s = 0.0
        self.failed_rebalances = 0
        self._rebalance_began: float | None = None

    def committed(self, latency_s: float) -> None:
        """Offsets were stored, so long after they were sent."""
        self.commits += 1
        self.commits_s += latency_s
        self.commits_max_s = max(self.commits_max_s, latency_s)

    def begin_rebalance(self) -> None:
        """The member joins, or was told of another assignment; a second time before the end says nothing new."""
        if self._rebalance_began is None:
            self._rebalance_began = time.monotonic()

    def end_rebalance(self) -> None:
        """The member has the partitions it was given."""
        if self._rebalance_began is not None:
            latency_s = time.monotonic() - self._rebalance_began
            self._rebalance_began = None
            self.rebalances += 1
            self.rebalances_s += latency_s
            self.rebalances_max_s = max(self.rebalances_max_s, latency_s)

    def fail_rebalance(self) -> None:
        """The member was refused, or lost its place on the way."""
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
    """What each total grew by a second, over the last half minute.

    Totals are sampled on the client's loop, so that a rate is of now, whenever it was last asked for.
    """

    def __init__(self, collect: Callable[[], Metrics], clock: Callable[[], float] = time.monotonic) -> None:
        self._collect = collect
        self._clock = clock
        self._samples: deque[tuple[float, Metrics]] = deque(maxlen=_SAMPLES)
        self._timer: asyncio.TimerHandle | None = None
        self.sample()

    def start(self) -> None:
        """Sample now and then, until `stop`."""
        self._timer = asyncio.get_running_loop().call_later(_SAMPLE_S, self._sample_again)

    def stop(self) -> None:
        """Sample no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sample_again(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """Remember the totals of now; the oldest are dropped."""
        self._samples.append((self._clock(), self._collect()))

    def snapshot(self) -> Metrics:
        """All metrics with a rate beside each total; of a client younger than a second, what it did so far."""
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
        self._wait()
        try:
            self._callback({**self._labels, "time-ms": time.time_ns() // 1_000_000, **self._metrics()})
        except Exception as error:  # noqa: BLE001 - a user's function must not stop the client
            _log.warning("statistics.callback failed: %r", error)

    def stop(self) -> None:
        """Report no more."""
        if self._timer is not None:
            self._timer.cancel()

"""What a client has done so far, by Kafka's names for it; counted per request and batch, never per record.

Totals only grow while a client lives; for rates take two snapshots. `Reporter` does that for
statistics.callback.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from klamm.client.config import Settings

_log = logging.getLogger(__name__)

Metrics = dict[str, float]
"""Kafka's names of metrics to their values; times are milliseconds."""


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


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


class Reporter:
    """Calls statistics.callback every statistics.interval.ms, on the client's loop."""

    def __init__(self, settings: Settings, role: str, metrics: Callable[[], Metrics]) -> None:
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

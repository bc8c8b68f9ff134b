"""Sends the metrics of a node to an OpenTelemetry collector, from a thread of its own.

One export at a time and no queue: values are cumulative, so that a later export has what a failed one had. A collector
that is slow or away costs the node nothing but the thread. Failures are counted, and logged once a minute at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from klamm.model.errors import ConfigError
from klamm.security.http import HttpSettings, fetch
from klamm.server.metrics.families import build_families
from klamm.server.metrics.snapshot import OtlpCounts
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.server.metrics.snapshot import NodeSnapshot
    from klamm.telemetry.exposition import Family

log = get_logger("metrics")

DEFAULT_PATH: Final = "/v1/metrics"
SEND_TIMEOUT_S: Final = 5.0
REPORT_INTERVAL_S: Final = 60.0
CLOSE_S: Final = 1.0
"""How long a stop waits for an export under way, which the end of the process ends otherwise."""


class ExportRefused(OSError):
    """Raised when the collector has answered, and has not taken everything."""


def parse_endpoint(setting: str, text: str) -> str:
    """Return the URL of a collector; ConfigError if it is none. One without a path gets OTLP's usual one."""
    parts = urlsplit(text)
    try:
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if parts.scheme not in ("http", "https") or not has_host:
        raise ConfigError(f"{setting} is {text!r}; write a URL, e.g. http://127.0.0.1:4318{DEFAULT_PATH}")
    if parts.username is not None:
        # It would be in the log of every failure.
        raise ConfigError(f"{setting} has a user name; collectors with a login are reached through a local collector")
    return text if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{DEFAULT_PATH}"


class OtlpExporter:
    """Takes a snapshot and sends it, every `interval_s`."""

    def __init__(
        self,
        endpoint: str,
        interval_s: float,
        take_snapshot: Callable[[], NodeSnapshot],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`take_snapshot` is called in the thread; it raises TimeoutError if the loop does not answer."""
        self.counts = OtlpCounts()
        self._endpoint = endpoint
        self._interval_s = interval_s
        self._take_snapshot = take_snapshot
        self._now = now
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._reported_at = float("-inf")
        self._unreported = 0

    def start(self) -> None:
        """Begin; the first export is one interval later."""
        self._thread.start()
        log.info("metrics exported by OTLP", endpoint=self._endpoint, interval_s=self._interval_s)

    def close(self) -> None:
        """Export no more; does not wait for a slow collector."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.export()

    def export(self) -> None:
        """Send one snapshot; failures are counted, not raised."""
        try:
            snapshot = self._take_snapshot()
            self._send(snapshot, build_families(snapshot))
        except Exception as error:  # noqa: BLE001 - a bug in one family must not end all later exports
            self._count_failure(error)
        else:
            self.counts.exports += 1

    def _send(self, snapshot: NodeSnapshot, families: Sequence[Family]) -> None:
        # Here: only a node with an endpoint needs the extra.
        from klamm.telemetry.otlp import CONTENT_TYPE, POINTS_MAX, encode_exports, read_rejected  # noqa: PLC0415

        start_ns = int(snapshot.now_ms - snapshot.uptime_s * 1000) * 1_000_000
        requests = encode_exports(
            families, describe_resource(snapshot), start_ns=start_ns, now_ns=snapshot.now_ms * 1_000_000
        )
        sent = rejected = omitted = 0
        reason = ""
        for body, points in requests:
            if self._stop.is_set():
                return
            if sent + points > POINTS_MAX:
                omitted += points
                continue
            answer = fetch(
                self._endpoint,
                HttpSettings(timeout_s=SEND_TIMEOUT_S),
                body=body,
                headers={"Content-Type": CONTENT_TYPE, "User-Agent": f"klamm/{snapshot.version}"},
            )
            sent += points
            self.counts.points += points
            try:
                count, text = read_rejected(answer)
            except ValueError as error:
                raise ExportRefused(str(error)) from None
            rejected += count
            reason = reason or text
        self.counts.omitted_points += omitted
        self.counts.rejected_points += rejected
        if rejected:
            raise ExportRefused(f"the collector rejected {rejected} points: {reason[:200]}")

    def _count_failure(self, error: Exception) -> None:
        self.counts.failures += 1
        self._unreported += 1
        now = self._now()
        if now - self._reported_at < REPORT_INTERVAL_S:
            return
        fields = {"endpoint": self._endpoint, "failures": self._unreported}
        if isinstance(error, OSError):  # of the network, TimeoutError, ExportRefused
            log.warning("OTLP export failed", reason=error, **fields)
        else:
            log.failure("OTLP export failed", error, **fields)
        self._reported_at = now
        self._unreported = 0


def describe_resource(snapshot: NodeSnapshot) -> dict[str, str]:
    """Return what the metrics are about, by OpenTelemetry's names: Prometheus makes `job` and `instance` of them."""
    return {
        "service.namespace": snapshot.cluster_id,
        "service.name": "klamm",
        "service.instance.id": str(snapshot.node_id),
        "service.version": snapshot.version,
    }

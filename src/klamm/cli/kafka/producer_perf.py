"""kafka-producer-perf-test: write throughput, unlimited or at a given rate, and latencies."""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from typing import Any, Final

from klamm.cli.kafka.script import ToolFailed

REPORT_MS: Final = 5000
SAMPLES_MAX: Final = 500_000


class Stats:
    """Latencies of a run: a sample of bounded size, windows of five seconds, and the line at the end."""

    def __init__(self, records: int, report_ms: int = REPORT_MS) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        # The JVM tool keeps as many latencies: percentiles of long runs are sampled, memory is bounded.
        self._every = max(records // SAMPLES_MAX, 1)
        self._latencies: list[float] = []
        self._report_s = report_ms / 1000
        self.count = self.bytes = self.errors = 0
        self._total_ms = self._max_ms = 0.0
        self._window()

    def _window(self) -> None:
        self._since = time.monotonic()
        self._window_count = self._window_bytes = 0
        self._window_total = self._window_max = 0.0

    def add(self, latency_ms: float, size: int) -> None:
        """One acknowledged record."""
        # Deliveries are reported by the thread of the producer, and read by this one.
        with self._lock:
            if self.count % self._every == 0:
                self._latencies.append(latency_ms)
            self.count += 1
            self.bytes += size
            self._total_ms += latency_ms
            self._max_ms = max(self._max_ms, latency_ms)
            self._window_count += 1
            self._window_bytes += size
            self._window_total += latency_ms
            self._window_max = max(self._window_max, latency_ms)
            if time.monotonic() - self._since >= self._report_s:
                self._print_window()
                self._window()

    def _print_window(self) -> None:
        elapsed = time.monotonic() - self._since
        rate, megabytes = self._window_count / elapsed, self._window_bytes / elapsed / 1048576
        print(
            f"{self._window_count} records sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec),"
            f" {self._window_total / self._window_count:.1f} ms avg latency, {self._window_max:.1f} ms max latency.",
            flush=True,
        )

    def count_failure(self) -> None:
        """One record that was not taken."""
        with self._lock:
            self.errors += 1

    def measure(self) -> dict[str, float]:
        """The figures of the whole run by the names of Kafka's metrics."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        return {
            "producer-metrics:record-error-total": float(self.errors),
            "producer-metrics:record-send-rate": self.count / elapsed,
            "producer-metrics:record-send-total": float(self.count + self.errors),
            "producer-metrics:record-size-avg": self.bytes / max(self.count, 1),
            "producer-topic-metrics:byte-total": float(self.bytes),
            "producer-topic-metrics:record-error-total": float(self.errors),
            "producer-topic-metrics:record-send-total": float(self.count + self.errors),
        }

    def line(self) -> str:
        """The figures of the whole run."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        ordered = sorted(self._latencies) or [0.0]

        def percentile(share: float) -> int:
            return int(ordered[min(int(share * len(ordered)), len(ordered) - 1)])

        return (
            f"{self.count} records sent, {self.count / elapsed:f} records/sec"
            f" ({self.bytes / elapsed / 1048576:.2f} MB/sec), {self._total_ms / max(self.count, 1):.2f} ms avg latency,"
            f" {self._max_ms:.2f} ms max latency, {percentile(0.5)} ms 50th, {percentile(0.95)} ms 95th,"
            f" {percentile(0.99)} ms 99th, {percentile(0.999)} ms 99.9th."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kafka-producer-perf-test", description="Measure how fast records are taken.")
    parser.add_argument("--bootstrap-server", help="brokers to begin with")
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument("--num-records", type=int, required=True, help="how many records")
    parser.add_argument("--throughput", type=float, required=True, help="records per second; -1 for as many as go")
    parser.add_argument("--payload-delimiter", default="\\n", help="what parts records in --payload-file")
    parser.add_argument("--producer-props", nargs="+", action="extend", default=[], help="producer settings, old way")
    parser.add_argument("--command-property", nargs="+", action="extend", default=[], help="producer settings")
    parser.add_argument("--producer.config", dest="producer_config", help="properties file, old way")
    parser.add_argument("--command-config", help="properties file")
    parser.add_argument(
        "--print-metrics", action="store_true", help="print what was measured, by the names of Kafka's metrics"
    )
    parser.add_argument("--transactional-id", help="send in transactions of this id")
    parser.add_argument("--transaction-duration-ms", type=int, help="how long each transaction lasts")
    parser.add_argument("--warmup-records", type=int, default=0, help="records that are not counted")
    parser.add_argument("--reporting-interval", type=int, default=REPORT_MS, help="milliseconds between reports")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=int, help="bytes of each record")
    payload.add_argument("--payload-file", help="records to choose from")
    payload.add_argument("--payload-monotonic", action="store_true", help="numbers that grow")
    return parser


def main(args: list[str]) -> int:
    """Run kafka-producer-perf-test."""
    if not args:
        _parser().print_help(sys.stderr)
        return 0
    try:
        options = _parser().parse_args(args)
    except SystemExit as left:
        # argparse exits with 2 on a wrong command line; argparse4j of the JVM tool with 1.
        return 1 if left.code else 0
    for old, new, used in (
        ("--producer-props", "--command-property", options.producer_props),
        ("--producer.config", "--command-config", options.producer_config),
    ):
        if used:
            print(f"Option {old} has been deprecated and will be removed in a future version. Use {new} instead.")
    _measure(options)
    return 0


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    from klamm.cli.client_settings import PRODUCER, from_java, read_properties

    written: dict[str, str] = {}
    for file in (options.producer_config, options.command_config):
        if file:
            written.update(read_properties(file))
    for pair in (*options.producer_props, *options.command_property):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ToolFailed(f"Invalid property: {pair}")
        written[name] = value
    settings: dict[str, Any] = {"client.id": "perf-producer-client", **from_java(PRODUCER, written)}
    if options.bootstrap_server:
        settings["bootstrap.servers"] = options.bootstrap_server
    if "bootstrap.servers" not in settings:
        raise ToolFailed("At least one of --bootstrap-server, --command-property or --command-config must name brokers")
    if options.transactional_id or options.transaction_duration_ms:
        settings["transactional.id"] = options.transactional_id or f"performance-producer-{time.time_ns()}"
    if settings.get("acks") in ("0", "1"):
        settings.setdefault("enable.idempotence", "false")
    return settings


def _payloads(options: argparse.Namespace) -> list[bytes]:
    if options.payload_file:
        from klamm.cli.record_format import unescape

        with open(options.payload_file, "rb") as file:
            payloads = [payload for payload in file.read().split(unescape(options.payload_delimiter)) if payload]
        if not payloads:
            raise ToolFailed(f"File does not exist or empty file provided: {options.payload_file}")
        return payloads
    if options.payload_monotonic:
        return []
    # A fixed seed, as in the JVM tool: runs are comparable, and codecs compress the same bytes.
    chance = random.Random(0)  # noqa: S311 - letters to fill records with
    return [bytes(chance.choices(range(65, 91), k=max(options.record_size, 0)))]


def _measure(options: argparse.Namespace) -> None:
    from klamm.client import Producer

    settings = _settings(options)
    payloads = _payloads(options)
    chance = random.Random(0)  # noqa: S311 - picks records of a file
    stats = Stats(options.num_records, options.reporting_interval)
    transactional = "transactional.id" in settings
    started_ms = int(time.time() * 1000)
    duration_s = (options.transaction_duration_ms or 3000) / 1000
    with Producer({"bootstrap.timeout.ms": 0, **settings}) as producer:
        if transactional:
            producer.init_transactions()
        began = time.monotonic()
        open_since: float | None = None
        for number in range(options.num_records + options.warmup_records):
            if number == options.warmup_records and number:
                # Acknowledgements of warm-up records must not be counted in the measurement.
                producer.flush()
                stats = Stats(options.num_records, options.reporting_interval)
            if transactional and open_since is None:
                producer.begin_transaction()
                open_since = time.monotonic()
            value = chance.choice(payloads) if payloads else str(number).encode()
            _send(producer, options.topic, value, stats)
            if open_since is not None and time.monotonic() - open_since >= duration_s:
                producer.commit_transaction()
                open_since = None
            _pace(options.throughput, number + 1, began)
        if open_since is not None:
            producer.commit_transaction()
        producer.flush()
        print(stats.line())
    if options.print_metrics:
        from klamm.cli.kafka.perf_metrics import table

        print(table(settings["client.id"], started_ms, stats.measure(), options.topic))


def _send(producer: Any, topic: str, value: bytes, stats: Stats) -> None:
    sent = time.monotonic()

    def on_delivery(delivery: Any) -> None:
        error = delivery.exception()
        if error is None:
            stats.add((time.monotonic() - sent) * 1000, len(value))
        else:
            stats.count_failure()
            print(error, file=sys.stderr)

    producer.send(topic, value, on_delivery=on_delivery)


def _pace(throughput: float, sent: int, began: float) -> None:
    if throughput <= 0:
        return
    ahead = sent / throughput - (time.monotonic() - began)
    # Shorter pauses are not worth a system call.
    if ahead > 0.002:
        time.sleep(ahead)

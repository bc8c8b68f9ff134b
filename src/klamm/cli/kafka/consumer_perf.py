"""kafka-consumer-perf-test: read throughput of a group of one."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, require
from klamm.cli.kafka.script import read_flags, run_check, settings

FLAGS: Final = Flags(
    "kafka-consumer-perf-test",
    BOOTSTRAP,
    Flag("topic", "The topic.", "topic"),
    Flag("include", "Topics, as a regular expression.", "pattern"),
    Flag("num-records", "How many to read (required).", "number"),
    Flag("messages", "As --num-records, the old way.", "number"),
    Flag("group", "The group to read as.", "group"),
    Flag("from-latest", "Begin with what comes next."),
    Flag("timeout", "Stop when nothing came for so long.", "ms"),
    Flag("fetch-size", "max.partition.fetch.bytes", "bytes"),
    Flag("fetch-max-wait-ms", "fetch.max.wait.ms", "ms"),
    Flag("socket-buffer-size", "receive.buffer.bytes", "bytes"),
    Flag("reporting-interval", "Milliseconds between lines.", "ms"),
    Flag("show-detailed-stats", "A line per interval."),
    Flag("hide-header", "Leave out the names of the columns."),
    Flag("print-metrics", "Print what was measured, by the names of Kafka's metrics."),
    Flag("date-format", "Accepted; times are printed one way.", "format"),
    COMMAND_CONFIG,
    Flag("consumer.config", "As --command-config, the old way.", "file"),
    Flag("command-property", "A consumer setting.", "name=value"),
    Flag("threads", "Accepted.", "number"),
    Flag("num-fetch-threads", "Accepted.", "number"),
)
_HEADS = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec,"
    " fetch.nMsg.sec"
)


def main(args: list[str]) -> int:
    """Run kafka-consumer-perf-test."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0

    def check() -> None:
        if sum(parsed.has(name) for name in ("messages", "num-records")) != 1:
            raise Usage("Exactly one of the following arguments is required: [messages], [num-records]")
        if sum(parsed.has(name) for name in ("topic", "include")) != 1:
            raise Usage("Exactly one of the following arguments is required: [topic], [include]")
        require(parsed, "bootstrap-server")
        if not (parsed.text("topic") or parsed.has("include")):
            raise Usage("Topic collection to subscribe to cannot contain null or empty topic", flags=False)
        for name in ("num-records", "messages", "timeout", "reporting-interval"):
            parsed.integer(name, bits=64)

    run_check(FLAGS, check)
    if parsed.has("messages"):
        print("Warning: --messages is deprecated. Use --num-records instead.")
    if not parsed.has("hide-header"):
        first = "time, threadId" if parsed.has("show-detailed-stats") else "start.time, end.time"
        print(f"{first}, {_HEADS}")
    _measure(parsed)
    return 0


def _settings(parsed: Parsed) -> dict[str, Any]:
    return {
        "client.id": "perf-consumer-client",
        # A new group every time, or a second run would find nothing left to read.
        "group.id": parsed.text("group") or f"perf-consumer-{time.time_ns() % 100_000}",
        "auto.offset.reset": "latest" if parsed.has("from-latest") else "earliest",
        "max.partition.fetch.bytes": parsed.text("fetch-size", "1048576"),
        "receive.buffer.bytes": parsed.text("socket-buffer-size", "2097152"),
        **settings(parsed, "consumer", "consumer.config", pairs=("command-property",)),
        "bootstrap.servers": parsed.text("bootstrap-server"),
    }


def _measure(parsed: Parsed) -> None:
    from klamm.cli.kafka.console_source import compile_pattern
    from klamm.client import Consumer

    pattern = compile_pattern(parsed.text("include")) if parsed.has("include") else None
    wanted = parsed.integer("num-records", bits=64) or parsed.integer("messages", bits=64) or 0
    patience_s = (parsed.integer("timeout", 10_000, bits=64) or 10_000) / 1000
    interval_s = (parsed.integer("reporting-interval", 5000, bits=64) or 5000) / 1000
    detailed = parsed.has("show-detailed-stats")
    count = size = 0
    own = _settings(parsed)
    with Consumer({"bootstrap.timeout.ms": 0, **own}) as consumer:
        began = last = reported = time.time()
        joined: float | None = None
        consumer.subscribe([parsed.text("topic")] if pattern is None else pattern)
        window = (0, 0)
        while count < wanted and time.time() - last < patience_s:
            records = consumer.poll(0.1)
            # The first assignment ends the rebalance time, which the throughput of fetching leaves out.
            if joined is None and consumer.assignment():
                joined = time.time()
            if not records:
                continue
            last = time.time()
            for record in records:
                count += 1
                size += len(record.key or b"") + len(record.value or b"")
                if count == wanted:
                    break
            if detailed and last - reported >= interval_s:
                print(_line(_moment(last), "0", size, count, size - window[0], count - window[1], last - reported, 0.0))
                window, reported = (size, count), last
        ended = time.time()
        held = len(consumer.assignment())
    rebalance_s = 0.0 if joined is None else joined - began
    if not detailed:
        print(_line(_moment(began), _moment(ended), size, count, size, count, ended - began, rebalance_s))
    if parsed.has("print-metrics"):
        from klamm.cli.kafka.perf_metrics import table

        elapsed = max(ended - began, 0.001)
        group = "consumer-fetch-manager-metrics"
        measured = {
            "consumer-coordinator-metrics:assigned-partitions": float(held),
            f"{group}:bytes-consumed-rate": size / elapsed,
            f"{group}:bytes-consumed-total": float(size),
            f"{group}:records-consumed-rate": count / elapsed,
            f"{group}:records-consumed-total": float(count),
        }
        print(table(own["client.id"], int(began * 1000), measured))


def _moment(seconds: float) -> str:
    text = dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S:%f")
    # Microseconds cut to milliseconds, after a colon: the format of Java's SimpleDateFormat in the JVM tool.
    return text[:-3]


def _line(
    one: str, other: str, size: int, count: int, step_size: int, step_count: int, elapsed_s: float, rebalance_s: float
) -> str:
    # A run shorter than a millisecond must not divide by 0.
    elapsed = max(elapsed_s, 0.001)
    fetch = max(elapsed - rebalance_s, 0.001)
    # The columns are called MB and contain MiB, as in the JVM tool.
    megabytes = step_size / 1048576
    return (
        f"{one}, {other}, {size / 1048576:.4f}, {megabytes / elapsed:.4f}, {count}, {step_count / elapsed:.4f},"
        f" {rebalance_s * 1000:.0f}, {fetch * 1000:.0f}, {megabytes / fetch:.4f}, {step_count / fetch:.4f}"
    )

"""`klamm bench`: write and read throughput of a cluster, measured from this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click

from klamm.cli.command_errors import refuses
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options

TIMED_MAX: Final = 10_000
"""How many records are timed one by one."""


@click.command()
@click.option("--topic", default="klamm-bench", show_default=True, help="Made when it is not there, and kept.")
@click.option("-n", "--records", type=click.IntRange(1), default=100_000, show_default=True, help="How many.")
@click.option("--size", default="100", show_default=True, metavar="SIZE", help="Bytes of each, e.g. 1KiB.")
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True, help="Of a new topic.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec.",
)
@click.option(
    "-a",
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record: none, the leader, all in sync.",
)
@consent_options
@cluster_options
@output_option
@refuses
def bench(
    *,
    topic: str,
    records: int,
    size: str,
    partitions: int,
    compression: str,
    acks: str,
    consent: Consent,
    target: Target,
    output: str,
) -> None:
    """Write records, read them back, and say how long both took."""
    from klamm.cli.queries.offsets import LATEST, list_offsets
    from klamm.cli.queries.topics import create_topic, find_topics, list_topics
    from klamm.model.units import parse_size_bytes

    try:
        size_bytes = parse_size_bytes(size)
    except ValueError as error:
        raise click.UsageError(f"--size: {error}") from None
    with target.cluster() as cluster:
        plan = ConfirmationPlan()
        is_new = topic not in {known.name for known in list_topics(cluster)}
        if is_new:
            plan.adds(f"topic {topic} partitions={partitions}")
        plan.adds(f"{records} records of {size_bytes} bytes in {topic}")
        if not consent.to(plan, target):
            return
        if is_new:
            create_topic(cluster, topic, partitions=partitions)
        places = [(topic, p.partition) for p in find_topics(cluster, [topic])[0].partitions]
        # The topic may hold records of an earlier run: only what this run writes is read back.
        begin = list_offsets(cluster, places, LATEST)
        wrote_s, latencies = _write(target, topic, records, size_bytes, compression, acks)
        end = list_offsets(cluster, places, LATEST)
        read_s = _read(target, begin, end)
    total = records * size_bytes
    rows = [
        {
            "step": step,
            "records": records,
            "seconds": round(seconds, 3),
            "records_per_s": round(records / seconds),
            "per_s_bytes": round(total / seconds),
            # The same columns in both rows: a table has one header, and CSV one shape.
            **(percentiles(latencies) if step == "write" else dict.fromkeys(percentiles([]))),
        }
        for step, seconds in (("write", wrote_s), ("read", read_s))
    ]
    show(rows, output)


def percentiles(latencies_s: Sequence[float]) -> dict[str, float | None]:
    """From `send` to the acknowledgement, in milliseconds: of half, of nearly all, and of the slowest record."""
    ordered = sorted(latencies_s)

    def at(share: float) -> float | None:
        return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 3) if ordered else None

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": at(1.0)}


class _Timed:
    """Called when a record is acknowledged; keeps how long that took."""

    __slots__ = ("_began", "_latencies")

    def __init__(self, latencies: list[float]) -> None:
        self._latencies = latencies
        self._began = time.perf_counter()

    def __call__(self, _delivery: object) -> None:
        self._latencies.append(time.perf_counter() - self._began)


def _write(
    target: Target, topic: str, records: int, size_bytes: int, compression: str, acks: str
) -> tuple[float, list[float]]:
    from klamm.cli.progress import progress
    from klamm.client import Producer

    # Letters repeat every 26 bytes, so codecs compress this far better than real records.
    value = bytes(range(97, 123)) * (size_bytes // 26 + 1)
    settings = target.client(
        "producer",
        acks=acks,
        compression_type=compression,
        # A throughput setting: with a shorter linger the size of batches depends on how fast this machine sends.
        linger_ms="10",
        batch_size="131072",
        # Idempotence, which is on by default, requires acks=all; asking for less turns it off instead of failing.
        enable_idempotence=None if acks == "all" else "false",
    )
    with (
        Producer({"bootstrap.timeout.ms": 0, **settings}) as producer,
        progress("writing", records, "records") as advance,
    ):
        payload = value[:size_bytes]
        producer.send(topic, payload).result()  # the first one pays for connections and metadata
        latencies: list[float] = []
        stride = max(records // TIMED_MAX, 1)
        began = time.perf_counter()
        for number in range(records - 1):
            # Only some are timed: a callback for each would be measured too.
            producer.send(topic, payload, on_delivery=_Timed(latencies) if number % stride == 0 else None)
            # Not for every record: the time of this loop is the result.
            if number % 1000 == 0:
                advance(number)
        producer.flush()
        # Never 0: rates are divided by it, and a coarse clock may not have moved for one record.
        return max(time.perf_counter() - began, 1e-9), latencies


def _read(target: Target, begin: dict[tuple[str, int], int], end: dict[tuple[str, int], int]) -> float:
    from klamm.cli.partition_reader import PartitionReader, Span

    with target.cluster() as cluster:
        reader = PartitionReader(cluster, {place: Span(begin[place], end[place]) for place in end})
        began = time.perf_counter()
        while not reader.done:
            reader.poll()
        return max(time.perf_counter() - began, 1e-9)

"""The loads, as data: what is sent, what is measured, and how far Klamm should reach beside Kafka."""

import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks import loaders
from benchmarks.machine import PageCache, cpu_seconds, rss_mb
from compat import toolchain
from compat.brokers import Broker, api_versions

GB = 1e9
PARTITIONS = 8
LIMIT_S = 60.0
Sample = dict[str, float]


@dataclass(frozen=True)
class Reach:
    """A measure of a load, and the ratio Klamm : Kafka it should keep (`ratio` None: shown, without a goal)."""

    measure: str
    ratio: float | None = None
    prototype: str = ""
    own: bool = False
    """The measure is itself a ratio to others, of which more is better."""

    @property
    def higher_is_better(self) -> bool:
        return self.own or self.measure.endswith("/s")

    def holds(self, ratio: float) -> bool:
        if self.ratio is None:
            return True
        return ratio >= self.ratio if self.higher_is_better else ratio <= self.ratio


@dataclass
class Bench:
    """A running broker and the helpers a load needs around it."""

    kind: type[Broker]
    broker: Broker
    folder: Path
    cache: PageCache
    scale: float
    prepared: set[str] = field(default_factory=set)
    side_nodes: dict[str, Broker] = field(default_factory=dict)
    """Other nodes that loads have started, which stay until all loads are done."""
    services: dict[str, Any] = field(default_factory=dict)
    """Services over this broker that loads have started, which are side nodes too."""
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})

    def close_side_nodes(self) -> None:
        """End the other nodes."""
        for node in self.side_nodes.values():
            node.close()

    def count(self, full: float) -> int:
        return max(1, int(full * self.scale))

    def fresh_topic(self, name: str, partitions: int = PARTITIONS) -> str:
        """An empty topic; what an older one of this name held is gone from disk and memory before the clock runs."""
        self.drop_topic(name)
        new = NewTopic(name, num_partitions=partitions, replication_factor=1)
        self.admin.create_topics([new])[name].result(30)
        self._wait_led(name, partitions)
        return name

    def _wait_led(self, name: str, partitions: int) -> None:
        """Return once every partition is served; a topic exists before its leaders know that they lead."""
        deadline = time.monotonic() + LIMIT_S
        lookups = {TopicPartition(name, index): OffsetSpec.latest() for index in range(partitions)}
        while True:
            answers = self.admin.list_offsets(lookups, request_timeout=10)
            if all(answer.exception(30) is None for answer in answers.values()):
                return
            if time.monotonic() > deadline:
                raise loaders.LoadFailed(f"{name} is not served after {LIMIT_S:.0f} s")
            time.sleep(0.1)

    def drop_topic(self, name: str) -> None:
        self.prepared.discard(name)
        if name not in self.admin.list_topics(timeout=10).topics:
            return
        self.admin.delete_topics([name])[name].result(30)
        deadline = time.monotonic() + 20
        while any(self.broker.data.glob(f"{name}-[0-9]*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)

    def end_offset(self, topic: str, partition: int) -> int:
        where = TopicPartition(topic, partition)
        return int(self.admin.list_offsets({where: OffsetSpec.latest()})[where].result(30).offset)

    @contextmanager
    def measured(self, sample: Sample) -> Iterator[None]:
        """Broker CPU over the body, with memory made ready before."""
        self.cache.fill()
        before = cpu_seconds(self.broker.pid)
        yield
        sample["cpu_s"] = cpu_seconds(self.broker.pid) - before


@dataclass(frozen=True)
class Load:
    """One row of the comparison."""

    name: str
    title: str
    run: Callable[[Any], Sample]
    """Gets a Bench, or for a load on several nodes a ClusterBench."""
    reaches: tuple[Reach, ...]
    repeats: int = 3
    warm_ups: int = 1
    only: str | None = None
    """The broker it is run against; None for both."""


def with_rates(sample: Sample, result: dict[str, float]) -> Sample:
    """A sample with what a loader counted, per second and per unit of CPU."""
    seconds = max(result["seconds"], 1e-9)
    if result.get("bytes"):
        sample["MB/s"] = result["bytes"] / 1e6 / seconds
        sample["CPU s/GB"] = sample["cpu_s"] / (result["bytes"] / GB)
    if "records" in result:
        sample["records/s"] = result["records"] / seconds
    if "requests" in result:
        sample["requests/s"] = result["requests"] / seconds
        sample["CPU us/request"] = sample["cpu_s"] / max(result["requests"], 1) * 1e6
    for measure, name in (("p50 us", "p50_us"), ("p99 us", "p99_us")):
        if name in result:
            sample[measure] = result[name]
    return sample


def rd_produce(record_bytes: int, batch_bytes: int, total: float, **settings: object) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        topic = bench.fresh_topic("rd")
        records = bench.count(total / record_bytes)
        sample: Sample = {}
        what = (bench.broker.bootstrap, topic, PARTITIONS, record_bytes, batch_bytes, records, LIMIT_S)
        with bench.measured(sample):
            result = loaders.rd("produce", *what, timeout_s=LIMIT_S, **{"acks": 1, "linger_ms": 5, **settings})
        return with_rates(sample, result)

    return run


def rd_consume(record_bytes: int, total: float) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        records = bench.count(total / record_bytes)
        topic = "rd-read"
        if topic not in bench.prepared:
            bench.fresh_topic(topic)
            bench.cache.fill()
            what = (bench.broker.bootstrap, topic, PARTITIONS, record_bytes, 1_000_000, records, LIMIT_S)
            loaders.rd("produce", *what, timeout_s=LIMIT_S, acks=1, linger_ms=5)
            bench.prepared.add(topic)
        sample: Sample = {}
        with bench.measured(sample):
            result = loaders.rd(
                *("consume", bench.broker.bootstrap, topic, PARTITIONS, records, LIMIT_S),
                timeout_s=LIMIT_S,
                queued_min_messages=1_000_000,
                queued_max_messages_kbytes=262_144,
            )
        return with_rates(sample, result)

    return run


def raw_produce(
    connections: int, in_flight: int, record_bytes: int, records: int, requests: float, rate: float = 0
) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        topic = bench.fresh_topic("raw")
        sample: Sample = {}
        what = (bench.broker.port, topic, PARTITIONS, connections, in_flight, record_bytes, records)
        with bench.measured(sample):
            result = loaders.raw("produce", *what, bench.count(requests), LIMIT_S, rate, timeout_s=LIMIT_S)
        return with_rates(sample, result)

    return run


def raw_fetch(connections: int, max_bytes: int, requests: float) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        topic = "raw-read"
        if topic not in bench.prepared:
            bench.fresh_topic(topic, connections)
            bench.cache.fill()
            what = (bench.broker.port, topic, connections, connections, 2, 1000, 990, 400, LIMIT_S, 0)
            loaders.raw("produce", *what, timeout_s=LIMIT_S)
            bench.prepared.add(topic)
        sample: Sample = {}
        what = (bench.broker.port, topic, connections, connections, 1, max_bytes, 0, bench.count(requests), LIMIT_S)
        with bench.measured(sample):
            result = loaders.raw("fetch", *what, timeout_s=LIMIT_S)
        return with_rates(sample, result)

    return run


def start_up(bench: Bench) -> Sample:
    """A second node in a folder of its own: from spawn to an acknowledged record, then its memory at rest."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = bench.kind(Path(folder), heap_mb=1024)
        node.write_config()
        bench.cache.fill()
        start = time.monotonic_ns()
        node.spawn()
        try:
            result = loaders.raw("first", node.port, "first", start, LIMIT_S, timeout_s=LIMIT_S)
            time.sleep(2)
            return {"seconds": result["seconds"], "idle RSS MB": rss_mb(node.pid)}
        finally:
            node.close()


def java_perf(bench: Bench) -> Sample:
    """Kafka's own producer tool, as its users run it."""
    topic = bench.fresh_topic("perf")
    command = toolchain.java_command(heap_mb=256)
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--record-size", "1000"]
    command += ["--num-records", str(bench.count(1_000_000)), "--throughput", "-1", "--command-property"]
    command += [f"bootstrap.servers={bench.broker.bootstrap}"]
    sample: Sample = {}
    with bench.measured(sample):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    summaries = re.findall(r"([\d.]+) records/sec \(([\d.]+) MB/sec\).* (\d+) ms 50th.* (\d+) ms 99th", done.stdout)
    if not summaries:
        raise loaders.LoadFailed(f"ProducerPerformance: {done.stdout[-500:]}{done.stderr[-500:]}")
    rate, mb, p50, p99 = map(float, summaries[-1])
    gb = bench.count(1_000_000) * 1000 / GB
    return {**sample, "records/s": rate, "MB/s": mb, "CPU s/GB": sample["cpu_s"] / gb, "p50 ms": p50, "p99 ms": p99}


def java_consumer_perf(bench: Bench) -> Sample:
    """Kafka's own consumer tool; it joins a group, so a broker without groups is passed over."""
    if not serves(bench.broker.port, 11):
        return {}
    topic, records = bench.fresh_topic("perf-read"), bench.count(1_000_000)
    what = (bench.broker.bootstrap, topic, PARTITIONS, 1000, 1_000_000, records, LIMIT_S)
    loaders.rd("produce", *what, timeout_s=LIMIT_S, acks=1, linger_ms=5)
    command = toolchain.java_command(heap_mb=256)
    command += ["org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--num-records", str(records)]
    command += ["--bootstrap-server", bench.broker.bootstrap, "--hide-header"]
    sample: Sample = {}
    with bench.measured(sample):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") >= 9]
    if not rows:
        raise loaders.LoadFailed(f"ConsumerPerformance: {done.stdout[-500:]}{done.stderr[-500:]}")
    fetch_mb = float(rows[-1][8])
    return {**sample, "MB/s": fetch_mb, "CPU s/GB": sample["cpu_s"] / (records * 1000 / GB)}


def serves(port: int, api_key: int) -> bool:
    """Whether the broker lists this API in ApiVersions."""
    reply = api_versions(port)
    if reply is None:
        return False
    (count,) = struct.unpack_from(">i", reply, 10)
    return any(struct.unpack_from(">h", reply, 14 + 6 * i)[0] == api_key for i in range(count))


MIB_BATCH = 1_000_000
SMALL_BATCH = 16_384


LOADS: tuple[Load, ...] = (
    Load(
        "rd-produce-1k-1m",
        "librdkafka produce, 1 KB records, 1 MB batches",
        rd_produce(1000, MIB_BATCH, 1.0e9),
        (Reach("MB/s", 1.0, "1.6"), Reach("CPU s/GB", 0.5, "0.22"), Reach("records/s")),
        warm_ups=2,
    ),
    Load(
        "rd-produce-100-1m",
        "librdkafka produce, 100 B records, 1 MB batches",
        rd_produce(100, MIB_BATCH, 0.5e9),
        (Reach("MB/s", 1.0, "1.1"), Reach("CPU s/GB", 0.5, "0.36"), Reach("records/s")),
    ),
    Load(
        "rd-produce-1k-16k",
        "librdkafka produce, 1 KB records, 16 KB batches",
        rd_produce(1000, SMALL_BATCH, 0.5e9),
        (Reach("MB/s", 1.5), Reach("CPU s/GB", 0.4), Reach("records/s")),
    ),
    Load(
        "rd-produce-100-16k",
        "librdkafka produce, 100 B records, 16 KB batches",
        rd_produce(100, SMALL_BATCH, 0.3e9),
        (Reach("MB/s", 1.5, "2.2"), Reach("CPU s/GB", 0.4, "0.20"), Reach("records/s")),
    ),
    Load(
        "rd-produce-idempotent",
        "librdkafka produce, idempotent, acks=all, 1 KB, 1 MB batches",
        rd_produce(1000, MIB_BATCH, 1.0e9, acks="all", enable_idempotence="true"),
        (Reach("MB/s", 1.0, "1.3"), Reach("CPU s/GB", 0.6, "0.35"), Reach("records/s")),
    ),
    Load(
        "rd-produce-lz4",
        "librdkafka produce, lz4, 1 KB (uncompressed bytes)",
        rd_produce(1000, MIB_BATCH, 1.0e9, compression_codec="lz4"),
        (Reach("MB/s", None, "0.8"), Reach("CPU s/GB", 0.5, "0.31")),
    ),
    Load(
        "rd-consume",
        "librdkafka consume, 1 KB records",
        rd_consume(1000, 1.0e9),
        (Reach("MB/s", 1.0, "0.9"), Reach("CPU s/GB", 1.0, "0.86"), Reach("records/s")),
    ),
    Load(
        "raw-produce-1m",
        "raw produce 1 MB, 4 connections, 2 in flight",
        raw_produce(4, 2, 1000, 990, 1000),
        (Reach("MB/s", 1.4, "1.9"), Reach("CPU s/GB", 0.5, "0.30")),
    ),
    Load(
        "raw-produce-16k",
        "raw produce 16 KB, 8 connections, 5 in flight",
        raw_produce(8, 5, 1000, 16, 60_000),
        (Reach("CPU us/request", 0.35, "0.16"), Reach("requests/s", None, "3.8")),
    ),
    Load(
        "raw-fetch-1m",
        "raw fetch of 1 MB, 4 connections",
        raw_fetch(4, 1_048_576, 8000),
        (Reach("MB/s", 0.75, "0.8"), Reach("CPU s/GB", 1.15, "1.05")),
    ),
    Load(
        "one-record-1",
        "one-record requests, 8 connections, 1 in flight",
        raw_produce(8, 1, 100, 1, 100_000),
        (Reach("CPU us/request", 0.5, "0.29"), Reach("requests/s", None, "2.3"), Reach("p99 us", None, "0.21")),
    ),
    Load(
        "one-record-20",
        "one-record requests, 8 connections, 20 in flight",
        raw_produce(8, 20, 100, 1, 300_000),
        (Reach("CPU us/request", 0.2, "0.08"), Reach("requests/s", None, "7.7")),
    ),
    Load(
        "latency",
        "produce at 1,000 requests/s, one connection",
        raw_produce(1, 64, 100, 1, 8000, rate=1000),
        (Reach("p50 us", 0.5, "0.23"), Reach("p99 us", 0.6, "0.28"), Reach("CPU us/request", None, "0.26")),
    ),
    Load(
        "start",
        "process start to first acknowledged record; idle RSS",
        start_up,
        (Reach("seconds", 0.15, "0.04"), Reach("idle RSS MB", 0.15, "0.05")),
        warm_ups=0,
    ),
    Load(
        "java-producer-perf",
        "Kafka's ProducerPerformance, 1 KB records",
        java_perf,
        (Reach("MB/s"), Reach("CPU s/GB"), Reach("p99 ms")),
        warm_ups=0,
    ),
    Load(
        "java-consumer-perf",
        "Kafka's ConsumerPerformance, 1 KB records (needs groups)",
        java_consumer_perf,
        (Reach("MB/s"), Reach("CPU s/GB")),
        warm_ups=0,
    ),
)

"""Loads about keeping a log, beside Apache Kafka: the rate of compaction, and how soon many partitions are open again.

Each runs a node of its own. That compaction is done is seen from the sizes of files, that a node is open from its first
acknowledgement.
"""

import random
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks import loaders
from benchmarks.loads import LIMIT_S, Bench, Load, Reach, Sample
from benchmarks.machine import cpu_seconds, rss_mb

SEGMENT_MIN = 1 << 20
VALUE = 80
TOPICS = 100
REOPEN_S = 300.0
"""How long a start with ten thousand partitions may take."""


def _size(folder: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{topic}-0/*.log"))


def compaction(bench: Bench) -> Sample:
    """Keys written again and again while the cleaner is off for the topic; then it is let loose, and timed."""
    megabytes = bench.count(400)
    segment = max(megabytes * 1_000_000 // 8, SEGMENT_MIN)
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = bench.kind(
            Path(folder),
            heap_mb=1024,
            overrides={"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "100"},
        )
        node.start()
        try:
            admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
            settings = {
                "cleanup.policy": "compact",
                "segment.bytes": str(segment),
                "min.compaction.lag.ms": str(10**12),
                "min.cleanable.dirty.ratio": "0.01",
            }
            admin.create_topics([NewTopic("keyed", 1, 1, config=settings)])["keyed"].result(60)
            keys = _fill(node.bootstrap, megabytes)
            before = _size(node.data, "keyed")
            bench.cache.fill()
            cpu, begin = cpu_seconds(node.pid), time.monotonic()
            _allow_compaction(admin)
            deadline = begin + LIMIT_S
            # What stays is one record per key and the active segment.
            while (after := _size(node.data, "keyed")) > keys * 2 * (VALUE + 40) + segment:
                if time.monotonic() > deadline:
                    raise loaders.LoadFailed(f"{after >> 20} of {before >> 20} MB are left after {LIMIT_S} s")
                time.sleep(0.02)
            seconds = time.monotonic() - begin
            return {"MB/s": before / seconds / 1e6, "CPU s/GB": (cpu_seconds(node.pid) - cpu) / before * 1e9}
        finally:
            node.close()


def _fill(bootstrap: str, megabytes: int) -> int:
    chance = random.Random(7)
    value = bytes(chance.randrange(97, 123) for _ in range(VALUE))
    records = megabytes * 1_000_000 // (VALUE + 20)
    keys = max(records // 40, 1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 65536, "acks": 1})
    for _ in range(records):
        while True:
            try:
                producer.produce("keyed", key=b"key-%08d" % chance.randrange(keys), value=value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(60)
    return keys


def _allow_compaction(admin: AdminClient) -> None:
    change = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "keyed", incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)


def reopening(bench: Bench) -> Sample:
    """Stop a node with many partitions, each with a record, and start it again until it serves."""
    partitions = max(TOPICS, bench.count(10_000)) // TOPICS
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        node = bench.kind(Path(folder), heap_mb=1024, overrides={"num.recovery.threads.per.data.dir": "2"})
        node.start()
        try:
            admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
            for first in range(0, TOPICS, 5):
                topics = [NewTopic(f"many-{i}", partitions, 1) for i in range(first, first + 5)]
                for future in admin.create_topics(topics, request_timeout=120).values():
                    future.result(180)
            _one_each(node.bootstrap, partitions)
            begin = time.monotonic()
            node.stop()
            stopped = time.monotonic() - begin
            bench.cache.fill()
            start = time.monotonic_ns()
            node.spawn()
            result = loaders.raw("first", node.port, "first", start, REOPEN_S, timeout_s=REOPEN_S)
            return {"seconds": result["seconds"], "stop s": stopped, "RSS MB": rss_mb(node.pid)}
        finally:
            node.close()


def _one_each(bootstrap: str, partitions: int) -> None:
    """One record for every partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 50})
    for topic in range(TOPICS):
        for index in range(partitions):
            producer.produce(f"many-{topic}", value=b"v", partition=index)
        producer.poll(0)
    if producer.flush(300):
        raise loaders.LoadFailed("not every partition got its record")


MAINTENANCE: tuple[Load, ...] = (
    Load(
        "storage-compaction",
        "compaction of 100-byte records, every key 40 times",
        compaction,
        (Reach("MB/s"), Reach("CPU s/GB")),
        warm_ups=0,
        repeats=1,
    ),
    Load(
        "storage-reopening",
        "start with 10,000 partitions after a clean stop",
        reopening,
        (Reach("seconds"), Reach("stop s"), Reach("RSS MB")),
        warm_ups=0,
        repeats=1,
    ),
)

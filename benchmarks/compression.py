"""Packed batches, which both brokers unpack to look at their records: CPU per gigabyte of what was packed.

Five codecs, batches of 16 KB and 1 MB, records of 100 B and 1 KB. A batch is built once, before the clock runs, and
sent again and again, so that what is measured is the broker and not the packing.
"""

import json
import random
import time
from collections.abc import Callable

from benchmarks import loaders
from benchmarks.loads import GB, LIMIT_S, PARTITIONS, Bench, Load, Reach, Sample, with_rates
from klamm.records.batch import RecordTuple, build_batch
from klamm.records.compression import CODEC_NAMES

CONNECTIONS, IN_FLIGHT = 4, 5
BATCH_BYTES = {"16k": 16_000, "1m": 1_000_000}
RECORD_BYTES = {"100": 100, "1k": 1000}
TOTAL_BYTES = {"16k": 0.25e9, "1m": 0.5e9}
CPU_RATIO_MAX = 0.5
UNPACKING_RATIO_MAX = 1.0
"""Large batches of the quick codecs: unpacking is most of the work, in both brokers."""


def event(source: random.Random, words: list[str], size: int) -> bytes:
    """A record as services send them: JSON with ids, a state and a text, cut to `size` bytes."""
    fields = {
        "id": source.getrandbits(32),
        "user": f"u-{source.randrange(50_000)}",
        "state": source.choice(("new", "paid", "sent", "done")),
        "amount": source.randrange(1, 100_000) / 100,
    }
    text = json.dumps(fields)[:-1] + ', "note": "'
    while len(text) < size:
        text += (source.choice(words) if source.random() < 0.75 else str(source.getrandbits(20))) + " "
    return text[: size - 2].encode() + b'"}'


def record_count(batch_bytes: int, record_bytes: int) -> int:
    """How many records with their keys and lengths make a batch."""
    return batch_bytes // (record_bytes + 20)


def event_batch(codec: str, batch_bytes: int, record_bytes: int) -> bytes:
    """A batch of such records; codecs make a half to a quarter of it."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=3 + i % 8)) for i in range(256)]
    now_ms = int(time.time() * 1000)
    rows: list[RecordTuple] = [
        (now_ms + i // 10, b"u-%d" % source.randrange(50_000), event(source, words, record_bytes), ())
        for i in range(record_count(batch_bytes, record_bytes))
    ]
    return bytes(build_batch(rows, codec=CODEC_NAMES[codec]))


def produce(codec: str, batch_bytes: int, record_bytes: int, total: float) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        topic = bench.fresh_topic("packed")
        file = bench.folder / "batch"
        file.write_bytes(event_batch(codec, batch_bytes, record_bytes))
        records = record_count(batch_bytes, record_bytes)
        what = (bench.broker.port, topic, PARTITIONS, CONNECTIONS, IN_FLIGHT, record_bytes, records)
        requests = bench.count(total / batch_bytes)
        sample: Sample = {}
        with bench.measured(sample):
            result = loaders.raw("produce", *what, requests, LIMIT_S, 0, 1, file, timeout_s=LIMIT_S)
        with_rates(sample, result)
        sample["CPU s/GB"] = sample["cpu_s"] / (result["requests"] * records * record_bytes / GB)
        return sample

    return run


def _load(codec: str, batch: str, record: str) -> Load:
    batch_bytes, record_bytes = BATCH_BYTES[batch], RECORD_BYTES[record]
    unpacks_most = batch == "1m" and codec in ("lz4", "snappy", "zstd")
    return Load(
        f"compression-{codec}-{batch}-{record}",
        f"produce {codec}, batches of {batch_bytes // 1000} KB, records of {record_bytes} B (unpacked bytes)",
        produce(codec, batch_bytes, record_bytes, TOTAL_BYTES[batch]),
        (
            Reach("CPU s/GB", UNPACKING_RATIO_MAX if unpacks_most else CPU_RATIO_MAX),
            Reach("CPU us/request"),
            Reach("requests/s"),
        ),
        warm_ups=2,
    )


COMPRESSION: tuple[Load, ...] = tuple(
    _load(codec, batch, record)
    for batch in BATCH_BYTES
    for record in RECORD_BYTES
    for codec in ("none", "lz4", "snappy", "zstd", "gzip")
)

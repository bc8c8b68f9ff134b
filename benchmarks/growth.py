"""Show that a record costs the same in a log of a megabyte and in one of ten gigabytes."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import loaders
from benchmarks.compare import HEAP_MB, OVERRIDES, work_folder
from benchmarks.loads import Bench, Sample
from benchmarks.machine import PageCache
from compat.brokers import KINDS

LIMIT_S = 300.0
REACH = 1.25
REPEATS = 3
RECORDS_PER_BATCH = 16
BATCH_BYTES = 16_300


def growth(kind: str, *, gigabytes: float, scale: float) -> list[dict[str, Any]]:
    """Cost per request of small produces and of small fetches near the end, before and after the log has grown."""
    with work_folder() as folder:
        cache = PageCache(Path(folder))
        broker = KINDS[kind](Path(folder) / kind, heap_mb=HEAP_MB, overrides=OVERRIDES)
        try:
            cache.fill()
            broker.start()
            bench = Bench(KINDS[kind], broker, Path(folder), cache, scale)
            for work in (_produce_cost, _fetch_cost):  # warm up
                work(bench, _small_log(bench))
            small = {
                what: statistics.median(work(bench, _small_log(bench)) for _ in range(REPEATS))
                for what, work in WORKS.items()
            }
            topic = _small_log(bench)
            print(f"growth, {kind}: writing {gigabytes:g} GB", flush=True)
            _write(bench, topic, int(gigabytes * 1e9 / BATCH_BYTES))
            large = {
                what: statistics.median(work(bench, topic) for _ in range(REPEATS)) for what, work in WORKS.items()
            }
        finally:
            broker.close()
            cache.close()
    return [
        {
            "broker": kind,
            "what": what,
            "small": small[what],
            "large": large[what],
            "gigabytes": gigabytes,
            "ratio": large[what] / small[what],
            "reach": REACH,
            "pass": large[what] / small[what] <= REACH,
        }
        for what in WORKS
    ]


def _small_log(bench: Bench) -> str:
    """A topic that holds a megabyte, in batches like those the measured requests send and read."""
    topic = bench.fresh_topic("growing", 1)
    _write(bench, topic, int(1e6 / BATCH_BYTES))
    return topic


def _write(bench: Bench, topic: str, requests: int) -> None:
    what = (bench.broker.port, topic, 1, 4, 5, 1000, RECORDS_PER_BATCH, requests, LIMIT_S, 0)
    loaders.raw("produce", *what, timeout_s=LIMIT_S)


def _produce_cost(bench: Bench, topic: str) -> float:
    sample: Sample = {}
    with bench.measured(sample):
        what = (bench.broker.port, topic, 1, 4, 5, 1000, RECORDS_PER_BATCH, bench.count(20_000), LIMIT_S, 0)
        result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    return float(sample["cpu_s"] / result["requests"] * 1e6)


def _fetch_cost(bench: Bench, topic: str) -> float:
    """Read the last megabyte over and over, a batch at a time: each request has to find its place in the log."""
    first = max(0, bench.end_offset(topic, 0) - 1000)
    sample: Sample = {}
    with bench.measured(sample):
        what = (bench.broker.port, topic, 1, 4, 1, BATCH_BYTES + 1000, first, bench.count(40_000), LIMIT_S)
        result = loaders.raw("fetch", *what, timeout_s=LIMIT_S)
    return float(sample["cpu_s"] / result["requests"] * 1e6)


WORKS: dict[str, Callable[[Bench, str], float]] = {"fetch 16 KB": _fetch_cost, "produce 16 KB": _produce_cost}

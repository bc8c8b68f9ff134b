"""Show that a record costs the same in a log of a megabyte and in one of ten gigabytes."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compat.brokers import KINDS

from benchmarks import loaders
from benchmarks.compare import HEAP_MB, OVERRIDES, work_folder
from benchmarks.loads import Bench, Sample
from benchmarks.machine import PageCache

LIMIT_S = 300.0
REACH = 1.25
REPEATS = 3
RECORDS_PER_MB_BATCH = 990


def growth(kind: str, *, gigabytes: float, scale: float) -> list[dict[str, Any]]:
    """Cost per request of small produces and of small fetches near the end, before and after the log has grown."""
    with work_folder() as folder:
        cache = PageCache(Path(folder))
        broker = KINDS[kind](Path(folder) / kind, heap_mb=HEAP_MB, overrides=OVERRIDES)
        try:
            cache.fill()
            broker.start()
            bench = Bench(KINDS[kind], broker, Path(folder), cache, scale)
            topic = bench.fresh_topic("growing", 1)
            _write(bench, topic, 1)
            works: dict[str, Callable[[], float]] = {
                "produce 16 KB": lambda: _produce_cost(bench, topic),
                "fetch 16 KB": lambda: _fetch_cost(bench, topic),
            }
            for work in works.values():
                work()
            # The fetches come first: producing is what makes the log grow.
            order = sorted(works)
            small = {what: statistics.median(works[what]() for _ in range(REPEATS)) for what in order}
            print(f"growth, {kind}: writing {gigabytes:g} GB", flush=True)
            _write(bench, topic, int(gigabytes * 1000))
            large = {what: statistics.median(works[what]() for _ in range(REPEATS)) for what in order}
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
        for what in order
    ]


def _write(bench: Bench, topic: str, megabytes: int) -> None:
    what = (bench.broker.port, topic, 1, 1, 2, 1000, RECORDS_PER_MB_BATCH, megabytes, LIMIT_S, 0)
    loaders.raw("produce", *what, timeout_s=LIMIT_S)


def _produce_cost(bench: Bench, topic: str) -> float:
    sample: Sample = {}
    with bench.measured(sample):
        what = (bench.broker.port, topic, 1, 4, 5, 1000, 16, bench.count(20_000), LIMIT_S, 0)
        result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    return float(sample["cpu_s"] / result["requests"] * 1e6)


def _fetch_cost(bench: Bench, topic: str) -> float:
    """Read the last 16 MB or so over and over, 16 KB at a time: each request has to find its place in the log."""
    end = bench.end_offset(topic, 0)
    sample: Sample = {}
    with bench.measured(sample):
        what = (bench.broker.port, topic, 1, 4, 1, 16_384, max(0, end - 16_000), bench.count(40_000), LIMIT_S)
        result = loaders.raw("fetch", *what, timeout_s=LIMIT_S)
    return float(sample["cpu_s"] / result["requests"] * 1e6)

"""Run the loads against each broker in turn and keep the medians."""

import fnmatch
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks.client import CLIENT
from benchmarks.cluster import CLUSTER, NODES, ClusterBench
from benchmarks.compression import COMPRESSION
from benchmarks.coordinator_loads import COORDINATORS
from benchmarks.loaders import LoadFailed
from benchmarks.loads import LOADS, Bench, Load, Reach, Sample
from benchmarks.machine import PageCache
from benchmarks.maintenance_loads import MAINTENANCE
from benchmarks.metrics_loads import METRICS
from benchmarks.security_loads import SECURITY
from benchmarks.service_loads import SERVICES
from compat.brokers import KINDS, BrokerFailed
from compat.clusters import BrokerCluster
from compat.toolchain import cache_dir

HEAP_MB = 1024
# The one setting that is not the default: what a load wrote shall be gone before the next one is measured.
OVERRIDES = {"log.segment.delete.delay.ms": "100"}


@dataclass
class Row:
    """One load: per broker the median of every measure, and the single runs behind it."""

    load: Load
    medians: dict[str, Sample] = field(default_factory=dict)
    runs: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def ratio(self, reach: Reach) -> float | None:
        """Klamm : Kafka, where both were measured, or Klamm's measure if that is itself a ratio."""
        if reach.own:
            return self.medians.get("klamm", {}).get(reach.measure)
        kafka = self.medians.get("kafka", {}).get(reach.measure)
        klamm = self.medians.get("klamm", {}).get(reach.measure)
        return None if not kafka or klamm is None else klamm / kafka


def chosen(pattern: str | None) -> list[Load]:
    """Loads whose name matches any of the comma-separated patterns; all without one."""
    loads = [*LOADS, *COMPRESSION, *MAINTENANCE, *COORDINATORS, *SECURITY, *SERVICES, *METRICS, *CLIENT, *CLUSTER]
    if not pattern:
        return loads
    parts = pattern.split(",")
    return [load for load in loads if any(fnmatch.fnmatch(load.name, f"*{part}*") for part in parts)]


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder on a real disk: /tmp may be memory."""
    parent = cache_dir().parent / "bench"
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=parent, prefix="run-")


def compare(
    kinds: Sequence[str], loads: Sequence[Load], *, scale: float, repeats: int | None, in_turns: bool = False
) -> list[Row]:
    rows = {load.name: Row(load) for load in loads}
    with work_folder() as folder:
        cache = PageCache(Path(folder))
        try:
            if in_turns:
                _run_in_turns(kinds, list(rows.values()), Path(folder), cache, scale=scale, repeats=repeats)
            else:
                for kind in kinds:
                    _run_broker(kind, rows, Path(folder), cache, scale=scale, repeats=repeats)
        finally:
            cache.close()
    return list(rows.values())


def _run_in_turns(
    kinds: Sequence[str], rows: Sequence[Row], folder: Path, cache: PageCache, *, scale: float, repeats: int | None
) -> None:
    """Run each load on one broker after the other while all are up: other work of a busy machine hits both alike."""
    with ExitStack() as stack:
        benches: dict[str, Bench] = {}
        for kind in kinds:
            print(f"{kind}: starting", flush=True)
            broker = KINDS[kind](folder / kind, heap_mb=HEAP_MB, overrides=OVERRIDES)
            stack.callback(broker.close)
            broker.start()
            benches[kind] = Bench(KINDS[kind], broker, folder, cache, scale)
            stack.callback(benches[kind].close_side_nodes)
        for row in rows:
            for kind, bench in benches.items():
                if row.load not in CLUSTER and row.load.only in (None, kind):
                    _measure(kind, row, bench, repeats or row.load.repeats)


def _run_broker(
    kind: str, rows: dict[str, Row], folder: Path, cache: PageCache, *, scale: float, repeats: int | None
) -> None:
    single = [row for row in rows.values() if row.load not in CLUSTER and row.load.only in (None, kind)]
    if single:
        _run_node(kind, single, folder, cache, scale=scale, repeats=repeats)
    several = [row for row in rows.values() if row.load in CLUSTER]
    if several:
        _run_cluster(kind, several, folder, cache, scale=scale, repeats=repeats)


def _run_cluster(
    kind: str, rows: Sequence[Row], folder: Path, cache: PageCache, *, scale: float, repeats: int | None
) -> None:
    print(f"{kind}: starting {NODES} nodes", flush=True)
    cache.fill()
    with BrokerCluster(kind, folder / f"{kind}-cluster", nodes=NODES, heap_mb=HEAP_MB, overrides=OVERRIDES) as cluster:
        bench = ClusterBench(kind, cluster, folder, cache, scale)
        for row in rows:
            _measure(kind, row, bench, min(repeats or row.load.repeats, row.load.repeats))


def _run_node(
    kind: str, rows: Sequence[Row], folder: Path, cache: PageCache, *, scale: float, repeats: int | None
) -> None:
    print(f"{kind}: starting", flush=True)
    cache.fill()
    broker = KINDS[kind](folder / kind, heap_mb=HEAP_MB, overrides=OVERRIDES)
    try:
        broker.start()
        bench = Bench(KINDS[kind], broker, folder, cache, scale)
        try:
            for row in rows:
                _measure(kind, row, bench, repeats or row.load.repeats)
        finally:
            bench.close_side_nodes()
        for topic in list(bench.prepared):
            bench.drop_topic(topic)
    finally:
        broker.close()


def _measure(kind: str, row: Row, bench: Bench | ClusterBench, repeats: int) -> None:
    started = time.monotonic()
    try:
        for _ in range(row.load.warm_ups):
            row.load.run(bench)
        samples = [row.load.run(bench) for _ in range(repeats)]
    except (LoadFailed, BrokerFailed, KafkaException, OSError) as problem:
        row.failures[kind] = str(problem)
        print(f"{kind}: {row.load.title}: FAILED: {problem}", flush=True)
        return
    row.runs[kind] = samples
    measures = samples[0].keys()
    row.medians[kind] = {name: statistics.median(sample[name] for sample in samples) for name in measures}
    shown = ", ".join(
        f"{reach.measure} {number(row.medians[kind][reach.measure])}"
        for reach in row.load.reaches
        if reach.measure in row.medians[kind]
    )
    print(f"{kind}: {row.load.title}: {shown or 'not served'}  ({time.monotonic() - started:.0f} s)", flush=True)


def number(value: float) -> str:
    """Three digits that matter."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"

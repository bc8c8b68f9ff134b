"""Klamm's Python client beside the others, on one broker, in one run; loads are named client-<work>-<bytes>.

`python -m benchmarks` has them among its loads. `python -m benchmarks.client` runs them alone, against either broker,
and writes results/client.json. In every turn each client does the work once in a process of its own, so a machine that
slows down slows all of them; a ratio is that of one turn, and the median of the turns is judged.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import loaders
from benchmarks.client_work import WORKS
from benchmarks.loads import Bench, Load, Reach, Sample
from benchmarks.machine import PageCache, cpu_seconds, facts
from compat.brokers import KINDS

PARTITIONS = 6
LIMIT_S = 300.0
SIZES = (100, 1000)
COUNTS = {
    ("kafka-python", "produce"): 60_000,
    ("aiokafka", "produce"): 150_000,
    ("kafka-python", "consume"): 200_000,
    ("aiokafka", "consume"): 400_000,
}
COUNT = 500_000
COLUMNS = 1_000_000
READING = ("consume", "columns-out")
CONNECTIONS = 4
BATCH_BYTES = 1_000_000

TITLES = {
    "produce": "Python clients produce one by one",
    "consume": "Python clients consume one by one",
    "columns-in": "send_arrow beside confluent-kafka's produce",
    "columns-out": "poll_arrow beside confluent-kafka's consume",
}
PAIRS = {
    "produce": (("klamm async", "aiokafka", 2.0), ("klamm", "kafka-python", 4.0)),
    "consume": (("klamm async", "aiokafka", 2.0), ("klamm", "kafka-python", 4.0)),
    "columns-in": (("klamm columns", "confluent-kafka", 3.0),),
    "columns-out": (("klamm columns", "confluent-kafka", 2.0),),
}
"""Ours, theirs, and how many times their records per second ours should reach."""


def records(client: str, work: str, size: int, scale: float) -> int:
    count = COUNTS.get((client, work), COLUMNS if work.startswith("columns") else COUNT)
    if size > 500:
        count //= 3 if work == "produce" else 1
    return max(int(count * scale) // 1000 * 1000, 5000)


def one(client: str, work: str, bench: Bench, topic: str, size: int, count: int) -> Sample:
    """One client's rate, and what a GB of values cost it and the broker in CPU time."""
    arguments = [client, work, bench.broker.bootstrap, topic, str(size), str(count)]
    command = [sys.executable, "-m", "benchmarks.client_work", *arguments]
    before = cpu_seconds(bench.broker.pid)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    broker_s = cpu_seconds(bench.broker.pid) - before
    if done.returncode:
        raise loaders.LoadFailed(f"{client} {work}: {done.stderr[-1500:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    gigabytes = count * size / 1e9
    return {
        f"{client} records/s": count / result["seconds"],
        f"{client} CPU s/GB": result["cpu_s"] / gigabytes,
        f"{client} broker CPU s/GB": broker_s / gigabytes,
    }


def raw(work: str, bench: Bench, topic: str, size: int) -> Sample:
    """What the broker takes and gives when requests are prebuilt and answers are not looked at."""
    requests = bench.count(COLUMNS * size / BATCH_BYTES)
    if work == "columns-in":
        per_batch = BATCH_BYTES // (size + 10)
        what = (bench.broker.port, topic, PARTITIONS, CONNECTIONS, 2, size, per_batch, requests, LIMIT_S, 0)
        result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    else:
        what = (bench.broker.port, topic, PARTITIONS, CONNECTIONS, 1, 1 << 20, 0, requests, LIMIT_S)
        result = loaders.raw("fetch", *what, timeout_s=LIMIT_S)
    return {"raw loader MB/s": result["bytes"] / 1e6 / max(result["seconds"], 1e-9)}


def turn(work: str, size: int) -> Callable[[Bench], Sample]:
    """Every client does the work once."""

    def run(bench: Bench) -> Sample:
        reading = work in READING
        sample: Sample = {}

        def topic() -> str:
            # Filled before the last topic goes: the next one gets its memory, and the kernel need not look for other.
            bench.cache.fill()
            return filled(bench, size) if reading else bench.fresh_topic("client", PARTITIONS)

        for client in (client for client, client_work in WORKS if client_work == work):
            count = records(client, work, size, bench.scale)
            sample |= one(client, work, bench, topic(), size, count)
        for ours, theirs, _ in PAIRS[work]:
            sample[f"{ours} : {theirs}"] = sample[f"{ours} records/s"] / sample[f"{theirs} records/s"]
            by_cpu = sample[f"{theirs} CPU s/GB"] / max(sample[f"{ours} CPU s/GB"], 1e-9)
            sample[f"{ours} : {theirs} by CPU"] = by_cpu
        if work.startswith("columns"):
            sample |= raw(work, bench, topic(), size)
            reached = sample["klamm columns records/s"] * size / 1e6
            sample["klamm columns : raw loader"] = reached / sample["raw loader MB/s"]
        return sample

    return run


def filled(bench: Bench, size: int) -> str:
    """A topic with more than any client reads."""
    topic = f"client-read-{size}"
    if topic not in bench.prepared:
        bench.fresh_topic(topic, PARTITIONS)
        most = max(records(client, work, size, bench.scale) for client, work in WORKS if work in READING)
        one("klamm columns", "columns-in", bench, topic, size, int(most * 1.2) // 100_000 * 100_000 + 200_000)
        bench.prepared.add(topic)
    return topic


def load(work: str, size: int) -> Load:
    reaches: list[Reach] = []
    for ours, theirs, ratio in PAIRS[work]:
        reaches += [Reach(f"{ours} : {theirs}", ratio, own=True), Reach(f"{ours} : {theirs} by CPU", own=True)]
    if work.startswith("columns"):
        reaches += [Reach("klamm columns : raw loader", own=True)]
    title = f"{TITLES[work]}, {'1 KB' if size == 1000 else f'{size} B'} values"
    return Load(f"client-{work}-{size}", title, turn(work, size), tuple(reaches), only="klamm")


CLIENT = tuple(load(work, size) for size in SIZES for work in TITLES)


def measure(bench: Bench, chosen: Load, repeats: int) -> dict[str, Any]:
    began = time.monotonic()
    for _ in range(chosen.warm_ups):
        chosen.run(bench)
    runs = [chosen.run(bench) for _ in range(repeats)]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(f"{chosen.name}  ({time.monotonic() - began:.0f} s)", flush=True)
    for name, value in medians.items():
        print(f"    {name:44} {value:12,.2f}", flush=True)
    verdicts = [
        {"measure": reach.measure, "ratio": medians[reach.measure], "reach": reach.ratio}
        | ({} if reach.ratio is None else {"pass": reach.holds(medians[reach.measure])})
        for reach in chosen.reaches
    ]
    return {"load": chosen.name, "title": chosen.title, "medians": medians, "runs": runs, "ratios": verdicts}


WORDS = {
    ("produce", "klamm async"): "records produced one by one, `AsyncProducer` : aiokafka",
    ("produce", "klamm"): "records produced one by one, `Producer` : kafka-python",
    ("consume", "klamm async"): "records consumed one by one, `async for` : aiokafka",
    ("consume", "klamm"): "records consumed one by one, `for` : kafka-python",
    ("columns-in", "klamm columns"): "`send_arrow` : confluent-kafka's `produce`",
    ("columns-out", "klamm columns"): "`poll_arrow` : confluent-kafka's `consume`",
}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The ratios as the guide to the client shows them."""
    medians = {row["load"]: row["medians"] for row in rows}
    lines = ["| work | reach | 100 B | by CPU | 1 KB | by CPU |", "|---|---|---|---|---|---|"]
    for work, pairs in PAIRS.items():
        for ours, theirs, reach in pairs:
            cells = [WORDS[work, ours], f"{reach:g}"]
            for size in SIZES:
                ratios = medians.get(f"client-{work}-{size}", {})
                cells += [f"{ratios.get(f'{ours} : {theirs}{how}', 0):.2f}" for how in ("", " by CPU")]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    from benchmarks.compare import HEAP_MB, OVERRIDES, work_folder
    from benchmarks.report import RESULTS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--broker", choices=sorted(KINDS), default="klamm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, once")
    parser.add_argument("--only", help="loads whose name contains one of these, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, loaders.exit_on_signal)  # so that the broker is stopped, too
    scale, repeats = (0.1, 1) if options.quick else (options.scale, options.repeats)
    wanted = options.only.split(",") if options.only else [""]
    chosen = [load for load in CLIENT if any(part in load.name for part in wanted)]
    with work_folder() as folder:
        cache = PageCache(Path(folder))
        broker = KINDS[options.broker](Path(folder) / "broker", heap_mb=HEAP_MB, overrides=OVERRIDES)
        try:
            broker.start()
            bench = Bench(KINDS[options.broker], broker, Path(folder), cache, scale)
            rows = [measure(bench, load, repeats) for load in chosen]
        finally:
            broker.close()
            cache.close()
    judged = [(row["load"], ratio) for row in rows for ratio in row["ratios"] if "pass" in ratio]
    for name, verdict in judged:
        line = f"{name:24} {verdict['measure']} = {verdict['ratio']:.2f} (reach {verdict['reach']:g})"
        print(f"{line} {'pass' if verdict['pass'] else 'FAIL'}")
    if not options.only:
        print(*table(rows), sep="\n")
    if not options.only and not options.quick:
        result = {"machine": facts(), "broker": options.broker, "repeats": repeats, "scale": scale, "rows": rows}
        (RESULTS / "client.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(verdict["pass"] for _, verdict in judged) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.client`: Klamm's Python client beside the others, on one broker, in one run.

Loads are named client-<work>-<bytes>; results go to results/client.json. The clients take turns within each repeat, so
that a machine that slows down slows all of them.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat.brokers import KINDS

from benchmarks.client_work import WORKS
from benchmarks.compare import HEAP_MB, OVERRIDES, work_folder
from benchmarks.machine import facts
from benchmarks.report import RESULTS

PARTITIONS = 6
LIMIT_S = 300.0
COUNTS = {
    ("kafka-python", "produce"): 60_000,
    ("aiokafka", "produce"): 150_000,
    ("kafka-python", "consume"): 200_000,
    ("aiokafka", "consume"): 400_000,
}
COUNT = 500_000
COLUMNS = 1_000_000


@dataclass(frozen=True)
class Reach:
    """A ratio to be kept: ours to theirs in records per second."""

    work: str
    ours: str
    theirs: str
    ratio: float


REACHES = (
    Reach("produce", "klamm async", "aiokafka", 2.0),
    Reach("produce", "klamm", "kafka-python", 4.0),
    Reach("consume", "klamm async", "aiokafka", 2.0),
    Reach("consume", "klamm", "kafka-python", 4.0),
    Reach("columns-in", "klamm columns", "confluent-kafka", 3.0),
    Reach("columns-out", "klamm columns", "confluent-kafka", 2.0),
)


def records(client: str, work: str, size: int, scale: float) -> int:
    count = COUNTS.get((client, work), COLUMNS if work.startswith("columns") else COUNT)
    if size > 500:
        count //= 3 if work == "produce" else 2
    return max(int(count * scale) // 1000 * 1000, 5000)


def run(client: str, work: str, bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    """Records per second, and per second of the client's CPU."""
    command = [sys.executable, "-m", "benchmarks.client_work", client, work, bootstrap, topic, str(size), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{client} {work}: {done.stderr[-1500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["records"] / found["seconds"], found["records"] / max(found["cpu_s"], 1e-6)


def measure(bootstrap: str, sizes: list[int], works: list[str], *, scale: float, repeats: int) -> list[dict[str, Any]]:
    from klamm.client import Admin

    rows = []
    with Admin(bootstrap_servers=bootstrap) as admin:
        for size in sizes:
            filled = ""
            for work in works:
                clients = [client for client, each in WORKS if each == work]
                reading = work in ("consume", "columns-out")
                if reading and not filled:
                    filled = f"client-read-{size}"
                    admin.create_topic(filled, PARTITIONS, 1)
                    most = max(records(client, each, size, scale) for client, each in WORKS if each in works)
                    enough = int(most * 1.2) // 100_000 * 100_000 + 200_000
                    run("klamm columns", "columns-in", bootstrap, filled, size, enough)
                rates: dict[str, list[tuple[float, float]]] = {client: [] for client in clients}
                for turn in range(repeats):
                    for client in clients:
                        topic = filled
                        if not reading:
                            topic = f"client-{work}-{size}-{turn}-{client.replace(' ', '-')}"
                            admin.create_topic(topic, PARTITIONS, 1)
                        count = records(client, work, size, scale)
                        rates[client].append(run(client, work, bootstrap, topic, size, count))
                        if not reading:
                            admin.delete_topics([topic])
                medians = {client: statistics.median(rate for rate, _ in each) for client, each in rates.items()}
                by_cpu = {client: statistics.median(rate for _, rate in each) for client, each in rates.items()}
                row = {"load": f"client-{work}-{size}", "records/s": medians, "records/CPU s": by_cpu, "runs": rates}
                rows.append(row)
                shown = "  ".join(f"{client} {rate:,.0f}" for client, rate in medians.items())
                print(f"client-{work}-{size:<6} {shown}", flush=True)
    return rows


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    verdicts = []
    for row in rows:
        for reach in REACHES:
            if not row["load"].startswith(f"client-{reach.work}-"):
                continue
            ratio = row["records/s"][reach.ours] / row["records/s"][reach.theirs]
            by_cpu = row["records/CPU s"][reach.ours] / row["records/CPU s"][reach.theirs]
            verdicts.append(
                {
                    "load": row["load"],
                    "ours": reach.ours,
                    "theirs": reach.theirs,
                    "ratio": round(ratio, 2),
                    "ratio by CPU": round(by_cpu, 2),
                    "reach": reach.ratio,
                    "pass": ratio >= reach.ratio,
                }
            )
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--broker", choices=sorted(KINDS), default="klamm")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, once")
    parser.add_argument("--only", help="works, separated by commas: produce, consume, columns-in, columns-out")
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker goes too
    works = options.only.split(",") if options.only else ["produce", "consume", "columns-in", "columns-out"]
    scale, repeats = (0.1, 1) if options.quick else (options.scale, options.repeats)
    sizes = [int(each) for each in options.sizes.split(",")]
    with work_folder() as folder:
        broker = KINDS[options.broker](Path(folder) / "broker", heap_mb=HEAP_MB, overrides=OVERRIDES)
        try:
            broker.start()
            rows = measure(broker.bootstrap, sizes, works, scale=scale, repeats=repeats)
        finally:
            broker.close()
    verdicts = judged(rows)
    for each in verdicts:
        words = f"{each['load']:24} {each['ours']} : {each['theirs']} = {each['ratio']:.2f} (reach {each['reach']:g}; "
        print(f"{words}by CPU {each['ratio by CPU']:.2f}) {'pass' if each['pass'] else 'FAIL'}")
    if not options.only and not options.quick:
        result = {
            "machine": facts(),
            "broker": options.broker,
            "repeats": repeats,
            "scale": scale,
            "rows": rows,
            "ratios": verdicts,
        }
        (RESULTS / "client.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(each["pass"] for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

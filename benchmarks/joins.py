"""Measure joins with tables: how long a batch of 20 rows takes against tables of 1,000 and of 1,000,000 keys.

    python -m benchmarks.joins [--keys 1000 1000000] [--batches 9] [--limit 900]

`lookup` joins a stream with a table, `table` joins two tables. Writes results/joins.json, and exits with 1 when a batch
against the largest table takes more than 1.5 times as long as one against the smallest, or when the measurement takes
longer than its limit, in seconds.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.machine import facts
from klamm.pipeline import session
from klamm.pipeline.core.offsets import Position
from klamm.pipeline.sql.core.graph import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.engine import Engine
from klamm.pipeline.sql.runner import SPARK_SETTINGS
from klamm.pipeline.sql.topics import ClusterTopics
from klamm.testing import broker

REACH = 1.5
ROWS = 20
CHUNK = 100_000
LIMIT_S = 900
BATCH_S = 120
RESULTS = Path(__file__).parent / "results" / "joins.json"
DECLARATIONS = """
CREATE TABLE customers (id STRING, owner STRING, city STRING) WITH (topic = '{customers}', key = 'id');
CREATE TABLE accounts (id STRING, customer STRING, balance DECIMAL(12, 2)) WITH (topic = '{accounts}', key = 'id');
CREATE STREAM payments (id BIGINT, customer STRING) WITH (topic = '{payments}', key = 'id');
CREATE STREAM lookup WITH (topic = '{lookup}', key = 'id') AS
  SELECT p.id, c.owner, c.city FROM payments p JOIN customers c ON p.customer = c.id;
CREATE TABLE joined WITH (topic = '{joined}', key = 'id') AS
  SELECT a.id, a.balance, c.owner FROM accounts a JOIN customers c ON a.customer = c.id;
"""


def send(running: Any, topic: str, keys: list[str], rows: list[dict[str, Any]]) -> None:
    with running.producer() as producer:
        for first in range(0, len(rows), CHUNK):
            values = [json.dumps(row, separators=(",", ":")) for row in rows[first : first + CHUNK]]
            table = pa.table({"key": keys[first : first + CHUNK], "value": values})
            producer.send_arrow(topic, table, timestamp=None, headers=None)
            producer.flush()


def customer(number: int) -> dict[str, Any]:
    return {"id": f"c{number:07d}", "owner": f"owner {number}", "city": f"city {number % 977}"}


def account(number: int, keys: int, balance: int = 0) -> dict[str, Any]:
    return {"id": f"a{number:07d}", "customer": f"c{number * 7 % keys:07d}", "balance": balance + 0.25}


def fill(running: Any, topics: dict[str, str], keys: int) -> None:
    for first in range(0, keys, CHUNK):
        numbers = range(first, min(first + CHUNK, keys))
        owners = [customer(number) for number in numbers]
        send(running, topics["customers"], [row["id"] for row in owners], owners)
        rows = [account(number, keys) for number in numbers]
        send(running, topics["accounts"], [row["id"] for row in rows], rows)


class Batches:
    """A running query, and the times of its batches."""

    def __init__(self, query: Any, deadline: float) -> None:
        self._running = query.start(once=False)
        self._deadline = deadline
        self._seen = -1

    def wait(self, end: int, limit_s: float = math.inf) -> list[float]:
        """Return the durations of the batches up to an end, the sum of its offsets, in milliseconds."""
        begin = time.monotonic()
        deadline = min(self._deadline, begin + limit_s)
        durations: list[float] = []
        reached = 0
        while reached < end:
            if not self._running.isActive:
                raise SystemExit(f"the query ended: {self._running.exception()}")
            if time.monotonic() > deadline:
                waited_s = time.monotonic() - begin
                raise SystemExit(f"offset {reached:,} of {end:,} after {waited_s:.0f} s: not measured")
            for progress in self._running.recentProgress:
                if progress.batchId > self._seen and "addBatch" in progress.durationMs:
                    self._seen = progress.batchId
                    ends = [json.loads(source.endOffset) for source in progress.sources]
                    reached = sum(sum(Position.from_json(position).offsets.values()) for position in ends)
                    durations.append(progress.durationMs["triggerExecution"])
            # The listener's events come after the batch, within tens of milliseconds.
            self._running.awaitTermination(0.05)
        return durations

    def stop(self) -> None:
        self._running.stop()


def measure(
    spark: Any, running: Any, keys: int, batches: int, folder: Path, chosen: str | None, deadline: float
) -> dict[str, dict[str, float]]:
    names = ("customers", "accounts", "payments", "lookup", "joined")
    topics = {name: running.topic(f"{name}_{keys}", partitions=2) for name in names}
    print(f"writing two tables of {keys:,} keys", flush=True)
    fill(running, topics, keys)
    chance = random.Random(7)
    payments = 0

    def pay() -> None:
        nonlocal payments
        numbers = range(payments, payments := payments + ROWS)
        rows = [{"id": number, "customer": customer(chance.randrange(keys))["id"]} for number in numbers]
        send(running, topics["payments"], [str(row["id"]) for row in rows], rows)

    def change() -> None:
        numbers = chance.sample(range(keys), ROWS)
        rows = [account(number, keys, chance.randrange(10_000)) for number in numbers]
        send(running, topics["accounts"], [row["id"] for row in rows], rows)

    pipeline = compile_text(DECLARATIONS.format(**topics), "joins.sql", {"bootstrap": running.bootstrap})
    connector = ClusterTopics(pipeline)
    identity = QueryIdentity(f"joins{keys}", "joins", {}, {}).renew(pipeline)
    engine = Engine(spark, pipeline, connector, str(folder / str(keys)), identity)
    connector.ensure()
    queries = {query.name: query for query in engine.build()}
    results = {}
    for name, query, produce, sources in (
        ("lookup", "lookup", pay, ("payments",)),
        ("table", "joined", change, ("accounts", "customers")),
    ):
        if chosen not in (None, name):
            continue

        def end() -> int:
            ends = [Position.from_json(connector.end(topics[source])).offsets for source in sources]  # noqa: B023
            return sum(sum(offsets.values()) for offsets in ends)

        produce()
        work = Batches(queries[query], deadline)
        first_ms = sum(work.wait(end()))
        times = []
        for _ in range(batches):
            produce()
            times.append(sum(work.wait(end(), BATCH_S)))
        work.stop()
        # The first ones after a start compile their code.
        warm = times[2:] or times
        results[name] = {"first_ms": first_ms, "median_ms": statistics.median(warm), "worst_ms": max(warm)}
        print(
            f"{keys:>9,} keys  {name:7}",
            "  ".join(f"{key} {value:,.0f}" for key, value in results[name].items()),
            flush=True,
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="the most seconds that it may take")
    parser.add_argument("--only", choices=("lookup", "table"))
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"rows": ROWS, "machine": facts(), "load_before": os.getloadavg()[0], "keys": {}}
    deadline = time.monotonic() + arguments.limit
    with tempfile.TemporaryDirectory(prefix="klamm-joins-") as folder, broker(child=True) as running:
        spark = session("benchmark", master="local[2]", config=SPARK_SETTINGS, progress=False)
        for keys in sorted(arguments.keys):
            results["keys"][keys] = measure(
                spark, running, keys, arguments.batches, Path(folder), arguments.only, deadline
            )
        spark.stop()
    results["load_after"] = os.getloadavg()[0]
    smallest, largest = (results["keys"][keys] for keys in (min(arguments.keys), max(arguments.keys)))
    results["ratio"] = {name: largest[name]["median_ms"] / smallest[name]["median_ms"] for name in smallest}
    if not arguments.no_write:
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for name, ratio in results["ratio"].items():
        print(f"{name}: a batch of {ROWS} rows takes {ratio:.2f} times as long, reach {REACH:g}")
    print(f"load {results['load_before']:.1f} before, {results['load_after']:.1f} after")
    return 0 if max(results["ratio"].values()) <= REACH else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measure tables that answer: how fast a topic of a million keys is read, and how long a pull query takes.

    python -m benchmarks.tables [--keys 1000000] [--queries 2000]

Writes results/tables.json, and exits with 1 when the 99th percentile of a point query misses its goal.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.machine import facts
from klamm.pipeline import open_tables
from klamm.testing import broker

REACH_MS = 5.0
RESULTS = Path(__file__).parent / "results" / "tables.json"
DECLARATION = """CREATE TABLE balances (account STRING, balance DECIMAL(12, 2), changed TIMESTAMP)
  WITH (topic = '{topic}', key = 'account');"""
SELECT = "SELECT * FROM balances WHERE account = ?"
BATCH = 100_000


def account(number: int) -> str:
    return f"account-{number:07d}"


def fill(running: Any, topic: str, keys: int) -> None:
    """One record per key, in random order: neighbours in the log are none in the key space."""
    numbers = list(range(keys))
    random.Random(7).shuffle(numbers)
    with running.producer() as producer:
        for first in range(0, keys, BATCH):
            chosen = numbers[first : first + BATCH]
            value = '{"account":"%s","balance":%d.25,"changed":"2026-05-01T10:00:00.000000Z"}'
            table = pa.table(
                {
                    "key": [account(number) for number in chosen],
                    "value": [value % (account(number), number % 10_000) for number in chosen],
                }
            )
            producer.send_arrow(topic, table, timestamp=None, headers=None)
            producer.flush()


def catch_up(file: Path, bootstrap: str, keys: int, **options: Any) -> tuple[Any, dict[str, Any]]:
    began, cpu = time.perf_counter(), time.process_time()
    tables = open_tables(file, bootstrap=bootstrap, **options)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return tables, {"seconds": wall_s, "cpu_seconds": cpu_s, "records_per_s": keys / wall_s}


def percentiles(ask: Callable[[str], None], keys: int, queries: int) -> dict[str, float]:
    source = random.Random(11)
    for _ in range(queries // 10):
        ask(account(source.randrange(keys)))
    times = []
    for _ in range(queries):
        name = account(source.randrange(keys))
        began = time.perf_counter()
        ask(name)
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return {
        "p50_ms": statistics.median(times),
        "p99_ms": times[int(len(times) * 0.99)],
        "max_ms": times[-1],
    }


class HttpClient:
    """One connection to `klamm pipeline serve`, which is kept open as any client does."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, name: str) -> None:
        body = json.dumps({"sql": SELECT, "parameters": [name]})
        self._connection.request("POST", "/query", body, {"Content-Type": "application/json"})
        self._check(name, self._connection.getresponse().read())

    def get(self, name: str) -> None:
        self._connection.request("GET", f"/tables/balances/{name}")
        self._check(name, self._connection.getresponse().read())

    @staticmethod
    def _check(name: str, answer: bytes) -> None:
        assert name.encode() in answer, answer


def over_http(file: Path, bootstrap: str, keys: int, queries: int) -> dict[str, dict[str, float]]:
    words = [sys.executable, "-m", "klamm", "pipeline", "serve", str(file), "--listen", "0", "-b", bootstrap]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            port = next(int(match[1]) for line in lines if (match := re.search(r"http://127.0.0.1:(\d+)", line)))
            client = HttpClient(port)
            return {
                "http_query": percentiles(client.post, keys, queries),
                "http_row": percentiles(client.get, keys, queries),
            }
        finally:
            server.terminate()


def measure(keys: int, queries: int) -> dict[str, Any]:
    results: dict[str, Any] = {"keys": keys, "queries": queries, "machine": facts(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="klamm-tables-") as folder, broker(child=True) as running:
        topic = running.topic("balances", partitions=4)
        file = Path(folder) / "bank.sql"
        file.write_text(DECLARATION.format(topic=topic))
        print(f"writing {keys:,} keys", flush=True)
        fill(running, topic, keys)
        store = Path(folder) / "store"
        tables, results["catch_up_disk"] = catch_up(file, running.bootstrap, keys, store=store)
        tables.close()
        tables, results["restart_disk"] = catch_up(file, running.bootstrap, keys, store=store)

        def ask_disk(name: str) -> None:
            assert tables.query(SELECT, [name]).num_rows == 1

        results["python_query_disk"] = percentiles(ask_disk, keys, queries)
        tables.close()
        results["store_mb"] = sum(path.stat().st_size for path in store.iterdir()) / 1e6
        tables, results["catch_up_memory"] = catch_up(file, running.bootstrap, keys)

        def ask(name: str) -> None:
            assert tables.query(SELECT, [name]).num_rows == 1

        def get(name: str) -> None:
            assert tables.get("balances", name) is not None

        results["python_query"] = percentiles(ask, keys, queries)
        results["python_get"] = percentiles(get, keys, queries)
        tables.close()
        results |= over_http(file, running.bootstrap, keys, queries)
    results["load_after"] = os.getloadavg()[0]
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=2000)
    arguments = parser.parse_args()
    results = measure(arguments.keys, arguments.queries)
    for name, values in results.items():
        if isinstance(values, dict) and name != "machine":
            print(f"{name:20}", "  ".join(f"{key} {value:,.2f}" for key, value in values.items()))
    print(f"load {results['load_before']:.1f} before, {results['load_after']:.1f} after")
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    worst = max(results[name]["p99_ms"] for name in ("python_query", "http_query"))
    print(f"p99 of a pull query: {worst:.2f} ms, reach {REACH_MS:g} ms")
    return 0 if worst <= REACH_MS else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measure what a person waits for: `klamm pipeline run --once` with 22 small queries, and the first error of a run.

    python -m benchmarks.pipeline_runs [--repeats 3] [--queries 22]

The times are of whole commands, with the start of Python and Spark. Writes results/pipeline_runs.json, and exits with 1
when a goal is missed.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import facts
from klamm.testing import broker

ONCE_REACH_S = 65.0
ERROR_REACH_S = 2.0
LIMIT_S = 600
QUERIES = 22
RECORDS = 100
RESULTS = Path(__file__).parent / "results" / "pipeline_runs.json"


def declare(topics: dict[str, str], output: str, queries: int) -> str:
    """Return so many queries: streams, tables with state, joins with a table."""
    statements = [
        f"CREATE STREAM events (id INT, kind INT) WITH (topic = '{topics['events']}', bad_records = 'drop');",
        (
            f"CREATE TABLE kinds (kind INT, name STRING)"
            f" WITH (topic = '{topics['kinds']}', key = 'kind', bad_records = 'drop');"
        ),
    ]
    for number in range(queries):
        options = f"topic = '{output}.{number}'"
        statements.append(
            (
                f"CREATE STREAM copies{number} WITH ({options}) AS SELECT id FROM events WHERE id % {number + 1} = 0;",
                (
                    f"CREATE TABLE counts{number} WITH ({options}, key = 'kind') AS"
                    f" SELECT kind + {number} AS kind, count(*) AS seen FROM events GROUP BY kind + {number};"
                ),
                (
                    f"CREATE STREAM named{number} WITH ({options}) AS"
                    f" SELECT e.id + {number} AS id, k.name FROM events e JOIN kinds k ON e.kind = k.kind;"
                ),
            )[number % 3]
        )
    return "\n".join(statements)


def run(
    folder: Path, name: str, text: str, bootstrap: str, *options: str
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Return how long a run took, and how it ended."""
    file = folder / f"{name}.sql"
    file.write_text(text)
    words = [sys.executable, "-m", "klamm", "pipeline", "run", str(file), "-b", bootstrap, *options]
    environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    begin = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False)
    return time.perf_counter() - begin, done


def fill(running: Any, topics: dict[str, str]) -> None:
    with running.producer() as producer:
        for number in range(RECORDS):
            producer.send(topics["events"], json.dumps({"id": number, "kind": number % 5}).encode())
        for number in range(5):
            row = {"kind": number, "name": f"kind {number}"}
            producer.send(topics["kinds"], json.dumps(row).encode(), key=str(number).encode())
        producer.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", type=int, default=QUERIES, help="of the pipeline that is run once")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    load, queries = os.getloadavg()[0], arguments.queries
    once: list[float] = []
    errors: dict[str, list[float]] = {"no topic": [], "no broker": []}
    with (
        tempfile.TemporaryDirectory(prefix="klamm-runs-") as path,
        broker(child=True) as running,
        socket.socket() as taken,
    ):
        # Bound and not listening: connections are refused.
        taken.bind(("127.0.0.1", 0))
        places = {"no topic": running.bootstrap, "no broker": f"127.0.0.1:{taken.getsockname()[1]}"}
        absent = "CREATE STREAM absent (a INT);\nCREATE STREAM x AS SELECT a FROM absent;\n"
        for number in range(arguments.repeats):
            for fault, place in places.items():
                seconds, done = run(Path(path), f"absent{number}", absent, place)
                assert done.returncode == 1, done.stderr
                errors[fault].append(seconds)
            topics = {name: running.topic(f"{name}{number}") for name in ("events", "kinds")}
            fill(running, topics)
            # Every repetition has topics and state of its own.
            text = f"SET name = 'runs{number}';\nSET partitions = 1;\n{declare(topics, f'out{number}', queries)}"
            seconds, done = run(Path(path), f"runs{number}", text, running.bootstrap, "--once")
            assert done.returncode == 0, done.stderr
            once.append(seconds)
            print(f"{queries} queries once: {seconds:.1f} s", flush=True)
    print(f"{queries} queries once: median {statistics.median(once):.1f} s, reach {ONCE_REACH_S:g} s")
    for fault, times in errors.items():
        shown = ", ".join(f"{seconds:.2f}" for seconds in times)
        print(f"first error, {fault}: {shown} s, reach {ERROR_REACH_S:g} s")
    print(f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    slowest = max(statistics.median(times) for times in errors.values())
    if not arguments.no_write:
        report = {
            "machine": facts(),
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "queries": queries,
            "once_s": [round(seconds, 2) for seconds in once],
            "once_reach_s": ONCE_REACH_S,
            "first_error_s": {fault: [round(seconds, 3) for seconds in times] for fault, times in errors.items()},
            "first_error_reach_s": ERROR_REACH_S,
        }
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if statistics.median(once) <= ONCE_REACH_S and slowest <= ERROR_REACH_S else 1


if __name__ == "__main__":
    sys.exit(main())

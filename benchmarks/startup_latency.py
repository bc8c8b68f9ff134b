"""How long a person waits: `klamm topic ls` from Enter to its output, and a test from its fixture to the first record.

    python -m benchmarks.startup_latency [--rounds N]

Every round is a process of its own, imports included, unless the row says otherwise. Prints medians beside the reach,
and ends with 1 when one is missed. Byte code is compiled first, as an installed package has it.
"""

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import klamm.testing

SOURCE = Path(klamm.testing.__file__).parents[1]
KLAMM = [sys.executable, "-m", "klamm"]
IN_PROCESS = """
import time
began = time.perf_counter()
import klamm.testing
with klamm.testing.broker() as b:
    with b.producer(linger_ms=0) as producer:
        producer.send(b.topic(), b"x").result()
        first = time.perf_counter() - began
began = time.perf_counter()
with klamm.testing.broker() as b:
    with b.producer(linger_ms=0) as producer:
        producer.send(b.topic(), b"x").result()
        print(first, time.perf_counter() - began)
"""
CLUSTER = """
import time
import klamm.testing.clusters, klamm.server.boot.local_cluster, klamm.client.blocking_producer
began = time.perf_counter()
with klamm.testing.cluster(3) as c:
    with c.producer(linger_ms=0) as producer:
        producer.send(c.topic(), b"x").result()
        print(time.perf_counter() - began)
"""


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "KLAMM_CONTEXTS": os.devnull}


def topic_ls(bootstrap: str) -> float:
    began = time.perf_counter()
    process = subprocess.Popen(
        [*KLAMM, "topic", "ls", "-b", bootstrap, "-o", "table"], stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdout.read(1)
    elapsed = time.perf_counter() - began
    process.communicate()
    assert process.returncode == 0
    return elapsed


def script(text: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120, env=environment()
    )
    return [float(word) for word in done.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    compileall.compile_dir(str(SOURCE), quiet=2)
    rows: list[tuple[str, float | None, list[float]]] = []
    with klamm.testing.broker(child=True) as broker:
        for number in range(20):
            broker.topic(f"topic-{number}")
        rows.append(("klamm topic ls, first output", 0.35, [topic_ls(broker.bootstrap) for _ in range(rounds)]))
    pairs = [script(IN_PROCESS) for _ in range(rounds)]
    rows.append(("broker in this process to first acknowledged record", 0.150, [pair[1] for pair in pairs]))
    rows.append(("the same, the first of a process: imports included", None, [pair[0] for pair in pairs]))
    clusters = [script(CLUSTER)[0] for _ in range(max(rounds // 3, 1))]
    rows.append(("three nodes to first acknowledged record", 2.0, clusters))
    missed = False
    for title, reach, measured in rows:
        median = statistics.median(measured)
        late = reach is not None and median > reach
        missed = missed or late
        verdict = "" if reach is None else f"reach {reach * 1000:5.0f} ms"
        best = f"best {min(measured) * 1000:5.0f}"
        print(f"{title:<55} {median * 1000:7.0f} ms   {best}   {verdict}{'  MISSED' if late else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

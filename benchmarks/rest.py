"""Produce requests to REST proxies over one broker: requests/s, records/s, p99, resident memory.

    python -m benchmarks.rest [--beside URL --beside-pid PID] [--seconds S] [--connections N] [--rounds N]

Starts a broker and `klamm rest`. With --beside another proxy with the v2 interface is measured in turns with it, over
the same broker (printed at the start with --port): start that proxy against 127.0.0.1:PORT first. Every connection
sends its next request when the last one is answered. Writes results/rest.json.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import klamm.testing
from benchmarks.http_load import HttpLoad, klamm_command, measure_load, request_bytes, start_service

RESULTS = Path(__file__).parent / "results" / "rest.json"
LOADS = {"one record": 1, "100 records": 100}
VALUE = {"id": 1, "item": "espresso", "note": "x" * 60}


def produce_load(url: str, topic: str, records: int) -> HttpLoad:
    """Requests with so many records each."""
    body = json.dumps({"records": [{"value": VALUE}] * records}).encode()
    request = request_bytes(url, "POST", f"/topics/{topic}", body, "application/vnd.kafka.json.v2+json")
    return HttpLoad(url, itertools.repeat(request), expected=b'"offset":')


def measure(url: str, pid: int | None, topic: str, records: int, seconds: float, connections: int) -> dict[str, float]:
    row = measure_load(produce_load(url, topic, records), pid, seconds, connections)
    return row | {"records_per_s": row["requests_per_s"] * records}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="URL", help="another proxy, over the broker on --port")
    parser.add_argument("--beside-pid", type=int, metavar="PID", help="its process, for its memory")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs, instead of one of its own")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.beside and not options.bootstrap:
        parser.error("--beside needs --bootstrap: both proxies use one broker")
    if options.bootstrap:
        return run(options, options.bootstrap)
    with klamm.testing.broker(child=True) as broker:
        return run(options, broker.bootstrap)


def run(options: argparse.Namespace, bootstrap: str) -> int:
    service = start_service(klamm_command("rest"), "/topics", bootstrap=bootstrap)
    try:
        proxies = {"klamm": (service.url, service.pid)}
        if options.beside:
            proxies["beside"] = (options.beside, options.beside_pid)
        return report(options, bootstrap, proxies)
    finally:
        service.close()


def report(options: argparse.Namespace, bootstrap: str, proxies: dict[str, tuple[str, int | None]]) -> int:
    from klamm.client import Admin

    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    for load, records in LOADS.items():
        topic = f"rest-{records}-{time.time_ns()}"
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(topic, num_partitions=4)
        for _ in range(options.rounds):
            # In turns: both have the same share of a noisy machine.
            for name, (url, pid) in proxies.items():
                measured = measure(url, pid, topic, records, options.seconds, options.connections)
                runs.setdefault(load, {}).setdefault(name, []).append(measured)
    medians = {
        load: {
            name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            for name, rows in by_name.items()
        }
        for load, by_name in runs.items()
    }
    for load, by_name in medians.items():
        for name, row in by_name.items():
            print(f"{load:12} {name:8} " + "  ".join(f"{key} {value:,.1f}" for key, value in row.items()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"settings": vars(options), "medians": medians, "runs": runs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

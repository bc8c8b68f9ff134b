"""`python -m benchmarks`: Klamm and Apache Kafka under the same loads; see README.md."""

import argparse
import signal
import sys
from typing import Any

from compat import toolchain

PIPELINE = {
    "spark": "source and sink beside Spark's own Kafka connector",
    "joins": "batches joined with small and large tables",
    "tables": "pull queries of a table of a million keys",
    "pipeline_runs": "klamm pipeline run --once, and its first error",
}
"""Pipelines have benchmarks of their own: they need Spark, and no Kafka."""


def main() -> int:
    beside = ", ".join(f"python -m benchmarks.{name}" for name in PIPELINE)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=f"Pipelines on Spark are measured by {beside}."
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one run each: a smoke test")
    parser.add_argument("--only", metavar="PATTERN", help="loads whose name contains one of these (comma, * allowed)")
    parser.add_argument("--broker", choices=("kafka", "klamm"), help="measure this one alone; nothing is judged")
    parser.add_argument("--repeats", type=int, help="runs of each load (3)")
    parser.add_argument("--in-turns", action="store_true", help="both brokers up, each load on one after the other")
    parser.add_argument("--growth", action="store_true", help="instead: cost per request at 1 MB and at 10 GB of log")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="how far the log grows for --growth")
    parser.add_argument("--beside-registry", metavar="COMMAND", help="a registry beside Klamm's; see registry.py")
    parser.add_argument(
        "--beside-rest", metavar="COMMAND", help="a REST proxy beside Klamm's, over {bootstrap} on {port}"
    )
    parser.add_argument("--list", action="store_true", help="name the loads and end")
    options = parser.parse_args()

    from benchmarks import compare, loaders, report, service_loads
    from benchmarks.growth import growth
    from benchmarks.security_loads import SECURITY

    loads = compare.chosen(options.only)
    if options.list:
        for load in loads:
            print(f"{load.name:24} {load.title}")
        for name, title in PIPELINE.items():
            print(f"python -m benchmarks.{name:13} {title}")
        return 0
    commands = {"registry": options.beside_registry, "rest": options.beside_rest}
    service_loads.COMMANDS.update({service: command for service, command in commands.items() if command})
    scale, repeats = (0.1, options.repeats or 1) if options.quick else (1.0, options.repeats)
    # An exception unwinds the stack, so that broker, topics and page cache are cleaned up as well.
    signal.signal(signal.SIGTERM, loaders.exit_on_signal)
    grown: list[dict[str, Any]] = []
    rows: list[compare.Row] = []
    try:
        toolchain.require("gcc", *(() if options.broker == "klamm" else ("mvn", "java")), what="make bench")
        if options.growth:
            kinds = (options.broker,) if options.broker else ("klamm",)
            for kind in kinds:
                grown += growth(kind, gigabytes=options.gigabytes, scale=scale)
        else:
            kinds = (options.broker,) if options.broker else ("kafka", "klamm")
            rows = compare.compare(kinds, loads, scale=scale, repeats=repeats, in_turns=options.in_turns)
    except toolchain.ToolMissing as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    is_complete = not (options.quick or options.only or options.broker)
    # Measured apart from the rest, and kept apart: a run of other rows must not replace them.
    is_security = not (options.quick or options.broker) and all(load in SECURITY for load in loads)
    name = "growth" if options.growth else "latest" if is_complete else "security" if is_security else "partial"
    held = report.publish(name, rows, grown, quick=options.quick, only=options.only, repeats=repeats or 3)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

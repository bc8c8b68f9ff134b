"""`python -m benchmarks`: Klamm and Apache Kafka under the same loads; see README.md."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from compat import toolchain

if TYPE_CHECKING:
    from benchmarks.loads import Load

OTHERS = {
    "spark": "source and sink beside Spark's own Kafka connector",
    "joins": "batches joined with small and large tables",
    "tables": "pull queries of a table of a million keys",
    "pipeline_runs": "klamm pipeline run --once, and its first error",
    "console": "pages and memory of the console over a cluster of 100,000 partitions",
    "tls_send": "CPU of a file sent over TLS beside a plain SSLSocket",
}
"""Pipelines, the console and TLS have benchmarks of their own: they need Spark or a browser, and no Kafka."""


def name_results(loads: Collection[Load], options: argparse.Namespace) -> str:
    """Return the file of the results of some loads: a run of other loads must not replace those of a family."""
    from benchmarks.metrics_loads import METRICS
    from benchmarks.security_loads import SECURITY
    from benchmarks.service_loads import SERVICES

    # Security is judged beside Kafka; services and metrics are judged on Klamm's broker alone.
    families = {"security": (SECURITY, not options.broker), "services": (SERVICES, True), "metrics": (METRICS, True)}
    for name, (family, is_judged) in families.items():
        if is_judged and not options.quick and all(load in family for load in loads):
            return name
    return "partial"


def main() -> int:
    others = ", ".join(f"python -m benchmarks.{name}" for name in OTHERS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=f"Pipelines, console and TLS are measured by {others}."
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

    loads = compare.chosen(options.only)
    if options.list:
        for load in loads:
            print(f"{load.name:24} {load.title}")
        for name, title in OTHERS.items():
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
    name = "growth" if options.growth else "latest" if is_complete else name_results(loads, options)
    held = report.publish(name, rows, grown, quick=options.quick, only=options.only, repeats=repeats or 3)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kafka's own command names: `klamm kafka-topics --create ...` takes Kafka's flags and prints what Kafka prints.

One file per script. Each has `main(args) -> int`, the exit code; flags are declared with `options`, and the sentences
that scripts may parse are those of Apache Kafka 4.3. The help texts are our own.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

import click

SCRIPTS: Final = {
    "kafka-topics": "topics",
    "kafka-console-producer": "console_producer",
    "kafka-console-consumer": "console_consumer",
    "kafka-consumer-groups": "consumer_groups",
    "kafka-configs": "configs",
    "kafka-get-offsets": "get_offsets",
    "kafka-leader-election": "leader_election",
    "kafka-reassign-partitions": "reassign_partitions",
    "kafka-delete-records": "delete_records",
    "kafka-log-dirs": "log_dirs",
    "kafka-transactions": "transactions",
    "kafka-dump-log": "dump_log",
    "kafka-producer-perf-test": "producer_perf",
    "kafka-consumer-perf-test": "consumer_perf",
    "kafka-metadata-quorum": "metadata_quorum",
    "kafka-features": "features",
    "kafka-cluster": "cluster",
    "kafka-broker-api-versions": "broker_api_versions",
    "kafka-acls": "acls",
    "kafka-delegation-tokens": "delegation_tokens",
    "kafka-server-start": "server_start",
    "kafka-storage": "storage",
    "zookeeper-server-start": "zookeeper_server_start",
}
"""Script to module."""


class Script(click.Command):
    """A command whose arguments are left to the script's own parser: Kafka's rules are not click's."""

    def __init__(self, name: str, module: str) -> None:
        # Hidden: the help of `klamm` lists them in one sentence of its own.
        super().__init__(name, callback=self._run, hidden=True, add_help_option=False)
        self._module = module

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep everything as it was written."""
        ctx.params["args"] = list(args)
        return []

    def _run(self, args: list[str]) -> None:
        from klamm.cli.kafka.script import run

        main = importlib.import_module(f"klamm.cli.kafka.{self._module}").main
        code = run(main, args)
        if code:
            raise SystemExit(code)


def script_name(written: str) -> str | None:
    """The script meant by `kafka-topics`, `kafka-topics.sh` or `./bin/kafka-topics.sh`."""
    name = os.path.basename(written)
    for ending in (".sh", ".bat"):
        name = name.removesuffix(ending)
    return name if name in SCRIPTS else None


def find_command(written: str) -> click.Command | None:
    """The command of a script, by any way of writing its name."""
    name = script_name(written)
    return None if name is None else Script(name, SCRIPTS[name])

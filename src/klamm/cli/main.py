"""The way in: `klamm` and the list of its nouns.

Commands are imported when they are asked for, so `klamm --help` does not wait for a broker it will not start.
Exit codes: 0 done, 1 refused with one sentence on standard error, 2 the command line itself was wrong.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

import klamm

COMMANDS: Final = {
    "group": "klamm.cli.group:group",
    "server": "klamm.cli.server:server",
    "storage": "klamm.cli.storage:storage",
    "txn": "klamm.cli.txn:txn",
    "up": "klamm.cli.up:up",
}


class LazyGroup(click.Group):
    """A group whose commands are found by name in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All nouns, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command called `cmd_name`."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(klamm.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Klamm: an event-streaming platform that speaks Apache Kafka's protocol."""


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="klamm")

"""`klamm shims`: Kafka's scripts as files, so that what calls `kafka-topics.sh` finds it."""

from __future__ import annotations

import click

from klamm.cli.command_errors import refuses

_SCRIPT = """#!/bin/sh
# Kafka's {name}, answered by Klamm.
exec {klamm} {name} "$@"
"""


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Show the difference and change nothing.")
@click.option("-y", "--yes", "--force", "yes", is_flag=True, help="Replace files of the same names.")
@refuses
def shims(*, folder: str, dry_run: bool, yes: bool) -> None:
    """Write kafka-topics.sh and the other scripts into DIR.

    Put DIR into PATH, or give it to programs that need Kafka's bin folder.
    """
    import os
    import shlex
    import sys

    from klamm.cli.command_errors import CommandRefusal
    from klamm.cli.confirmation import ConfirmationPlan, show_dry_run
    from klamm.cli.kafka import SCRIPTS

    # An absolute path: the scripts must work without the virtual environment in PATH.
    beside = os.path.join(os.path.dirname(sys.executable), "klamm")
    command = [beside] if os.access(beside, os.X_OK) else [sys.executable, "-m", "klamm"]
    klamm = " ".join(shlex.quote(word) for word in command)
    paths = {name: os.path.join(folder, f"{name}.sh") for name in sorted(SCRIPTS)}
    taken = {path for path in paths.values() if os.path.exists(path)}
    if dry_run:
        show_dry_run(ConfirmationPlan([("~" if path in taken else "+", path) for path in paths.values()]))
        return
    if taken and not yes:
        raise CommandRefusal(f"{min(taken)} is there already; choose another folder or write --yes")
    os.makedirs(folder, exist_ok=True)
    for name, path in paths.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_SCRIPT.format(name=name, klamm=klamm))
        # The mode of os.open applies to new files only, and is masked by umask.
        os.chmod(path, 0o755)  # noqa: S103 - a script is there to be run
    click.echo(f"Wrote {len(paths)} scripts into {folder}.")

"""`klamm pipeline snapshot` and `snapshots`: named restore points of a pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from klamm.cli.command_errors import refuses
from klamm.cli.output import files_output_option, show
from klamm.cli.pipeline_control import request_and_wait
from klamm.cli.pipeline_state import state_option
from klamm.model.units import pluralize

if TYPE_CHECKING:
    from klamm.pipeline.sql.status import Home


@click.command("snapshot")
@click.argument("name", metavar="PIPELINE")
@click.option("--as", "label", metavar="LABEL", help="Its name.  [default: the time]")
@click.option("--remove", metavar="LABEL", help="Remove one instead.")
@click.option(
    "--wait", "wait_s", default=150.0, show_default=True, metavar="SECONDS", help="How long to wait for batches to end."
)
@state_option
@refuses
def snapshot(*, name: str, label: str | None, remove: str | None, wait_s: float, state: str | None) -> None:
    """Keep the checkpoints of a pipeline as they are between two batches; run FILE --from LABEL starts from them.

    A pipeline that runs is paused for the moment that takes.
    """
    from klamm.pipeline.sql.snapshots import remove_snapshot, take_snapshot
    from klamm.pipeline.sql.state_folders import find_home

    home = find_home(name, state)
    if remove is not None:
        remove_snapshot(home, remove)
        click.echo(f"Removed snapshot {remove} of {name}.")
        return
    with _between_batches(home, name, state, wait_s):
        taken = take_snapshot(home, label, time.time_ns() // 1_000_000)
    click.echo(f"Kept {pluralize(len(taken.batches), 'checkpoint')} of {name} as {taken.label}.")


@contextlib.contextmanager
def _between_batches(home: Home, name: str, state: str | None, wait_s: float) -> Iterator[None]:
    """Hold a pipeline between two batches: its lock if it does not run, otherwise all its queries paused."""
    from klamm.pipeline.sql.status import ControlAction

    if not home.running():
        with home.hold_lock():
            yield
        return
    paused_before = home.read_paused()
    request_and_wait(ControlAction.PAUSE, name, None, state, wait_s, ("paused", "failed", "done"))
    try:
        yield
    finally:
        for query in home.read_paused() - paused_before:
            request_and_wait(ControlAction.RESUME, name, query, state, wait_s, None)


@click.command("snapshots")
@click.argument("name", metavar="PIPELINE")
@state_option
@files_output_option
@refuses
def snapshots(*, name: str, state: str | None, output: str) -> None:
    """List the snapshots of a pipeline, with the newest batch of each query."""
    from klamm.model.units import format_time
    from klamm.pipeline.sql.snapshots import list_snapshots
    from klamm.pipeline.sql.state_folders import find_home

    rows = [
        {
            "snapshot": taken.label,
            "taken": format_time(taken.taken_ms),
            "queries": len(taken.batches),
            "batches": ", ".join(f"{query} {batch}" for query, batch in taken.batches.items()),
        }
        for taken in list_snapshots(find_home(name, state))
    ]
    show(rows, output, f"{name} has no snapshots", ("snapshot", "taken", "queries", "batches"))

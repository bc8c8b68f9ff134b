"""`klamm pipeline pause`, `resume` and `restart`: requests to the process that runs a pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.pipeline_state import state_option

if TYPE_CHECKING:
    from klamm.pipeline.sql.status import ControlAction, Home

_POLL_S: Final = 0.1
_wait_option = click.option(
    "--wait", "wait_s", default=150.0, show_default=True, metavar="SECONDS", help="How long to wait for it."
)


@click.command("pause")
@click.argument("name", metavar="PIPELINE")
@click.argument("query", required=False)
@_wait_option
@state_option
@refuses
def pause(*, name: str, query: str | None, wait_s: float, state: str | None) -> None:
    """End a query after its batch and keep it off, also when the pipeline is started again."""
    from klamm.pipeline.sql.status import ControlAction

    request_and_wait(ControlAction.PAUSE, name, query, state, wait_s, ("paused", "failed", "done"))
    click.echo(f"Paused {_target(name, query)}.")


@click.command("resume")
@click.argument("name", metavar="PIPELINE")
@click.argument("query", required=False)
@_wait_option
@state_option
@refuses
def resume(*, name: str, query: str | None, wait_s: float, state: str | None) -> None:
    """Start a paused query again, where it ended."""
    from klamm.pipeline.sql.status import ControlAction

    request_and_wait(ControlAction.RESUME, name, query, state, wait_s, None)
    click.echo(f"Resumed {_target(name, query)}.")


@click.command("restart")
@click.argument("name", metavar="PIPELINE")
@click.argument("query", required=False)
@_wait_option
@state_option
@refuses
def restart(*, name: str, query: str | None, wait_s: float, state: str | None) -> None:
    """End a query after its batch and start it again; a failed one starts at once."""
    from klamm.pipeline.sql.status import ControlAction

    request_and_wait(ControlAction.RESTART, name, query, state, wait_s, None)
    click.echo(f"Restarted {_target(name, query)}.")


def _target(name: str, query: str | None) -> str:
    return f"{query} of {name}" if query else name


def request_and_wait(
    action: ControlAction, name: str, query: str | None, root: str | None, wait_s: float, until: tuple[str, ...] | None
) -> None:
    """Send a request and wait for its answer, and for `until`: states that the queries have afterwards."""
    from klamm.pipeline.sql.state_folders import find_home

    folder = find_home(name, root)
    if not folder.running():
        raise CommandRefusal(f"{name} does not run")
    request_id = folder.send_request(action, query)
    deadline = time.monotonic() + wait_s
    while not _is_done(folder, request_id, query, until):
        if not folder.running():
            raise CommandRefusal(f"{name} ended before it answered")
        if time.monotonic() > deadline:
            raise CommandRefusal(f"{name} has not done it {wait_s:.0f} s after the request to {action}")
        # Polled: the answer is in a file that the process rewrites.
        time.sleep(_POLL_S)


def _is_done(folder: Home, request_id: str, query: str | None, until: tuple[str, ...] | None) -> bool:
    status = folder.status()
    answer = status.get("requests", {}).get(request_id)
    if answer is None:
        return False
    if answer:
        raise CommandRefusal(answer)
    states = [values.get("state") for name, values in status["queries"].items() if query in (None, name)]
    return until is None or all(state in until for state in states)

"""Rows for people as a table, and for programs as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

UNBOUND = 10_000
"""Width of a table that goes into a pipe: nothing is cut there."""

bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="A broker of the cluster.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the answer.",
)


def show(rows: Sequence[dict[str, Any]], output: str, empty: str) -> None:
    """Print rows in the form asked for; `empty` is what a person reads when there are none."""
    if output == "json":
        click.echo(json.dumps(list(rows), indent=2))
    elif not rows:
        click.echo(empty)
    else:
        show_table(rows)


def show_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of equal keys, the keys as heads."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in rows[0]:
        numbers = all(isinstance(row[head], int | None) for row in rows)
        table.add_column(head.upper().replace("_", " "), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console() if sys.stdout.isatty() else Console(width=UNBOUND, soft_wrap=True)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _cell(value: Any) -> str:
    from rich.markup import escape

    if isinstance(value, list):
        return escape(",".join(map(str, value))) or "-"
    return "-" if value is None or value == "" else escape(str(value))

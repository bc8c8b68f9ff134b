"""Output of `consume` and `tail`: records as they arrive, each flushed, so that a pipe gets it at once."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.output import csv_lines, json_line, printable, yaml_lines
from klamm.cli.record_format import Decodings, compile_format, format_data, record_row
from klamm.cli.signals import leave_full_pipe
from klamm.model.units import format_time

if TYPE_CHECKING:
    from klamm.client.types import Record

LINES: Final = "lines"
"""The default at a terminal: one line each, no columns."""
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_HEADS: Final = ("TOPIC", "PARTITION", "OFFSET", "TIME", "KEY", "VALUE")
_TO_THE_RIGHT: Final = frozenset({1, 2})
_MEASURED: Final = 50
"""The widths of a table's columns are taken from this many records."""


def write_records(records: Iterable[Record], form: str, decode: Decodings, *, eager: bool) -> None:
    """Write records; with `eager` none is held back until more arrive."""
    if form == "json":
        _write_json(record_row(record, decode) for record in records)
    elif form == "csv":
        click.echo(csv_lines([], _COLUMNS)[0])
        for record in records:
            click.echo(csv_lines([record_row(record, decode)])[1])
            sys.stdout.flush()
    elif form == "table":
        _write_table((_cells(record, decode) for record in records), eager=eager)
    else:
        line = {"jsonl": _json_line, "yaml": _yaml_lines}.get(form, _line)
        for record in records:
            click.echo(line(record, decode))
            sys.stdout.flush()


def write_formatted(records: Iterable[Record], template: str) -> None:
    """Write records in the format of kcat's `-f`; ValueError for an unknown letter."""
    made = compile_format(template)
    for record in records:
        # Bytes, not text: -f may write binary values as they are.
        sys.stdout.buffer.write(made(record))
        sys.stdout.buffer.flush()


def _json_line(record: Record, decode: Decodings) -> str:
    return json_line(record_row(record, decode))


def _yaml_lines(record: Record, decode: Decodings) -> str:
    return "\n".join(yaml_lines([record_row(record, decode)]))


def _write_json(rows: Iterator[dict[str, Any]]) -> None:
    """One list, item by item; closed also when the reader stops early."""
    empty = True
    try:
        for row in rows:
            text = textwrap.indent(json.dumps(row, indent=2, ensure_ascii=False), "  ")
            click.echo(("[\n" if empty else ",\n") + text, nl=False)
            empty = False
    # The list is closed even on Ctrl-C: half a JSON document cannot be parsed.
    except KeyboardInterrupt:
        # First, since closing the list writes too.
        leave_full_pipe()
        click.echo("[]" if empty else "\n]")
        raise
    click.echo("[]" if empty else "\n]")


def _cells(record: Record, decode: Decodings) -> list[str]:
    return [
        printable(record.topic),
        str(record.partition),
        str(record.offset),
        format_time(record.timestamp),
        for_person(record.key, decode.key),
        for_person(record.value, decode.value),
    ]


def _write_table(rows: Iterator[list[str]], *, eager: bool) -> None:
    """Columns as wide as the first records need; a longer cell later on pushes the rest of its line."""
    # A command that follows cannot wait for 50 records to measure.
    first = list(itertools.islice(rows, 1 if eager else _MEASURED))
    if not first:
        return
    widths = [max(len(head), *(len(row[i]) for row in first)) for i, head in enumerate(_HEADS)]

    def line(cells: Iterable[str]) -> str:
        placed = (
            cell.rjust(width) if i in _TO_THE_RIGHT else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(placed).rstrip()

    click.secho(line(_HEADS), bold=True)
    for row in itertools.chain(first, rows):
        click.echo(line(row))
        sys.stdout.flush()


def _line(record: Record, decode: Decodings) -> str:
    """A record for a person: where, when, key and value on one line."""
    where = click.style(f"{printable(record.topic)}/{record.partition}@{record.offset}", dim=True)
    when = click.style(format_time(record.timestamp), dim=True)
    key = click.style(for_person(record.key, decode.key), bold=True)
    return f"{where}  {when}  {key}  {for_person(record.value, decode.value)}"


def for_person(data: Any, decode: str) -> str:
    """Bytes as a person reads them: what is no text is escaped, and nothing can move the cursor."""
    if data is None:
        return "(null)"
    if decode in ("hex", "base64"):
        return str(format_data(data, decode))
    return printable(bytes(data).decode(errors="backslashreplace"))

"""`klamm storage dump`: print a file of a data folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from klamm.cli.command_errors import refuses
from klamm.cli.output import csv_lines, files_output_option, yaml_lines

if TYPE_CHECKING:
    from klamm.storage.dump import DumpRow

DumpLine = tuple[str, str | None]
"""The kind of a row and its printed form; None is not printed."""
_SAMPLE = 100
"""Rows that are read before the first is printed, to know how wide columns are."""
_ASIDE = ("record", "damage", "state")
"""Kinds that are printed as lines of their own, not as rows of the table."""


@click.command()
@click.argument("file", metavar="FILE")
@files_output_option
@click.option("--records", "--deep", "records", is_flag=True, help="The records inside of batches too.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after so many rows.")
@refuses
def dump(*, file: str, output: str, records: bool, limit: int | None) -> None:
    """Print what a file of a data folder holds.

    FILE is a segment, an index, a producer or metadata snapshot, a checkpoint, meta.properties, partition.metadata or
    quorum-state, recognised by its name. With --records, the records of __consumer_offsets, __transaction_state and the
    metadata log are decoded. Ends with exit code 1 when the file is damaged.
    """
    from itertools import islice

    from klamm.storage.dump import dump_file

    rows: Iterable[DumpRow] = islice(dump_file(file, records=records, metadata=_decode_metadata), limit)
    damaged = False
    for kind, line in _FORMS[output](rows):
        # Counted also when the form leaves the line out: the exit code must not depend on -o.
        damaged = damaged or kind == "damage"
        if line is not None:
            click.echo(line)
    if damaged:
        raise SystemExit(1)


def _decode_metadata(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    from klamm.metadata.records import decode_versioned_record
    from klamm.metadata.secrets import hide_secrets
    from klamm.model.errors import RemoteProtocolError
    from klamm.storage.internal_topics import decode_plain, plain

    try:
        record, version = decode_versioned_record(value or b"")
    except RemoteProtocolError as error:
        # A record of a newer Kafka: its bytes are still worth showing.
        return {**decode_plain(key, value), "unread": str(error)}
    return {"type": type(record).__name__, "version": version, "data": plain(hide_secrets(record))}


def _json_lines(rows: Iterable[DumpRow]) -> Iterator[DumpLine]:
    for kind, fields in rows:
        yield kind, json.dumps({"kind": kind, **fields}, ensure_ascii=False)


def _json_list(rows: Iterable[DumpRow]) -> Iterator[DumpLine]:
    """One document, written row by row: a file may be larger than memory."""
    before = None
    yield "begin", "["
    for kind, line in _json_lines(rows):
        # One row behind: whether a comma follows is known with the next row.
        yield kind, None if before is None else f"  {before},"
        before = line
    yield "end", "]" if before is None else f"  {before}\n]"


def _yaml(rows: Iterable[DumpRow]) -> Iterator[DumpLine]:
    for kind, fields in rows:
        yield kind, "\n".join(yaml_lines([{"kind": kind, **fields}]))


def _csv(rows: Iterable[DumpRow]) -> Iterator[DumpLine]:
    """The rows of the table; what stands beside it (records, damage) has other columns and is left out."""
    first = True
    for kind, fields in rows:
        if kind in _ASIDE:
            yield kind, None
        else:
            yield kind, "\n".join(csv_lines([fields])[0 if first else 1 :])
            first = False


def _text_lines(rows: Iterable[DumpRow]) -> Iterator[DumpLine]:
    """A table whose columns are as wide as the first rows need, and lines aside for what is no row of it."""
    stream = iter(rows)
    sample = [row for row, _ in zip(stream, range(_SAMPLE), strict=False)]
    widths: dict[str, int] = {}
    for kind, fields in sample:
        if kind not in _ASIDE:
            for name, value in fields.items():
                widths[name] = max(widths.get(name, len(name)), len(_cell(value)))
    if widths:
        yield "head", "  ".join(name.rjust(width) for name, width in widths.items()).rstrip()
    yield from _lines(sample, widths)
    yield from _lines(stream, widths)


def _lines(rows: Iterable[DumpRow], widths: dict[str, int]) -> Iterator[DumpLine]:
    for kind, fields in rows:
        if kind in _ASIDE:
            pairs = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
            yield kind, f"  | {pairs}" if kind == "record" else f"{kind}: {pairs}"
        else:
            cells = [_cell(value).rjust(widths.get(name, 0)) for name, value in fields.items()]
            yield kind, "  ".join(cells).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _value(value: Any) -> str:
    if isinstance(value, str) and value and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False)


_FORMS = {"table": _text_lines, "json": _json_list, "jsonl": _json_lines, "yaml": _yaml, "csv": _csv}

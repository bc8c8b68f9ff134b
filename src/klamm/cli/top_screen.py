"""The tables of `klamm top` at a terminal: as many columns and rows as fit; pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.cli.output import cell

TopRow = Mapping[str, Any]

ROWS_MAX: Final = 10
"""Topics, groups and APIs of each table where the height is unlimited."""


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column of a table; those with the largest `rank` are left out first where the terminal is too narrow."""

    field: str
    title: str
    rank: int = 0


COLUMNS: Final[Mapping[str, tuple[TopColumn, ...]]] = {
    "nodes": (
        TopColumn("node", "NODE"),
        TopColumn("address", "ADDRESS", 4),
        TopColumn("controller", "CTRL", 6),
        TopColumn("records_per_s", "REC/S"),
        TopColumn("bytes_in_per_s", "IN/S"),
        TopColumn("bytes_out_per_s", "OUT/S"),
        TopColumn("requests_per_s", "REQ/S", 3),
        TopColumn("busy_percent", "BUSY%", 1),
        TopColumn("connections", "CONNS", 8),
        TopColumn("leaders", "LEAD", 7),
        TopColumn("under_replicated", "URP", 2),
        TopColumn("memory_bytes", "MEM", 5),
    ),
    "topics": (
        TopColumn("topic", "TOPIC"),
        TopColumn("records_per_s", "REC/S", 1),
        TopColumn("bytes_in_per_s", "IN/S"),
        TopColumn("bytes_out_per_s", "OUT/S"),
    ),
    "groups": (
        TopColumn("group", "GROUP"),
        TopColumn("members", "MEMBERS", 1),
        TopColumn("lag", "LAG"),
        TopColumn("lag_seconds", "LAG S"),
    ),
    "requests": (
        TopColumn("request", "REQUEST"),
        TopColumn("per_s", "REQ/S", 1),
        TopColumn("p50_ms", "P50"),
        TopColumn("p99_ms", "P99"),
    ),
}
_WORDS: Final = frozenset({"node", "address", "controller", "topic", "group", "request"})
"""Columns to the left; the others are numbers, which stand to the right."""
_SEPARATOR: Final = "  "


@dataclass(frozen=True, slots=True)
class TopLine:
    """A line of the screen; titles and alarms are emphasised when it is printed."""

    text: str
    is_title: bool = False
    is_alarm: bool = False


def screen_lines(tables: Mapping[str, Sequence[TopRow]], width: int | None, height: int | None) -> list[TopLine]:
    """Return the lines of all tables, none longer than `width`, at most `height`; None is unlimited."""
    shown = dict(tables, topics=[row for row in tables["topics"] if not _is_idle_internal(row)])
    # Nodes that do not answer first, so that they are seen where not all nodes fit.
    shown["nodes"] = sorted(tables["nodes"], key=_answers)
    counts = share_rows({title: len(rows) for title, rows in shown.items()}, height)
    lines: list[TopLine] = []
    for title, rows in shown.items():
        if lines:
            lines.append(TopLine(""))
        count = counts[title]
        more = f" ({count} of {len(rows)})" if len(rows) > count else ""
        lines.append(TopLine(title + more, is_title=True))
        lines += _table(COLUMNS[title], rows[:count], width) if count else [TopLine("none")]
    cut = [TopLine(line.text[:width], line.is_title, line.is_alarm) for line in lines]
    return cut if height is None else cut[:height]


def share_rows(counts: Mapping[str, int], height: int | None) -> dict[str, int]:
    """Return how many rows each table may show: tables with few rows leave the rest of the height to the others."""
    if height is None:
        return {title: count if title == "nodes" else min(count, ROWS_MAX) for title, count in counts.items()}
    shares = {title: min(count, 1) for title, count in counts.items()}
    # A title and a heading ("none" for an empty table) for each, and an empty line between two.
    available = height - (3 * len(counts) - 1) - sum(shares.values())
    while available > 0:
        waiting = [title for title, count in counts.items() if shares[title] < count]
        if not waiting:
            break
        for title in waiting[:available]:
            shares[title] += 1
        available -= len(waiting)
    return shares


def choose_columns(columns: Sequence[TopColumn], widths: Mapping[str, int], width: int | None) -> list[TopColumn]:
    """Return the columns that fit into `width`, in order; those of rank 0 always."""
    chosen = list(columns)
    while width is not None and sum(widths[c.field] for c in chosen) + len(_SEPARATOR) * (len(chosen) - 1) > width:
        last = max(chosen, key=_rank)
        if not last.rank:
            break
        chosen.remove(last)
    return chosen


def _table(columns: Sequence[TopColumn], rows: Sequence[TopRow], width: int | None) -> list[TopLine]:
    live = [row for row in rows if _answers(row)]
    cells = [{column.field: _cell(column.field, row[column.field], width) for column in columns} for row in live]
    widths = {c.field: max([len(c.title), *(len(line[c.field]) for line in cells)]) for c in columns}
    chosen = choose_columns(columns, widths, width)
    numeric = {c.field for c in chosen if c.field not in _WORDS}

    def line(words: Mapping[str, str]) -> TopLine:
        placed = (
            words[c.field].rjust(widths[c.field]) if c.field in numeric else words[c.field].ljust(widths[c.field])
            for c in chosen
        )
        return TopLine(_SEPARATOR.join(placed).rstrip())

    silent = [TopLine(_silence(row), is_alarm=True) for row in rows if not _answers(row)]
    heading = line({column.field: column.title for column in columns})
    return [TopLine(heading.text, is_title=True), *silent, *map(line, cells)]


def _cell(field: str, value: Any, width: int | None) -> str:
    # Rates of bytes as sizes; the heading says that they are for a second.
    text = cell("_bytes" if field.startswith("bytes_") else field, value)
    longest = None if width is None else max(width // 2, 16)
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"


def _silence(row: TopRow) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(row["no_answer_since_timestamp_ms"] / 1000))
    return f"{cell('node', row['node'])}{_SEPARATOR}{row['address']} does not answer since {since}"


def _answers(row: TopRow) -> bool:
    return row.get("no_answer_since_timestamp_ms") is None


def _is_idle_internal(row: TopRow) -> bool:
    is_idle = not (row["records_per_s"] or row["bytes_in_per_s"] or row["bytes_out_per_s"])
    return is_idle and str(row["topic"]).startswith("__")


def _rank(column: TopColumn) -> int:
    return column.rank

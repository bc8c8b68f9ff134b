"""Output of commands: a table at a terminal; JSON, JSON lines, YAML or CSV for programs.

Rows are dicts with the same keys. Programs get raw numbers under stable names; in a table a column called `..._bytes`
is shown as a size and one called `..._ms` as a duration, and control characters are shown escaped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click

from klamm.model.units import format_duration, format_size, format_time

FORMATS: Final = ("table", "json", "jsonl", "yaml", "csv")
OutputRow = dict[str, Any]
_CSV_SEPARATOR: Final = ";"
"""Between the items of a list inside one CSV cell."""
_WIDTH_UNKNOWN: Final = 80
_LAST_MIN: Final = 16
"""A last column narrower than this is not worth being wrapped."""


def _choose_format(_: click.Context, __: click.Parameter, value: str | None) -> str:
    return value or default_format()


def default_format() -> str:
    """A table on a terminal; one JSON object per line elsewhere."""
    return "table" if sys.stdout.isatty() else "jsonl"


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    callback=_choose_format,
    help="Output format.  [default: table on a terminal, jsonl elsewhere]",
)


files_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="Output format.",
)
"""For commands about files: their output is read by people, also in the log of a job."""


def note(sentence: str) -> None:
    """Print a remark on standard error, where it does not disturb the output."""
    click.echo(f"klamm: {sentence}", err=True)


def show(rows: Sequence[OutputRow], output: str, empty: str = "", columns: Sequence[str] = ()) -> None:
    """Print rows; `empty` is what a person reads when there are none, `columns` the head of a CSV file then."""
    # Programs get an empty list or a header; only people need a sentence for nothing.
    if output == "table" and not rows:
        if empty:
            click.echo(empty)
        return
    for line in csv_lines(rows, columns) if output == "csv" else render(rows, output):
        click.echo(line)


def show_one(value: OutputRow, output: str, table: Callable[[], None] | None = None) -> None:
    """Print one object; `table` prints it at a terminal, a single row without it."""
    if output == "table" and table is not None:
        table()
    elif output == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif output == "yaml":
        click.echo("\n".join(yaml_lines(value)))
    else:
        show([value], output)


def render(rows: Sequence[OutputRow], output: str) -> Iterable[str]:
    """The lines of rows in one of FORMATS."""
    if output == "json":
        return [json.dumps(list(rows), indent=2, ensure_ascii=False)]
    if output == "jsonl":
        return [json_line(row) for row in rows]
    if output == "yaml":
        return yaml_lines(list(rows))
    if output == "csv":
        return csv_lines(rows)
    return table_lines(rows)


def json_line(row: OutputRow) -> str:
    """One row as one line."""
    return json.dumps(row, ensure_ascii=False, separators=(", ", ": "))


def csv_lines(rows: Sequence[OutputRow], columns: Sequence[str] = ()) -> list[str]:
    """Heads and rows with commas, quoted where they must be; `columns` are the heads when there are no rows."""
    heads = list(rows[0]) if rows else list(columns)
    if not heads:
        return []
    return [_csv_line(heads), *(_csv_line([_csv_cell(value) for value in row.values()]) for row in rows)]


def _csv_line(cells: Sequence[str]) -> str:
    import csv
    import io

    text = io.StringIO()
    # With this terminator the writer quotes cells that contain \r or \n; echo adds the line end.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n")


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return _CSV_SEPARATOR.join(_csv_cell(item) for item in value)
    return str(value)


def yaml_lines(value: Any, indent: int = 0) -> list[str]:
    """Block YAML; every scalar is JSON, which is YAML too, so nothing is taken for something it is not."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        lines = []
        for key, item in value.items():
            name = key if key.replace("_", "").replace(".", "").replace("-", "").isalnum() else json.dumps(key)
            if isinstance(item, dict | list) and item:
                lines += [f"{pad}{name}:", *yaml_lines(item, indent + 1)]
            else:
                lines.append(f"{pad}{name}: {json.dumps(item, ensure_ascii=False)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            # The dash takes the place of the indentation of the first line.
            first, *rest = yaml_lines(item, indent + 1)
            lines += [f"{pad}- {first.lstrip()}", *rest]
        return lines
    return [f"{pad}{json.dumps(value, ensure_ascii=False)}"]


def table_lines(rows: Sequence[OutputRow], width: int | None = None) -> list[str]:
    """Columns as wide as they need to be, numbers to the right, heads in capitals.

    Where the terminal is too narrow (`width` in tests), the last column is wrapped.
    """
    if not rows:
        return []
    heads = list(rows[0])
    titles = [_title(head) for head in heads]
    right = [_is_numeric([row[head] for row in rows]) for head in heads]
    cells = [[cell(head, row[head]) for head in heads] for row in rows]
    widths = [max(len(title), *(len(line[i]) for line in cells)) for i, title in enumerate(titles)]

    def line(words: Sequence[str]) -> str:
        placed = (w.rjust(size) if r else w.ljust(size) for w, size, r in zip(words, widths, right, strict=True))
        return "  ".join(placed).rstrip()

    title = line(titles)
    # Styled after the widths are computed: escape codes have a length but no width.
    head = click.style(title, bold=True) if sys.stdout.isatty() else title
    available = _line_width(width)
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    if available is None or indent + widths[-1] <= available or right[-1] or available - indent < _LAST_MIN:
        return [head, *(line(row) for row in cells)]
    # Imported here, as most tables fit: a command should start in a tenth of a second.
    import textwrap

    wrapped = []
    for row in cells:
        first, *more = textwrap.wrap(row[-1], available - indent) or [""]
        wrapped += [line([*row[:-1], first]), *(" " * indent + rest for rest in more)]
    return [head, *wrapped]


def _line_width(width: int | None) -> int | None:
    """How many characters a line may have: the terminal's, or any number where there is none."""
    # In a pipe nothing is wrapped: grep needs whole lines.
    if width is None and sys.stdout.isatty():
        # Not shutil's function of that name: shutil imports four compression modules.
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit() and int(columns):
            return int(columns)
        # A pseudo-terminal may report 0 columns.
        return os.get_terminal_size(sys.stdout.fileno()).columns or _WIDTH_UNKNOWN
    return width


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _title(head: str) -> str:
    return head.removesuffix("_bytes").removesuffix("_ms").replace("_", " ").upper()


def cell(head: str, value: Any) -> str:
    """A value as a person reads it."""
    # A visible mark, so that columns can be counted by eye and by awk.
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and head.endswith("_bytes"):
        return format_size(value)
    # Before the rule for durations, whose suffix it shares.
    if isinstance(value, int | float) and head.endswith("timestamp_ms"):
        return format_time(int(value))
    if isinstance(value, int | float) and head.endswith("_ms"):
        return format_duration(value)
    if isinstance(value, list):
        return ",".join(printable(str(item)) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Text that cannot move the cursor or ring a bell."""
    # Record data may contain escape sequences, which a terminal would execute.
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

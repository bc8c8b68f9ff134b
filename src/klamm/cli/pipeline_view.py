"""The live view of a pipeline on a terminal: its graph with rate, lag, state, late and bad rows of each query.

It renders the status that the process publishes, so `run` and `show --watch` draw the same picture.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from klamm.model.units import format_duration, format_size, pluralize

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.query_progress import PipelineStatus
    from klamm.pipeline.sql.status import Home

_INTERVAL_S: Final = 0.5
_MESSAGES_KEPT: Final = 6
_WORST_PARTITIONS: Final = 3
_DEAD_LETTERS: Final = ".dead_letters"
_STYLES: Final = {
    "failed": "bold red",
    "restarting": "red",
    "paused": "yellow",
    "starting": "cyan",
    "waiting": "dim",
    "running": "green",
    "done": "green",
    "stopped": "dim",
}
_COLUMNS: Final = ("", "STATE", "ROWS/S", "LAG", "BEHIND", "KEPT", "LATE", "BAD", "BATCH")


def tree_rows(graph: Iterable[Mapping[str, Any]], queries: Iterable[str]) -> list[tuple[str, str, bool]]:
    """Return label, name and whether it is drawn above already, from the inputs down; dead letters below streams."""
    nodes = {node["name"]: node for node in graph}
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for name in node["reads"]:
            readers.setdefault(name, []).append(node["name"])
    for query in queries:
        if query not in nodes:
            readers.setdefault(query.removesuffix(_DEAD_LETTERS), []).append(query)
    rows: list[tuple[str, str, bool]] = []
    drawn: set[str] = set()

    def visit(name: str, indent: str, branch: str, below: str) -> None:
        rows.append((indent + branch + name, name, name in drawn))
        if name in drawn:
            return
        drawn.add(name)
        children = readers.get(name, [])
        for index, child in enumerate(children):
            last = index == len(children) - 1
            visit(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for name, node in nodes.items():
        if not node["reads"]:
            visit(name, "", "", "")
    rows.extend((query, query, False) for query in queries if query not in drawn)
    return rows


def join_lines(status: PipelineStatus) -> list[str]:
    """Return a line for each query that reads tables in batches: which rows of them, or why all."""
    return [f"{node['name']}: {node['joins']}" for node in status.get("graph") or () if node.get("joins")]


def graph_lines(status: PipelineStatus) -> list[str]:
    """Return the graph as text, with the kind of each statement."""
    kinds = {node["name"]: node["kind"] for node in status.get("graph") or ()}
    return [
        f"{label} (above)" if repeated else f"{label}  {kinds.get(name, '')}".rstrip()
        for label, name, repeated in tree_rows(status.get("graph") or (), status["queries"])
    ]


def headline(name: str, status: PipelineStatus) -> str:
    """Return a pipeline's name and state, and what it waits for."""
    waits_for = status.get("waits_for")
    process = f", process {status['pid']}" if "pid" in status else ""
    return f"{name}: {status['state']}{process}" + (f", waits for {waits_for}" if waits_for else "")


def source_line(values: Mapping[str, Any]) -> str:
    """Return what a capture of a database does: the progress of its snapshot, the log that its slot keeps."""
    lag = values.get("slot_lag_bytes")
    facts = [str(values["detail"])] if values.get("detail") else []
    if lag is not None:
        facts.append(f"PostgreSQL keeps {format_size(lag)} of log for its slot")
    return ", ".join(facts)


def lag_line(values: Mapping[str, Any]) -> str:
    """Return the partitions with the most unread records, and how many others have some."""
    ages_ms = values.get("partition_lag_ms") or {}
    behind = [
        (records, topic, partition)
        for topic, partitions in (values.get("partition_lag_records") or {}).items()
        for partition, records in partitions.items()
        if records
    ]
    # Not by text: partition 10 is after 9.
    behind.sort(key=_worst_first)
    facts = []
    for records, topic, partition in behind[:_WORST_PARTITIONS]:
        age_ms = ages_ms.get(topic, {}).get(partition)
        age = "" if age_ms is None else f" ({format_duration(age_ms)})"
        facts.append(f"{topic}-{partition} by {pluralize(records, 'record')}{age}")
    if len(behind) > _WORST_PARTITIONS:
        facts.append(pluralize(len(behind) - _WORST_PARTITIONS, "other partition"))
    return f"behind in {', '.join(facts)}" if facts else ""


def _worst_first(lag: tuple[int, str, str]) -> tuple[int, str, int]:
    records, topic, partition = lag
    return -records, topic, int(partition)


def render_status(name: str, status: PipelineStatus, now_ms: int, messages: Iterable[str] = ()) -> RenderableType:
    """Return the whole picture."""
    failed = any(query.get("state") in ("failed", "restarting") for query in status["queries"].values())
    age_ms = now_ms - status["started_ms"] if status.get("started_ms") else 0
    style = "bold reverse red" if failed or status["state"] == "failed" else "bold reverse cyan"
    title = Text.assemble((f" {name} ", style), f"  {headline(name, status).partition(': ')[2]}")
    title.append(f"  {format_duration(age_ms)}" if status["state"] in ("starting", "running") else "", style="dim")
    parts: list[RenderableType] = [title, Text(""), _table(status)]
    for query, values in status["queries"].items():
        if source_line(values):
            parts.append(Text(f"{query}: {source_line(values)}", style="dim"))
        if values.get("error_gist") and values.get("state") in ("failed", "restarting"):
            line = Text.assemble((f"{query}: ", "bold red"), (str(values["error_gist"]), "red"))
            line.truncate(300, overflow="ellipsis")
            parts.extend((Text(""), line))
            if values.get("advice"):
                parts.append(Text(f"  to go on: {values['advice']}", style="yellow"))
    recent = [Text(message.splitlines()[0], style="dim", no_wrap=True, overflow="ellipsis") for message in messages]
    return Group(*parts, Text(""), *recent)


def _table(status: PipelineStatus) -> Table:
    kinds = {node["name"]: node["kind"] for node in status.get("graph") or ()}
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for index, title in enumerate(_COLUMNS):
        table.add_column(title, justify="left" if index < 2 else "right", no_wrap=True)
    for label, name, repeated in tree_rows(status.get("graph") or (), status["queries"]):
        values = status["queries"].get(name)
        if repeated or values is None:
            table.add_row(Text(label, style="dim"), Text("above" if repeated else kinds.get(name, ""), style="dim"))
            continue
        table.add_row(label, *_cells(values))
    return table


def _cells(values: Mapping[str, Any]) -> list[Text]:
    state = str(values.get("state") or "")
    words = state
    if state == "restarting" and values.get("restart_in_ms") is not None:
        words = f"in {format_duration(values['restart_in_ms'])}"
    elif state == "waiting" and values.get("waits_for"):
        words = f"after {values['waits_for'][0]}"
    late, bad = values.get("late_rows") or 0, sum((values.get("bad_records") or {}).values())
    lag_ms, batch_ms = values.get("lag_ms"), values.get("batch_ms")
    return [
        Text(words, style=_STYLES.get(state, "")),
        _number(values.get("rows_per_s")),
        _number(values.get("lag_records")),
        Text("" if lag_ms is None else format_duration(lag_ms)),
        _number(values.get("state_rows")),
        Text(f"{late:,}", style="yellow" if late else "dim"),
        Text(f"{bad:,}", style="yellow" if bad else "dim"),
        Text("" if batch_ms is None else format_duration(batch_ms)),
    ]


def _number(value: float | None) -> Text:
    return Text("" if value is None else f"{value:,.0f}")


class RunStatus:
    """The status of a run, whose folder is known only after the first checks."""

    def __init__(self) -> None:
        self._home: Home | None = None

    def use_home(self, home: Home) -> None:
        """Read the status from a folder from now on."""
        self._home = home

    def read(self) -> PipelineStatus:
        """Return the status."""
        return {"state": "starting", "queries": {}} if self._home is None else self._home.status()


class Messages(logging.Handler):
    """The last messages of a run, shown below the table; also a handler of log lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=_MESSAGES_KEPT)

    def add(self, line: str) -> None:
        """Keep a message of the run."""
        self.lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log line."""
        self.add(record.getMessage())


@contextmanager
def live_view(name: str, read: Callable[[], PipelineStatus], messages: Iterable[str] = ()) -> Iterator[None]:
    """Draw a pipeline's status while the block runs, on the whole screen; then once more below the prompt."""
    console = Console()
    closing = threading.Event()

    def draw() -> RenderableType:
        return render_status(name, read(), time.time_ns() // 1_000_000, tuple(messages))

    def refresh(live: Live) -> None:
        while not closing.wait(_INTERVAL_S):
            live.update(draw(), refresh=True)

    try:
        with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
            thread = threading.Thread(target=refresh, args=(live,), name="live-view", daemon=True)
            thread.start()
            try:
                yield
            finally:
                closing.set()
                thread.join()
    finally:
        # Not of an earlier run, when this one has not begun.
        if read().get("pid") == os.getpid():
            console.print(draw())

"""Pipelines as rows: from the status that a run publishes, of any version and perhaps cut short by a crash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.model.units import format_size
from klamm.pipeline.sql.core.query_progress import PipelineStatus

_ALIVE: Final = ("starting", "running")
_FILES: Final = "source"
"""The kind of a statement that reads files."""


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query of a pipeline; numbers are None where the run did not report them."""

    name: str
    state: str
    rows_per_s: float | None = None
    lag_records: float | None = None
    lag_ms: float | None = None
    state_rows: float | None = None
    late_rows: float = 0
    bad_records: float = 0
    batch_ms: float | None = None
    restarts: float = 0
    restart_in_ms: float | None = None
    waits_for: tuple[str, ...] = ()
    detail: str = ""
    error: str = ""
    error_ms: float | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class GraphStatement:
    """A statement of a pipeline: what it reads, its topic, and that of its dead letters."""

    name: str
    kind: str
    reads: tuple[str, ...]
    topic: str | None = None
    dead_letters: str | None = None
    refused_rows: bool = False

    @property
    def reads_files(self) -> bool:
        """Whether it reads files: its dead letters cannot be sent back to a topic."""
        return self.kind == _FILES


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """One pipeline."""

    name: str
    state: str
    place: str
    """The machine and folder of its state."""
    is_here: bool
    """Whether its state is on the machine of the console, which reads its files."""
    takes_requests: bool = False
    """Whether its run reads requests that the console can write: as files, or to the cluster."""
    pid: int | None = None
    started_ms: float | None = None
    updated_ms: float | None = None
    waits_for: str = ""
    error: str = ""
    queries: tuple[QueryRow, ...] = ()
    statements: tuple[GraphStatement, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether a process runs it."""
        return self.state in _ALIVE

    @property
    def rows_per_s(self) -> float | None:
        """Of all queries."""
        return _sum(query.rows_per_s for query in self.queries)

    @property
    def lag_records(self) -> float | None:
        """Of all queries."""
        return _sum(query.lag_records for query in self.queries)

    @property
    def lag_ms(self) -> float | None:
        """Of the query that is furthest behind."""
        return max((query.lag_ms for query in self.queries if query.lag_ms is not None), default=None)

    @property
    def late_rows(self) -> float:
        """Of all queries."""
        return sum(query.late_rows for query in self.queries)

    @property
    def bad_records(self) -> float:
        """Of all queries."""
        return sum(query.bad_records for query in self.queries)

    @property
    def failed(self) -> list[QueryRow]:
        """The queries that failed, or wait for their restart after a failure."""
        return [query for query in self.queries if query.state in ("failed", "restarting")]

    @property
    def last_error(self) -> str:
        """The newest error of a query, or that of the run."""
        erring = [query for query in self.queries if query.error]
        newest = max(erring, key=_error_time, default=None)
        return self.error if newest is None else f"{newest.name}: {newest.error}"

    def statement(self, name: str) -> GraphStatement | None:
        """Return a statement by its name."""
        return next((statement for statement in self.statements if statement.name == name), None)


def make_pipeline_row(name: str, place: str, status: PipelineStatus) -> PipelineRow:
    """Return the row of a pipeline of this machine."""
    queries = _mapping(status.get("queries"))
    return PipelineRow(
        name,
        _text(status.get("state")) or "unknown",
        place,
        is_here=True,
        takes_requests=True,
        pid=None if (pid := _number(status.get("pid"))) is None else int(pid),
        started_ms=_number(status.get("started_ms")),
        updated_ms=_number(status.get("updated_ms")),
        waits_for=_text(status.get("waits_for")),
        error=_text(status.get("error")),
        queries=tuple(_make_query(str(query), _mapping(values)) for query, values in queries.items()),
        statements=tuple(_make_statement(node) for node in _list(status.get("graph")) if isinstance(node, Mapping)),
    )


def make_remote_row(name: str, place: str, *, alive: bool, pid: int | None, heartbeat_ms: int | None) -> PipelineRow:
    """Return the row of a pipeline that only the cluster's record and lease are known of."""
    return PipelineRow(
        name, "running" if alive else "not running", place, is_here=False, pid=pid, updated_ms=heartbeat_ms
    )


def list_dead_letters(row: PipelineRow) -> list[GraphStatement]:
    """Return the statements that have a topic of dead letters."""
    return [statement for statement in row.statements if statement.dead_letters]


def _make_query(name: str, values: Mapping[str, Any]) -> QueryRow:
    detail, slot_bytes = _text(values.get("detail")), _number(values.get("slot_lag_bytes"))
    facts = [detail] if detail else []
    if slot_bytes is not None:
        facts.append(f"PostgreSQL keeps {format_size(slot_bytes)} of log for its slot")
    return QueryRow(
        name,
        _text(values.get("state")) or "unknown",
        _number(values.get("rows_per_s")),
        _number(values.get("lag_records")),
        _number(values.get("lag_ms")),
        _number(values.get("state_rows")),
        _number(values.get("late_rows")) or 0,
        sum(_number(count) or 0 for count in _mapping(values.get("bad_records")).values()),
        _number(values.get("batch_ms")),
        _number(values.get("restarts")) or 0,
        _number(values.get("restart_in_ms")),
        tuple(map(str, _list(values.get("waits_for")))),
        ", ".join(facts),
        _text(values.get("error_gist")) or _text(values.get("error")),
        _number(values.get("error_ms")),
        _text(values.get("advice")),
    )


def _make_statement(node: Mapping[str, Any]) -> GraphStatement:
    return GraphStatement(
        str(node.get("name")),
        _text(node.get("kind")),
        tuple(map(str, _list(node.get("reads")))),
        _text(node.get("topic")) or None,
        _text(node.get("dead_letters")) or None,
        bool(node.get("refused_rows")),
    )


def _error_time(query: QueryRow) -> float:
    return query.error_ms or 0


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

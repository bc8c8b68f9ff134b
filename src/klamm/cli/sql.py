"""`klamm sql`: ad-hoc SQL over topics, without Spark; a prompt when no query is given."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.output import note, output_option, show
from klamm.cli.query_limits import limit_options
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.pipeline.core.offsets import Range
    from klamm.pipeline.tables.queries import QueryLimits
    from klamm.pipeline.tables.topic_tables import TopicDatabase

_PROMPT: Final = "klamm> "
_CONTINUED: Final = "   ...> "
_HELP: Final = r"""SELECT ... ;   a query over topics; it may have several lines and ends with a semicolon
\d             topics
\d TOPIC       the columns of a topic
\q             leave, as Ctrl-D does"""
_HISTORY_LINES: Final = 1000


@click.command("sql")
@click.argument("query", required=False, metavar="[SELECT]")
@click.option("--from", "start", metavar="POSITION", help="earliest, latest, an offset, -N from the end, or a time.")
@click.option("--since", metavar="TIME", help="From this time on: 2h, 2026-05-01T12:00:00Z.")
@click.option("--to", "end", metavar="POSITION", help="Up to this offset or time, which is not read.")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option("--registry", metavar="URL", help="Decode values by the schemas of this registry.")
@click.option(
    "--max-records",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Records read per query.",
)
@limit_options
@cluster_options
@output_option
@refuses
def sql(*, query: str | None, limits: QueryLimits, target: Target, output: str, **bounds: Any) -> None:
    """Answer a SELECT over topics: their names are the tables, the fields of their values the columns.

    Beside them every topic has _key, _value, _timestamp, _partition, _offset and _headers. Without a query there is a
    prompt, or queries are read from standard input.

    \b
    klamm sql "SELECT account, sum(amount) FROM payments GROUP BY 1" --since 1h
    klamm sql 'SELECT _partition, count(*) FROM "orders.v2" GROUP BY 1' -o csv
    """  # noqa: D301 - click wants the character itself
    from klamm.pipeline.tables.queries import QueryError

    session = _SqlSession(target, limits, output, _Bounds(**bounds))
    if query is not None:
        session.answer(query)
        return
    statements = _Prompt().statements() if sys.stdin.isatty() else _split_statements(sys.stdin)
    for statement in statements:
        try:
            session.run(statement)
        except (QueryError, CommandRefusal) as error:
            if not sys.stdin.isatty():
                raise
            # At a prompt a mistake is corrected, and does not end the session.
            note(str(error))


@dataclasses.dataclass(frozen=True, slots=True)
class _Bounds:
    """What is read of each topic, as it was typed."""

    start: str | None
    since: str | None
    end: str | None
    until: str | None
    registry: str | None
    max_records: int

    def __post_init__(self) -> None:
        from klamm.cli.queries.offsets import InvalidPosition, check_position
        from klamm.model.units import parse_time_ms

        if self.start is not None and self.since is not None:
            raise click.UsageError("--from and --since exclude each other; write one of them")
        if self.end is not None and self.until is not None:
            raise click.UsageError("--to and --until exclude each other; write one of them")
        try:
            for position in (self.start, self.end):
                if position is not None:
                    check_position(position)
            for moment in (self.since, self.until):
                if moment is not None:
                    parse_time_ms(moment, 0)
        except (InvalidPosition, ValueError) as error:
            raise click.UsageError(str(error)) from None


class _SqlSession:
    """Answers statements; each one reads its topics anew."""

    def __init__(self, target: Target, limits: QueryLimits, output: str, bounds: _Bounds) -> None:
        self._target = target
        self._limits = limits
        self._output = output
        self._bounds = bounds

    @refuses
    def run(self, statement: str) -> None:
        """Run a statement or a command of the prompt."""
        words = statement.rstrip(";").split()
        if words[0] == r"\d" and len(words) == 1:
            self._show_topics()
        elif words[0] == r"\d":
            self._show_columns(words[1])
        elif words[0].startswith("\\"):
            click.echo(_HELP)
        else:
            self.answer(statement)

    def answer(self, query: str) -> None:
        """Print the answer to a query."""
        from klamm.pipeline.tables.plain_values import plain_rows
        from klamm.pipeline.tables.topic_tables import TopicDatabase

        with TopicDatabase(self._limits) as database:
            self._load(database, database.topics_of(query))
            answer = database.query(query)
            show(plain_rows(answer.table), self._output, "no rows", answer.table.column_names)
            if answer.truncated:
                note(f"only the first {self._limits.rows:,} rows are shown; --max-rows shows more")

    def _show_topics(self) -> None:
        from klamm.cli.queries.topics import list_topics

        with self._target.cluster() as cluster:
            topics = [topic for topic in list_topics(cluster) if not topic.name.startswith("__")]
        sizes = sorted((topic.name, len(topic.partitions)) for topic in topics)
        show([{"topic": name, "partitions": count} for name, count in sizes], self._output, "no topics")

    def _show_columns(self, topic: str) -> None:
        from klamm.pipeline.tables.topic_tables import TopicDatabase

        name = topic.strip('"')
        with TopicDatabase(self._limits) as database:
            self._load(database, [name])
            show(
                [{"column": column["name"], "type": column["type"]} for column in database.columns(name)], self._output
            )

    def _load(self, database: TopicDatabase, topics: list[str]) -> None:
        if not topics:
            return
        with self._target.cluster() as cluster:
            ranges = _find_ranges(cluster, topics, self._bounds)
        total = sum(part.size for parts in ranges.values() for part in parts)
        if total > self._bounds.max_records:
            raise CommandRefusal(
                f"{', '.join(ranges)} have {total:,} records in this range, more than --max-records"
                f" {self._bounds.max_records:,}: shorten it with --since or --from, or raise the limit"
            )
        registry = None if self._bounds.registry is None else {"schema.registry.url": self._bounds.registry}
        from klamm.cli.progress import progress

        with progress("Reading", total, "records") as advance:
            done = 0
            for topic, parts in ranges.items():
                loaded = database.load(topic, self._read(parts, advance, done), registry)
                done += sum(part.size for part in parts)
                if loaded.undecoded:
                    values = f"{loaded.undecoded:,} of {loaded.records:,} values of {topic}"
                    note(f"{values} cannot be decoded with the registry's schemas")

    def _read(self, parts: list[Range], advance: Any, done: int) -> Iterator[pa.RecordBatch]:
        from klamm.pipeline.partition_reader import read_range

        # What is in a transaction that is open or aborted is no fact.
        client = self._target.client("consumer", isolation_level="read_committed")
        settings = {name: str(value) for name, value in client.items()}
        for part in parts:
            for batch in read_range(part, settings, headers=True, fail_on_data_loss=False):
                done += batch.num_rows
                advance(done)
                yield batch


def _find_ranges(cluster: BlockingCluster, topics: list[str], bounds: _Bounds) -> dict[str, list[Range]]:
    """Return what to read of each topic; the end is looked up once, so that a query over a busy topic ends."""
    import time

    from klamm.cli.queries.offsets import resolve_position
    from klamm.cli.queries.topics import find_topics
    from klamm.model.units import parse_time_ms
    from klamm.pipeline.core.offsets import Range

    places = [(topic.name, part.partition) for topic in find_topics(cluster, topics) for part in topic.partitions]
    now_ms = int(time.time() * 1000)
    start, end = bounds.start or "earliest", bounds.end or "latest"
    if bounds.since is not None:
        start = str(parse_time_ms(bounds.since, now_ms))
    if bounds.until is not None:
        end = str(parse_time_ms(bounds.until, now_ms))
    begins = resolve_position(cluster, places, start, committed=True)
    ends = resolve_position(cluster, places, end, committed=True)
    ranges: dict[str, list[Range]] = {topic: [] for topic in topics}
    for place in places:
        topic, partition = place
        if begins.get(place, 0) < ends.get(place, 0):
            ranges[topic].append(Range(topic, partition, begins[place], ends[place]))
    return ranges


class _Prompt:
    """Statements typed at a terminal, with a history that is kept between sessions."""

    def statements(self) -> Iterator[str]:
        r"""Yield statements until Ctrl-D or `\q`; Ctrl-C drops an unfinished one."""
        with _history():
            click.echo(r"SELECT ... ends with a semicolon; \d lists topics, \? helps, \q leaves.", err=True)
            lines: list[str] = []
            while True:
                try:
                    line = input(_CONTINUED if lines else _PROMPT)
                except KeyboardInterrupt:
                    click.echo(err=True)
                    lines.clear()
                    continue
                except EOFError:
                    click.echo(err=True)
                    return
                if not lines and line.strip() in (r"\q", "quit", "exit"):
                    return
                if line.strip() or lines:
                    lines.append(line)
                if lines and (lines[0].startswith("\\") or line.rstrip().endswith(";")):
                    yield "\n".join(lines)
                    lines.clear()


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Keep the lines of a prompt in a file beside the contexts."""
    from klamm.cli import context_file

    try:
        import readline
    except ImportError:  # a Python without it
        yield
        return
    file = os.path.join(os.path.dirname(context_file.path()), "sql_history")
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(_HISTORY_LINES)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(file), exist_ok=True)
            readline.write_history_file(file)
            # Queries may have secrets in them.
            os.chmod(file, 0o600)


def _split_statements(lines: Any) -> Iterator[str]:
    """Yield the statements of standard input; the last one needs no semicolon."""
    pending: list[str] = []
    for line in lines:
        if line.strip() or pending:
            pending.append(line.rstrip("\n"))
        if pending and (pending[0].startswith("\\") or line.rstrip().endswith(";")):
            yield "\n".join(pending)
            pending.clear()
    if pending:
        yield "\n".join(pending)

"""`klamm pipeline query` and `klamm pipeline serve`: the current rows of a pipeline's tables, without Spark."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Self

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.output import csv_lines, json_line, note, output_option, show, table_lines, yaml_lines
from klamm.cli.pipeline_state import state_option
from klamm.cli.query_limits import limit_options
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.pipeline.tables.core.answer_changes import Change
    from klamm.pipeline.tables.live_tables import LiveTables
    from klamm.pipeline.tables.queries import QueryLimits

_BROKER_MS: Final = "2000"
_PATIENCE_S: Final = 1.0
"""How long catching up may take before it is reported."""

_file = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_set = click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Override a SET of the file.")
_store = click.option(
    "--store",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Keep rows and positions here; the next start continues.  [default: in memory]",
)


@click.command("query")
@_file
@click.argument("sql", metavar="SELECT")
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C, and print the rows that come (+) and go (-).")
@click.option("--changes-only", is_flag=True, help="With --watch: not the rows there are at the beginning.")
@limit_options
@_store
@_set
@state_option
@cluster_options
@output_option
@refuses
def query(
    *,
    file: str,
    sql: str,
    watch: bool,
    changes_only: bool,
    limits: QueryLimits,
    store: str | None,
    pairs: tuple[str, ...],
    state: str | None,
    target: Target,
    output: str,
) -> None:
    """Answer a SELECT over the current rows of a file's tables. Reads their topics; needs no Spark.

    \b
    klamm pipeline query bank.sql "SELECT * FROM balances WHERE account = 'ada'"
    klamm pipeline query bank.sql "SELECT count(*) FROM balances" --watch
    """  # noqa: D301 - click wants the character itself
    from klamm.pipeline.tables.live_tables import tables_of_query

    if changes_only and not watch:
        raise click.UsageError("--changes-only goes with --watch")
    names = tables_of_query(sql)
    with _open(file, pairs, state, target, names, store, limits) as tables:
        if watch:
            _print_changes(tables, sql, output, snapshot=not changes_only)
            return
        _tell_bad(tables)
        _print_answer(tables, sql, output)


def _open(
    file: str,
    pairs: tuple[str, ...],
    state: str | None,
    target: Target,
    names: Iterable[str] | None,
    store: str | None,
    limits: QueryLimits,
    *,
    wait: bool = True,
) -> LiveTables:
    from klamm.cli.pipeline import load
    from klamm.pipeline.tables.live_tables import open_tables

    with _CatchUp() as catch_up:
        return open_tables(
            load(file, pairs, state, target),
            tables=names or None,
            store=store,
            limits=limits,
            # A command reports that no broker answers; a service would wait for one that is starting.
            client={"bootstrap.timeout.ms": _BROKER_MS, **target.client("consumer")},
            wait=wait,
            timeout_s=target.timeout_s if target.bounds_waits else None,
            report=catch_up.report,
        )


class _CatchUp:
    """Shows on standard error how far reading is, when it takes longer than a moment."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._line_time = 0.0
        self._total = 0
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)

    def report(self, missing: int) -> None:
        """Take the number of records that are not read yet."""
        now = time.monotonic()
        # From the first report on: connecting is not reading.
        self._began = self._began or now
        self._total = max(self._total, missing)
        if now - self._began < _PATIENCE_S or not missing:
            return
        line = f"klamm: reading, {self._total - missing:,} of {self._total:,} records"
        if sys.stderr.isatty():
            self._width = max(self._width, len(line))
            click.echo("\r" + line.ljust(self._width), nl=False, err=True)
        elif now - self._line_time > 10 * _PATIENCE_S or not self._line_time:
            # In the log of a job a line now and then, not ten a second.
            click.echo(line, err=True)
            self._line_time = now


def _tell_bad(tables: LiveTables) -> None:
    for status in tables.status():
        if status["bad_records"]:
            from klamm.model.units import pluralize

            many = pluralize(status["bad_records"], "record")
            reason = f"; the last one: {status['last_error']}" if status["last_error"] else ""
            note(f"left out {many} of {status['topic']} that cannot be read{reason}")


def _print_answer(tables: LiveTables, sql: str, output: str) -> None:
    from klamm.pipeline.tables.plain_values import plain_rows

    answer = tables.answer(sql)
    show(plain_rows(answer.table), output, "no rows", answer.table.column_names)
    if answer.truncated:
        note(f"only the first {tables.limits.rows:,} rows are shown; --max-rows shows more")


def _print_changes(tables: LiveTables, sql: str, output: str, *, snapshot: bool) -> None:
    from klamm.pipeline.tables.plain_values import to_plain, unique_names

    printer = _ChangePrinter(output)
    watch = tables.open_watch(sql, snapshot=snapshot)
    names = ["change", *unique_names(watch.names)]
    try:
        while (changes := watch.next_changes(1.0)) is not None:
            if tables.error is not None:
                raise CommandRefusal(f"the tables are not followed any more: {tables.error}")
            printer.write([_row(names, change, to_plain) for change in changes])
    except KeyboardInterrupt:
        # Ctrl-C is how a push query ends.
        return


def _row(names: list[str], change: Change, to_plain: Callable[[Any], Any]) -> dict[str, Any]:
    return dict(zip(names, (change.sign, *map(to_plain, change.row)), strict=True))


class _ChangePrinter:
    """Prints rows as they come, with one head at the beginning."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._began = False

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Print rows at once: a reader of a pipe waits for them."""
        if not rows:
            return
        for line in self._lines(rows):
            click.echo(line)
        sys.stdout.flush()
        self._began = True

    def _lines(self, rows: list[dict[str, Any]]) -> list[str]:
        skip = 1 if self._began else 0
        if self._output == "table":
            return table_lines(rows)[skip:]
        if self._output == "csv":
            return csv_lines(rows)[skip:]
        # An endless list has no end bracket: JSON is one object per line here.
        return yaml_lines(rows) if self._output == "yaml" else [json_line(row) for row in rows]


@click.command("serve")
@_file
@click.option(
    "--listen",
    default="127.0.0.1:8083",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Where to listen; 0 is any free port.",
)
@click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="HOST",
    help="A further host name under which clients reach it, that of a proxy in front of it; repeat for more.",
)
@limit_options
@_store
@_set
@state_option
@cluster_options
@refuses
def serve(
    *,
    file: str,
    listen: str,
    server_names: tuple[str, ...],
    limits: QueryLimits,
    store: str | None,
    pairs: tuple[str, ...],
    state: str | None,
    target: Target,
) -> None:
    """Serve the current rows of a file's tables over HTTP until Ctrl-C. Needs no Spark.

    \b
    klamm pipeline serve bank.sql
    curl 127.0.0.1:8083/tables/balances/ada
    """  # noqa: D301 - click wants the character itself
    from klamm.cli.pipeline import log_to_stderr
    from klamm.pipeline.tables.http_server import serve_tables

    host, port = _parse_address(listen)
    log_to_stderr()
    with _open(file, pairs, state, target, None, store, limits) as tables:
        _tell_bad(tables)
        serve_tables(tables, host, port, say=functools.partial(click.echo, err=True), hosts=server_names)


def _parse_address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise click.UsageError(f"--listen {listen}: write PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)

"""`klamm pipeline`: streams and tables in SQL, on Spark."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from klamm.cli import exit_codes, pipeline_query
from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.output import files_output_option, note, output_option, show, show_one, table_lines
from klamm.cli.pipeline_backfill import backfill
from klamm.cli.pipeline_compact import compact
from klamm.cli.pipeline_control import pause, restart, resume
from klamm.cli.pipeline_dlq import dlq
from klamm.cli.pipeline_snapshot import snapshot, snapshots
from klamm.cli.pipeline_state import state_option
from klamm.cli.target import Target, cluster_options
from klamm.model.units import pluralize

if TYPE_CHECKING:
    from klamm.pipeline.sql import Pipeline, SqlProblem
    from klamm.pipeline.sql.core.problems import SqlSource

set_option = click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Override a SET of the file.")


class _LogFormatter(logging.Formatter):
    """Formats the library's log lines as the node's log: time, level, package, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Name the package of `klamm.pipeline.sql.runner`: pipeline."""
        record.package = record.name.split(".")[1]
        return super().format(record)


def log_to_stderr(handler: logging.Handler | None = None) -> None:
    """Show log lines of the pipeline and its clients; as libraries they do not configure logging themselves."""
    handler = handler or logging.StreamHandler()
    line = "%(asctime)s.%(msecs)03d %(levelname)s %(package)s %(message)s"
    handler.setFormatter(_LogFormatter(line, "%Y-%m-%d %H:%M:%S"))
    for name in ("klamm.pipeline", "klamm.client"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        # A handler of the root logger would print each line a second time.
        logger.propagate = False


@click.group(cls=Noun)
def pipeline() -> None:
    """Streams and tables in SQL, on Spark."""


def load(file: str, pairs: tuple[str, ...], state: str | None = None, target: Target | None = None) -> Pipeline:
    """The pipeline of a file; a cluster or state folder of the command line wins over the file's."""
    from click.core import ParameterSource

    from klamm.pipeline.sql import compile_text

    overrides = {}
    context = click.get_current_context()
    # A default or the environment must not override the cluster that the file names.
    written = [context.get_parameter_source(name) for name in ("bootstrap", "context")]
    if target is not None and ParameterSource.COMMANDLINE in written:
        overrides["bootstrap"] = target.bootstrap
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--set {pair}: write NAME=VALUE")
        overrides[name.strip()] = value.strip()
    try:
        with open(file, encoding="utf-8") as handle:
            text = handle.read()
    except UnicodeDecodeError as error:
        raise CommandRefusal(f"{file} is no text in UTF-8: {error}") from None
    compiled = compile_text(text, file, overrides)
    if state is not None and "checkpoint" not in overrides:
        from klamm.pipeline.sql.state_folders import name_of

        # The name of the pipeline, which is part of the path, is known only after the first compilation.
        compiled = compile_text(text, file, {**overrides, "checkpoint": os.path.join(state, name_of(compiled))})
    return compiled


@pipeline.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@set_option
@click.option("--topics", is_flag=True, help="Check that the topics that are read exist in the cluster.")
@click.option("--spark", "resolve_columns", is_flag=True, help="Start Spark, and let it resolve columns and types.")
@cluster_options
@files_output_option
@refuses
def check(
    *, file: str, pairs: tuple[str, ...], topics: bool, resolve_columns: bool, target: Target, output: str
) -> None:
    """Report errors of a file with their positions. Starts no Spark, unless --spark is given."""
    from klamm.pipeline.sql import SqlError, SqlProblem
    from klamm.pipeline.sql.registry_schemas import resolve
    from klamm.pipeline.sql.topics import ClusterTopics

    try:
        compiled = resolve(load(file, pairs, target=target), declared=topics)
        if resolve_columns:
            from klamm.pipeline.sql.dry_build import build_dry

            build_dry(compiled)
    except SqlError as error:
        # At a terminal the error prints the source line with a marker below it.
        if output == "table":
            raise
        show(_rows(error.source, error.problems), output)
        raise click.exceptions.Exit(exit_codes.REFUSED) from None
    if topics:
        problems = ClusterTopics(compiled, target.client("admin")).problems()
        if problems:
            raise SqlError(compiled.source, [SqlProblem(offset, message) for offset, message in problems])
    if output != "table":
        show(_rows(compiled.source, compiled.warnings), output)
        return
    for warning in compiled.warnings:
        click.echo(compiled.source.show(warning), err=True)
    click.echo(f"{file}: fine, {pluralize(len(compiled.nodes), 'statement')}")


def _rows(source: SqlSource, problems: Iterable[SqlProblem]) -> list[dict[str, Any]]:
    rows = []
    for problem in problems:
        line, column = source.position(problem.offset)
        level = "warning" if problem.warning else "error"
        rows.append({"file": source.name, "line": line, "column": column, "level": level, "words": problem.message})
    return rows


@pipeline.command("plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@set_option
@state_option
@click.option("--spark", "resolve_columns", is_flag=True, help="Start Spark, and compare the types of state, too.")
@cluster_options
@files_output_option
@refuses
def plan(
    *, file: str, pairs: tuple[str, ...], state: str | None, resolve_columns: bool, target: Target, output: str
) -> None:
    """Print the graph of a file, and what its changes mean for existing state: which queries read again, and how much.

    Starts no Spark, unless --spark is given.
    """
    from klamm.pipeline.sql import SqlError
    from klamm.pipeline.sql.core.graph_rendering import render_graph
    from klamm.pipeline.sql.registry_schemas import resolve
    from klamm.pipeline.sql.renamed_pipelines import find_older_name
    from klamm.pipeline.sql.run_plan import plan_run
    from klamm.pipeline.sql.state_folders import stored_home

    compiled = load(file, pairs, state, target)
    columns = None
    if resolve_columns:
        from klamm.pipeline.sql.dry_build import build_dry

        compiled = resolve(compiled, declared=True)
        columns = build_dry(compiled)
    else:
        try:
            compiled = resolve(compiled)
        except SqlError as error:
            note(f"columns of a registry were not compared: {error.problems[0].message}")
    client = target.client("admin")
    home = stored_home(compiled, client)
    older, notice = (None, None) if home is not None else find_older_name(compiled, client)
    if notice is not None:
        note(notice)
    changes, unknown = plan_run(compiled, home, client, columns, older)
    if unknown is not None:
        note(unknown)
    if output == "table":
        for line in render_graph(compiled, changes):
            click.echo(line)
        return
    verdicts = {change.name: change for change in changes}
    costs = {change.name: change.cost for change in changes if change.cost is not None}
    rows = [
        {
            "name": node.name,
            "kind": node.kind,
            "reads": list(node.inputs),
            "topic": node.topic if node.has_topic else None,
            "key": list(node.key),
            "change": verdicts[node.name].verdict if node.name in verdicts else None,
            "reason": verdicts[node.name].reason if node.name in verdicts else None,
            "offsets": costs[node.name].offsets if node.name in costs else None,
            "duration_ms": costs[node.name].duration_ms if node.name in costs else None,
            "lost_offsets": costs[node.name].lost if node.name in costs else None,
        }
        for node in compiled.nodes
    ]
    show(rows, output)


@pipeline.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: spark://, yarn, k8s://, ...  [default: local[*], in this process]",
)
@click.option(
    "--rebuild", multiple=True, metavar="QUERY", help="Discard this query's state and read from the beginning."
)
@click.option(
    "--accept-lost",
    multiple=True,
    metavar="TABLE",
    help="Rebuild this table although records are gone: its values become those of the others.",
)
@click.option("--fail-fast", is_flag=True, help="End at the first query that has failed for good.")
@click.option(
    "--continue",
    "continued",
    multiple=True,
    metavar="SINK",
    help="Write to a new place, without the rows until now.",
)
@click.option(
    "--adopt", multiple=True, metavar="QUERY", help="Continue this query where its output ends, on a new checkpoint."
)
@click.option("--from", "label", metavar="LABEL", help="Start from a snapshot of klamm pipeline snapshot.")
@click.option("--progress/--no-progress", default=None, help="A line per batch, or none, instead of the live view.")
@click.option("--log-batches", is_flag=True, help="A line of the log per batch, with all its numbers.")
@click.option(
    "--ui", metavar="[HOST:]PORT", help="Serve a page with graph, rates, errors and dead letters; 0 is any free port."
)
@click.option("--metrics", metavar="[HOST:]PORT", help="Answer Prometheus at /metrics; 0 is any free port.")
@set_option
@state_option
@cluster_options
@refuses
def run(
    *,
    file: str,
    once: bool,
    master: str | None,
    rebuild: tuple[str, ...],
    accept_lost: tuple[str, ...],
    continued: tuple[str, ...],
    adopt: tuple[str, ...],
    label: str | None,
    fail_fast: bool,
    progress: bool | None,
    log_batches: bool,
    ui: str | None,
    metrics: str | None,
    pairs: tuple[str, ...],
    state: str | None,
    target: Target,
) -> None:
    """Run a file's queries until they are stopped. Ctrl-C finishes the batches first."""
    # Before the runner is imported, which takes longer: the first error of a file is shown at once.
    compiled = load(file, pairs, state, target)
    from klamm.cli.pipeline_view import Messages, RunStatus, live_view
    from klamm.pipeline.sql.runner import run_pipeline
    from klamm.pipeline.sql.state_folders import name_of

    # A pipe, a service or a test gets lines; so does a caller that chose a form of progress.
    is_live = sys.stdout.isatty() and sys.stderr.isatty() and progress is None and not log_batches
    messages, status = Messages(), RunStatus()
    log_to_stderr(messages if is_live else None)
    with contextlib.ExitStack() as stack:
        if is_live:
            stack.enter_context(live_view(name_of(compiled), status.read, messages.lines))
        run_pipeline(
            compiled,
            client=target.client("admin"),
            master=master,
            once=once,
            rebuild=rebuild,
            accept_lost=accept_lost,
            continued=continued,
            adopt=adopt,
            restore=label,
            fail_fast=fail_fast,
            progress=bool(progress),
            log_batches=log_batches,
            ui=ui,
            metrics=metrics,
            report=messages.add if is_live else functools.partial(click.echo, err=True),
            use_home=status.use_home,
        )


@pipeline.command("ls")
@state_option
@files_output_option
@refuses
def ls(*, state: str | None, output: str) -> None:
    """List pipelines that ran on this machine."""
    from klamm.pipeline.sql.known_homes import data_root
    from klamm.pipeline.sql.state_folders import known_homes

    rows = []
    for known in known_homes(state):
        status = known.home.status()
        queries = status["queries"].values()
        rows.append(
            {
                "pipeline": known.name,
                "cluster": known.cluster,
                "state": status["state"],
                "queries": len(status["queries"]),
                "rows_per_s": round(sum(query.get("rows_per_s") or 0 for query in queries), 1),
                "lag_records": sum(query.get("lag_records") or 0 for query in queries),
                "error": _first_line(status.get("error")),
            }
        )
    columns = ("pipeline", "cluster", "state", "queries", "rows_per_s", "lag_records", "error")
    show(rows, output, f"no pipeline ran in {state or data_root()}", columns)


@pipeline.command("show")
@click.argument("name", metavar="PIPELINE")
@click.option("--watch", "watched", is_flag=True, help="Show the live view until Ctrl-C.")
@state_option
@output_option
@refuses
def show_(*, name: str, watched: bool, state: str | None, output: str) -> None:
    """Show one pipeline: rate, lag, watermark, state and batch times of its queries, and the last error."""
    from klamm.cli.pipeline_view import graph_lines, headline, join_lines, lag_line, live_view, source_line
    from klamm.pipeline.sql.state_folders import find_home

    if watched:
        with contextlib.suppress(KeyboardInterrupt), live_view(name, find_home(name, state).status):
            threading.Event().wait()
        return
    status = find_home(name, state).status()
    heads = (
        "batch",
        "rows",
        "rows_per_s",
        "lag_records",
        "lag_ms",
        "watermark",
        "state_rows",
        "state_bytes",
        "batch_ms",
    )
    rows = [
        {
            "query": query,
            "state": progress.get("state"),
            **{head: progress.get(head) for head in heads},
            "late_rows": progress.get("late_rows", 0),
            "lost_records": progress.get("lost_records", 0),
            "bad_records": sum((progress.get("bad_records") or {}).values()),
            "restarts": progress.get("restarts", 0),
            "failures": progress.get("failures", 0),
        }
        for query, progress in status["queries"].items()
    ]

    def table() -> None:
        click.echo(headline(name, status))
        # Before the queries are built there is only the graph.
        for line in graph_lines(status) if not rows else ():
            click.echo(line)
        for line in [*table_lines(rows), *join_lines(status)]:
            click.echo(line)
        for query, progress in status["queries"].items():
            if source_line(progress):
                click.echo(f"\n{query}: {source_line(progress)}")
            if lag_line(progress):
                click.echo(f"{query}: {lag_line(progress)}")
            if progress.get("late_uncounted"):
                dropped = pluralize(progress["late_uncounted"], "late row or group")
                click.echo(f"{query}: {dropped} not counted: which rows these are cannot be told from its SELECT")
            if progress.get("rebuild_offsets"):
                left = pluralize(progress["rebuild_offsets"], "offset")
                click.echo(f"{query}: is being rebuilt, {left} left; until then readers see its old rows")
            if progress.get("error"):
                click.echo(f"\n{query}: {progress['error']}")
            if progress.get("advice"):
                click.echo(f"{query}: to go on: {progress['advice']}")

    if output == "csv":
        show(rows, output)
    else:
        show_one({"pipeline": name, **status}, output, table)


@pipeline.command("stop")
@click.argument("name", metavar="PIPELINE")
@click.option("--wait", "wait_s", default=120.0, show_default=True, metavar="SECONDS", help="How long to wait for it.")
@state_option
@refuses
def stop(*, name: str, wait_s: float, state: str | None) -> None:
    """Let a pipeline finish its batches and end."""
    import time

    from klamm.pipeline.sql.state_folders import find_home

    pipeline_run = find_home(name, state)
    if not pipeline_run.running():
        raise CommandRefusal(f"{name} does not run")
    pipeline_run.request_stop()
    deadline = time.monotonic() + wait_s
    while pipeline_run.running():
        if time.monotonic() > deadline:
            raise CommandRefusal(f"{name} still runs {wait_s:.0f} s after the request to stop")
        # Polled: the pipeline is not a child of this process, so its end cannot be awaited.
        time.sleep(0.1)
    click.echo(f"Stopped {name}.")


def _first_line(text: Any) -> str | None:
    return str(text).splitlines()[0] if text else None


pipeline.add_command(backfill)
pipeline.add_command(compact)
pipeline.add_command(dlq)
pipeline.add_command(pipeline_query.query)
pipeline.add_command(pipeline_query.serve)
pipeline.add_command(pause)
pipeline.add_command(resume)
pipeline.add_command(restart)
pipeline.add_command(snapshot)
pipeline.add_command(snapshots)

"""`klamm pipeline backfill`: a query's rows of a range of its input, written once."""

from __future__ import annotations

import functools

import click

from klamm.cli.command_errors import refuses
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.pipeline_state import state_option
from klamm.cli.target import Target, cluster_options
from klamm.model.units import pluralize


@click.command("backfill")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("name", metavar="SINK")
@click.option(
    "--from", "start", required=True, metavar="POSITION", help="earliest, a time (2h, 2026-05-01T12:00Z) or an offset."
)
@click.option(
    "--to",
    "end",
    default="latest",
    show_default=True,
    metavar="POSITION",
    help="latest, a time or an offset; it is not read itself.",
)
@click.option("--replace", is_flag=True, help="Replace the partitions the rows fall into, instead of adding rows.")
@click.option("--again", is_flag=True, help="Write although this range, or a part of it, was filled before.")
@click.option("--master", default=None, metavar="URL", help="Where Spark runs.  [default: local[*]]")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Override a SET of the file.")
@state_option
@consent_options
@cluster_options
@refuses
def backfill(
    *,
    file: str,
    name: str,
    start: str,
    end: str,
    replace: bool,
    again: bool,
    master: str | None,
    pairs: tuple[str, ...],
    state: str | None,
    consent: Consent,
    target: Target,
) -> None:
    """Compute a sink's rows of a range of its topics, and write them once.

    SINK may be a stream, too, and a table from its beginning. Offsets are one number for all partitions, or JSON:
    {"payments": {"0": 120, "1": 95}}. The pipeline may run meanwhile.
    """
    from klamm.cli.pipeline import load
    from klamm.pipeline.sessions import check_requirements
    from klamm.pipeline.sql.backfill import plan_backfill, run_backfill

    # Before the plan: without Spark there is nothing to confirm.
    check_requirements()
    compiled = load(file, pairs, state, target)
    client = target.client("admin")
    job = plan_backfill(
        compiled, name, _moment(start, "--from"), _moment(end, "--to"), client=client, replace=replace, again=again
    )
    plan = ConfirmationPlan()
    for range_ in job.ranges:
        if range_.size:
            plan.adds(f"read {range_.topic}-{range_.partition} from offset {range_.start} to {range_.end}")
    if plan:
        # Replacing removes rows that other ranges wrote to the same partitions, so it is destructive.
        if replace:
            plan.removes(f"partitions of {job.target} that rows of {job.node.name} fall into")
        plan.adds(f"write rows of {job.node.name} to {job.target}")
    if not consent.to(plan, target):
        return
    if run_backfill(compiled, job, client=client, master=master, report=functools.partial(click.echo, err=True)):
        click.echo(f"Filled {job.node.name} from {pluralize(job.records, 'offset')}.")
    else:
        click.echo(f"{job.node.name} was filled with this range before: nothing was written.")


def _moment(text: str, option: str):  # type: ignore[no-untyped-def] # noqa: ANN202 - the pipeline's own type, imported here alone
    import time

    from klamm.model.units import parse_time_ms
    from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound, parse_partition_offsets

    words = text.strip()
    if words in ("earliest", "latest"):
        return ReadBound(everywhere=EARLIEST if words == "earliest" else LATEST)
    if words.startswith("{"):
        return ReadBound(by_partition=parse_partition_offsets(option, words, EARLIEST))
    # The same rule as `consume --from`: longer numbers are milliseconds since 1970.
    if words.isdecimal() and len(words) < 12:
        return ReadBound(everywhere=int(words))
    try:
        return ReadBound(everywhere=parse_time_ms(words, int(time.time() * 1000)), timed=True)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None

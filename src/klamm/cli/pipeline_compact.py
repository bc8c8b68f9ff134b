"""`klamm pipeline compact`: few large files out of many small ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.target import Target, cluster_options
from klamm.model.units import format_size, parse_size_bytes, pluralize

if TYPE_CHECKING:
    from klamm.pipeline.core.lake_tables import LakeTable

LEAST_BYTES = 1 << 20
MERGED = ("parquet", "delta", "iceberg")


@click.command("compact")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("name", metavar="[SINK]", required=False)
@click.option("--target-size", default="128MiB", show_default=True, metavar="SIZE", help="How large files become.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Override a SET of the file.")
@consent_options
@cluster_options
@refuses
def compact(
    *, file: str, name: str | None, target_size: str, pairs: tuple[str, ...], consent: Consent, target: Target
) -> None:
    """Merge small files of a Parquet, Delta or Iceberg sink, or of all of them. Starts no Spark; readers may go on."""
    from klamm.cli.pipeline import load
    from klamm.cli.progress import progress
    from klamm.pipeline.lake.sinks import open_sink
    from klamm.pipeline.sql.core.problems import suggest
    from klamm.pipeline.sql.topics import lake_table

    try:
        size = parse_size_bytes(target_size)
    except ValueError as error:
        raise click.UsageError(f"--target-size: {error}") from None
    if size < LEAST_BYTES:
        raise click.UsageError(f"--target-size {target_size}: write {format_size(LEAST_BYTES)} or more")
    tables = {node.name: table for node in load(file, pairs, target=target).nodes if (table := lake_table(node))}
    if name is not None and name not in tables:
        raise CommandRefusal(f"there is no sink {name} with files{suggest(name, tables)}")
    chosen = {
        sink_name: open_sink(table)
        for sink_name, table in tables.items()
        # Formats that cannot be merged are skipped silently unless they are named.
        if (sink_name == name or (name is None and table.format in MERGED)) and _has_files(table)
    }
    plan = ConfirmationPlan()
    files: dict[str, int] = {}
    for sink_name, sink in chosen.items():
        for merge in sink.plan_merges(size):
            where = f"{sink_name} {merge.partition}".rstrip()
            plan.changes(where, pluralize(merge.files, "file"), f"{merge.into}, {format_size(merge.size)} in all")
            files[sink_name] = files.get(sink_name, 0) + merge.files
    if not consent.to(plan, target):
        return
    for sink_name, count in files.items():
        with progress(f"compacting {sink_name}", count, "files") as advance:
            done = chosen[sink_name].compact(size, advance)
        click.echo(f"{sink_name}: {pluralize(done, 'file')} merged")


def _has_files(table: LakeTable) -> bool:
    """Whether the sink has written anything; does not create its folder."""
    return table.local is None or os.path.isdir(table.local)

"""`klamm storage`: cluster ids and data folders, with the flags of kafka-storage."""

from __future__ import annotations

import time
from typing import Any

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, show_dry_run
from klamm.cli.output import files_output_option, show
from klamm.cli.storage_check import check
from klamm.cli.storage_dump import dump
from klamm.cli.storage_repair import repair


@click.group(cls=Noun)
def storage() -> None:
    """Make cluster ids, format data folders, look at them, repair them."""


for _command in (check, dump, repair):
    storage.add_command(_command)


@storage.command("random-uuid")
def random_uuid() -> None:
    """Print a new random cluster id."""
    from klamm.model.ids import uuid_to_str
    from klamm.server.boot.format import random_uuid as new_uuid

    click.echo(uuid_to_str(new_uuid()))


@storage.command("format")
@click.option("-c", "--config", "file", required=True, metavar="FILE", help="The node's properties file.")
@click.option("-t", "--cluster-id", required=True, metavar="ID", help="The cluster the folders shall belong to.")
@click.option("-g", "--ignore-formatted", is_flag=True, help="Leave folders that are formatted already as they are.")
@click.option("-r", "--release-version", metavar="VERSION", help="Metadata level to begin with; 4.3 is the only one.")
@click.option("-f", "--feature", "features", multiple=True, metavar="NAME=LEVEL", help="A feature level to begin with.")
@click.option("-s", "--standalone", is_flag=True, help="The node is the first controller; others may be added later.")
@click.option("-N", "--no-initial-controllers", is_flag=True, help="The controllers are found by their addresses.")
@click.option(
    "-I", "--initial-controllers", metavar="LIST", help="The first controllers: id@host:port:directory-id,..."
)
@click.option(
    "-S",
    "--add-scram",
    multiple=True,
    metavar="CREDENTIAL",
    help="First credentials: SCRAM-SHA-512=[name=USER,password=...].",
)
@click.option("--dry-run", is_flag=True, help="Show the difference and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Accepted; formatting removes nothing and never prompts.")
@refuses
def format_(
    *,
    file: str,
    cluster_id: str,
    ignore_formatted: bool,
    release_version: str | None,
    features: tuple[str, ...],
    standalone: bool,
    no_initial_controllers: bool,
    initial_controllers: str | None,
    add_scram: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Give the data folders of a node their cluster id."""
    del yes
    from klamm.server.boot.config import load_config
    from klamm.server.boot.first_records import parse_scram_credential
    from klamm.server.boot.format import METADATA_VERSION, format_folders, parse_initial_controllers, standalone_voters

    if standalone and no_initial_controllers:
        raise click.UsageError("--standalone and --no-initial-controllers exclude each other; write one of them")
    if initial_controllers is not None and (standalone or no_initial_controllers):
        raise click.UsageError("--initial-controllers excludes --standalone and --no-initial-controllers")
    if release_version not in (None, "4.3", METADATA_VERSION):
        raise CommandRefusal(
            f"--release-version {release_version} cannot be written; leave it out or write {METADATA_VERSION}"
        )
    # These flags choose a dynamic quorum (KIP-853), which is kraft.version 1; without them the voters are static.
    dynamic = standalone or no_initial_controllers or initial_controllers is not None
    _check_features(features, kraft_version=int(dynamic))
    config = load_config(file)
    credentials = [parse_scram_credential(text) for text in add_scram]
    voters = None
    if standalone and not config.is_controller:
        raise CommandRefusal(f"--standalone needs a controller; write process.roles=broker,controller in {file}")
    # Static voters from the configuration and dynamic ones from the log would disagree; Kafka refuses this too.
    if dynamic and config.value("controller.quorum.voters"):
        flag = "--standalone" if standalone else "--initial-controllers" if initial_controllers else "-N"
        raise CommandRefusal(f"{flag} and controller.quorum.voters exclude each other; leave one of them out")
    if standalone:
        voters = standalone_voters(config)
    elif initial_controllers is not None:
        voters = parse_initial_controllers(config, initial_controllers)
    report = format_folders(
        config,
        cluster_id,
        ignore_formatted=ignore_formatted,
        voters=voters,
        now_ms=int(time.time() * 1000),
        first_records=credentials,
        dry_run=dry_run,
    )
    if dry_run:
        plan = ConfirmationPlan(
            [("+", f"{path} cluster.id={cluster_id} node.id={config.node_id}") for path in report.formatted]
        )
        show_dry_run(plan)
        return
    for path in report.formatted:
        kind = "metadata" if path == config.metadata_log_dir else "data"
        click.echo(f"Formatting {kind} directory {path} with metadata.version {METADATA_VERSION}.")
    if not report.formatted:
        click.echo("Every log dir is formatted already; nothing was changed.")


@storage.command()
@click.option("-c", "--config", "file", required=True, metavar="FILE", help="The node's properties file.")
@files_output_option
@refuses
def info(*, file: str, output: str) -> None:
    """Show what the data folders of a node belong to.

    Ends with exit code 1 when something is wrong with them.
    """
    import os

    from klamm.model.ids import uuid_to_str
    from klamm.server.boot.config import load_config
    from klamm.server.boot.format import all_folders, read_identities

    config = load_config(file)
    folders = all_folders(config)
    present = [path for path in folders if os.path.isdir(path)]
    problems = [f"{path} does not exist" for path in folders if path not in present]
    identities = read_identities(config)
    # A folder that does not exist is reported once, not as unformatted too.
    problems += [f"{path} is not formatted" for path in present if identities[path] is None]
    rows = [
        {
            "directory": path,
            "exists": path in present,
            "cluster_id": identity.cluster_id if identity else None,
            "directory_id": uuid_to_str(identity.directory_id) if identity else None,
            "node_id": identity.node_id if identity else None,
        }
        for path, identity in ((path, identities.get(path)) for path in folders)
    ]
    if output == "table":
        _print_info(rows, problems)
    else:
        show(rows, output)
    if problems:
        # Kafka's tool exits 1 on problems as well, and scripts test for it.
        raise SystemExit(1)


def _print_info(rows: list[dict[str, Any]], problems: list[str]) -> None:
    """As Kafka's tool prints it."""
    if any(row["exists"] for row in rows):
        click.echo("Found log directories:")
        for row in rows:
            if row["exists"]:
                click.echo(f"  {row['directory']}")
    for row in rows:
        if row["cluster_id"] is not None:
            ids = f"cluster.id={row['cluster_id']}, directory.id={row['directory_id']}"
            click.echo(f"Found metadata in {row['directory']}: {ids}, node.id={row['node_id']}, version=1")
    if problems:
        click.echo("Found problems:")
        for problem in problems:
            click.echo(f"  {problem}")


_FEATURES = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "kraft.version": 0,
    "metadata.version": 30,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""The levels a 4.3 cluster begins with; others cannot be written yet."""


def _check_features(features: tuple[str, ...], *, kraft_version: int) -> None:
    for feature in features:
        name, equals, level = feature.partition("=")
        if not equals or not level.isdecimal():
            raise click.UsageError(f"--feature {feature}: write NAME=LEVEL, e.g. group.version=1")
        if name not in _FEATURES:
            raise CommandRefusal(f"--feature {feature}: {name} is not a feature; write one of {', '.join(_FEATURES)}")
        begins_with = kraft_version if name == "kraft.version" else _FEATURES[name]
        if begins_with != int(level):
            raise CommandRefusal(f"--feature {feature}: Klamm begins with {name}={begins_with}; leave the flag out")

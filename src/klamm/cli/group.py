"""`klamm group`: consumer groups, how far they have read, and where they go on."""

from __future__ import annotations

import json
from typing import Any

import click

from klamm.cli.refusal import Refusal, refuses
from klamm.cli.table import bootstrap_option, output_option, show, show_table


@click.group()
def group() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@group.command("ls")
@bootstrap_option
@output_option
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those in this state, e.g. Stable.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only those of this type: classic or consumer.")
@refuses
def ls(*, bootstrap: str, output: str, states: tuple[str, ...], types: tuple[str, ...]) -> None:
    """List groups."""
    from klamm.client.groups import list_groups
    from klamm.client.wire import Cluster

    with Cluster(bootstrap) as cluster:
        rows = list_groups(cluster, states, types)
    show(rows, output, "no groups")


@group.command("show")
@click.argument("name", metavar="GROUP")
@bootstrap_option
@output_option
@refuses
def show_(*, name: str, bootstrap: str, output: str) -> None:
    """Show one group: its state, its members, its offsets and how far they lag behind."""
    from klamm.client.groups import describe_group
    from klamm.client.wire import Cluster

    with Cluster(bootstrap) as cluster:
        found = describe_group(cluster, name)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    facts = ("type", "state", "assignor", "coordinator")
    click.echo(f"{name}: " + ", ".join(f"{fact} {found[fact] or '-'}" for fact in facts))
    for title, rows in (("members", found["members"]), ("offsets", found["offsets"])):
        click.echo(f"\n{len(rows)} {title}" if rows else f"\nno {title}")
        if rows:
            show_table(rows)


@group.command("seek")
@click.argument("name", metavar="GROUP")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="PLACE",
    help="earliest, latest, an offset, +N or -N from where it is, or a time such as 2026-05-01T12:00:00Z.",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", help="Only this topic; all it has by default."
)
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@bootstrap_option
@output_option
@refuses
def seek(*, name: str, target: str, topics: tuple[str, ...], dry_run: bool, bootstrap: str, output: str) -> None:
    """Let a group go on elsewhere. Its members must be stopped first."""
    from klamm.client.groups import parse_target, parse_topic, seek_group
    from klamm.client.wire import Cluster

    try:
        place = parse_target(target)
        wanted = [parse_topic(text) for text in topics]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with Cluster(bootstrap) as cluster:
        rows = seek_group(cluster, name, place, wanted, dry_run=dry_run)
    show(rows, output, f"{name} has no offsets to move; name a topic with --topic")
    if dry_run and output == "table":
        click.echo("Nothing was changed: this was a dry run.")


@group.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@refuses
def delete(*, names: tuple[str, ...], bootstrap: str) -> None:
    """Delete groups without members, and their offsets."""
    from klamm.client.groups import delete_groups
    from klamm.client.wire import Cluster
    from klamm.model.errors import ErrorCode

    with Cluster(bootstrap) as cluster:
        codes: dict[str, Any] = delete_groups(cluster, names)
    reasons = {
        ErrorCode.NON_EMPTY_GROUP: "it has members; stop them first",
        ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; `klamm group ls` lists them",
    }
    refused = []
    for name, code in codes.items():
        if code:
            refused.append(f"{name} was not deleted: {reasons.get(code, code.name)}")
        else:
            click.echo(f"Deleted {name}.")
    if refused:
        raise Refusal("; ".join(refused))

"""`klamm group`: groups of every type, how far they have read, and where they go on."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.command_errors import broker_refusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.completion_candidates import complete_group, complete_topic
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import note, output_option, show, show_one, table_lines
from klamm.cli.target import Target, cluster_options
from klamm.cli.watch import watch, watch_option
from klamm.model.units import pluralize

if TYPE_CHECKING:
    from klamm.client.admin.group_types import MemberDescription
    from klamm.client.blocking_cluster import BlockingCluster

_NAMED_MAX: Final = 3
"""How many members a sentence names."""


@click.group(cls=Noun)
def group() -> None:
    """Look at consumer groups, move their offsets, delete them."""


@group.command("ls")
@cluster_options
@output_option
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those in this state, e.g. Stable.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only those of this type: classic, consumer, share or streams.",
)
@click.option("--lag", "with_lag", is_flag=True, help="Add members and lag, which takes more requests.")
@watch_option
@refuses
def ls(
    *,
    target: Target,
    output: str,
    states: tuple[str, ...],
    types: tuple[str, ...],
    with_lag: bool,
    pause_s: float | None,
) -> None:
    """List groups; with --watch again and again, with members and lag."""
    from klamm.cli.queries.groups import list_groups

    measured = with_lag or pause_s is not None

    def query(cluster: BlockingCluster) -> list[dict[str, Any]]:
        return [
            {
                "group": group.group_id,
                "type": group.type,
                "protocol": group.protocol_type,
                "state": group.state,
                "coordinator": group.coordinator,
                **(_measure(cluster, group.group_id, group.type.lower()) if measured else {}),
            }
            for group in list_groups(cluster, states, types)
        ]

    columns = ("group", "type", "protocol", "state", "coordinator", *(("members", "lag") if measured else ()))
    watch(target, pause_s, query, functools.partial(show, output=output, empty="no groups", columns=columns))


def _measure(cluster: BlockingCluster, name: str, kind: str) -> dict[str, int | None]:
    """Members and lag of a group; None where the group is gone or its lag is not known."""
    from klamm.cli.queries.group_lag import describe_lag, total_lag
    from klamm.model.errors import ErrorCode, KlammError

    try:
        description = describe_lag(cluster, name, kind)
    except KlammError as error:
        # The list has groups that this principal may not describe, and one may be deleted before it is described.
        if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_AUTHORIZATION_FAILED):
            raise
        return {"members": None, "lag": None}
    return {"members": len(description["members"]), "lag": total_lag(description["offsets"])}


@group.command("show")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@cluster_options
@output_option
@refuses
def show_(*, name: str, target: Target, output: str) -> None:
    """Show one group of any type: its state, its members, its offsets and how far they lag behind."""
    from klamm.cli.queries.group_lag import describe_lag, total_lag

    with target.cluster() as cluster:
        description = describe_lag(cluster, name)

    def table() -> None:
        facts = ["type", "state", "assignor", "coordinator"]
        if description["epoch"] is not None:
            facts.append("epoch")
        lag = total_lag(description["offsets"])
        summary = [f"{fact} {description[fact] or '-'}" for fact in facts]
        click.echo(f"{name}: " + ", ".join([*summary, f"lag {'-' if lag is None else lag}"]))
        offset_title = "start offset" if description["type"] == "share" else "offset"
        members = [_member_row(member, description["type"]) for member in description["members"]]
        for title, rows in (("member", members), (offset_title, description["offsets"])):
            click.echo(f"\n{pluralize(len(rows), title)}" if rows else f"\nno {title}s")
            for line in table_lines(rows):
                click.echo(line)

    # CSV has one table; the members are left out of it.
    if output == "csv":
        columns = ("topic", "partition", "offset", "end", "lag", "member", "metadata")
        show(description["offsets"], output, columns=columns)
    else:
        show_one(description, output, table)


def _member_row(member: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A member's line: topics of a share group's, whose members share partitions; tasks of a streams group's."""
    heads = {
        "share": ("member", "client", "host", "epoch", "partitions"),
        "streams": ("member", "instance", "client", "host", "epoch"),
    }.get(kind, ("member", "instance", "client", "host", "partitions"))
    row = {head: member[head] for head in heads}
    if kind == "share":
        row["topics"] = ", ".join(member["topics"])
    return row | {role: ", ".join(names) for role, names in member.get("tasks", {}).items()}


@group.command("seek")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--to",
    "place",
    required=True,
    metavar="POSITION",
    help="earliest, latest, an offset, +N or -N from where it is, or a time: 2h ago, 2026-05-01T12:00:00Z.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,...]",
    shell_complete=complete_topic,
    help="Only this topic; all it has by default.",
)
@consent_options
@cluster_options
@output_option
@refuses
def seek(*, name: str, place: str, topics: tuple[str, ...], consent: Consent, target: Target, output: str) -> None:
    """Move a group's committed offsets. Its members must be stopped first."""
    import time

    from klamm.cli.group_seek import SeekTarget, parse_target, parse_topic, seek_group
    from klamm.cli.queries.group_lag import describe_lag
    from klamm.cli.queries.groups import find_group
    from klamm.model.errors import ErrorCode
    from klamm.model.units import parse_time_ms

    try:
        wanted = [parse_topic(text) for text in topics]
        try:
            goal = parse_target(place)
        except ValueError as error:
            try:
                goal = SeekTarget(timestamp=parse_time_ms(place, int(time.time() * 1000)))
            except ValueError:
                # The first error lists all accepted forms, timestamps included.
                raise error from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with target.cluster() as cluster:
        description = find_group(cluster, name)
        if description is not None and description.type == "share":
            reason = (
                "is a share group; kafka-share-groups.sh --reset-offsets moves its start offsets, nothing was changed"
            )
            raise broker_refusal(ErrorCode.INVALID_REQUEST, f"{name} {reason}")
        # The broker refuses this too, with UNKNOWN_MEMBER_ID; here the members can be named.
        if description is not None and description.members:
            code = ErrorCode.NON_EMPTY_GROUP
            raise broker_refusal(
                code, f"{name} has {_format_members(description.members)}; stop them first, nothing was changed"
            )
        # Computed twice: what is shown and agreed to, and then again with the offsets of the moment it is done.
        rows = seek_group(cluster, name, goal, wanted, dry_run=True)
        if not rows:
            describe_lag(cluster, name)  # raises GROUP_ID_NOT_FOUND when there is no such group
            click.echo(f"{name} has no offsets to move; name a topic with --topic", err=True)
            return
        for row in rows:
            if "wanted" in row:
                place, end = f"{row['topic']}-{row['partition']}", row["offset"]
                side = "ends" if row.pop("wanted") > end else "begins"
                note(f"{place} {side} at {end}, and is moved there")
        plan = ConfirmationPlan()
        for row in rows:
            if row["before"] != row["offset"]:
                plan.changes(f"{row['topic']}-{row['partition']}", row["before"], row["offset"])
        if not consent.to(plan, target):
            return
        moved = seek_group(cluster, name, goal, wanted, dry_run=False)
    show([{column: row[column] for column in ("topic", "partition", "before", "offset")} for row in moved], output)


def _format_members(members: Sequence[MemberDescription]) -> str:
    shown = ", ".join(member.client_id or member.member_id for member in members[:_NAMED_MAX])
    more = ", ..." if len(members) > _NAMED_MAX else ""
    return f"{pluralize(len(members), 'member')} ({shown}{more})"


@group.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_group)
@consent_options
@cluster_options
@refuses
def delete(*, names: tuple[str, ...], consent: Consent, target: Target) -> None:
    """Delete groups without members, and their offsets."""
    from klamm.cli.queries.group_lag import describe_lag
    from klamm.cli.queries.groups import delete_groups
    from klamm.model.errors import ErrorCode

    reasons = {
        ErrorCode.NON_EMPTY_GROUP: "it has members; stop them first",
        ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; `klamm group ls` lists them",
    }
    with target.cluster() as cluster:
        plan = ConfirmationPlan()
        # Each name once: a group named twice would be reported as missing the second time.
        for name in dict.fromkeys(names):
            description = describe_lag(cluster, name)
            if description["members"]:
                code = ErrorCode.NON_EMPTY_GROUP
                raise broker_refusal(code, f"{name} was not deleted: {reasons[code]}")
            plan.removes(f"group {name} offsets={len(description['offsets'])}")
        if not consent.to(plan, target):
            return
        codes = delete_groups(cluster, names)
    for name, code in codes.items():
        # A member may have joined after the plan was shown.
        if code:
            raise broker_refusal(code, f"{name} was not deleted: {reasons.get(code, code.text)}")
        click.echo(f"Deleted {name}.")

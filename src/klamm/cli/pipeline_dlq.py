"""`klamm pipeline dlq`: records that a pipeline could not read."""

from __future__ import annotations

import click

from klamm.cli.command_errors import refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options


@click.group(cls=Noun)
def dlq() -> None:
    """Records that a pipeline could not read: list, show, send again."""


_file = click.argument("file", type=click.Path(exists=True, dir_okay=False))
_set = click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Override a SET of the file.")


@dlq.command("ls")
@_file
@_set
@cluster_options
@output_option
@refuses
def ls(*, file: str, pairs: tuple[str, ...], target: Target, output: str) -> None:
    """Count dead letters by stream."""
    from klamm.cli.pipeline import load
    from klamm.pipeline.sql.dead_letters import DeadLetters
    from klamm.pipeline.sql.topics import ClusterTopics

    compiled = load(file, pairs, target=target)
    with ClusterTopics(compiled, target.client("admin")).admin() as admin:
        # A topic that does not exist yet holds no dead letters.
        there = {listing.name for listing in admin.list_topics()}
    rows = [
        DeadLetters(compiled, name, target.client("consumer")).counts()
        for name, topic in {**compiled.refused_rows, **compiled.dead_letters}.items()
        if topic in there
    ]
    show(rows, output, "no dead letters")


@dlq.command("show")
@_file
@click.argument("name", metavar="STREAM")
@click.option("-n", "limit", default=20, show_default=True, type=click.IntRange(1, 100_000), help="At most so many.")
@click.option("--all", "again", is_flag=True, help="Also those that were sent again.")
@_set
@cluster_options
@output_option
@refuses
def show_(
    *, file: str, name: str, limit: int, again: bool, pairs: tuple[str, ...], target: Target, output: str
) -> None:
    """Show dead letters: where they come from, what is wrong, and their bytes."""
    from klamm.cli.pipeline import load
    from klamm.pipeline.sql.dead_letters import DeadLetters

    letters = DeadLetters(load(file, pairs, target=target), name, target.client("consumer")).read(limit, again=again)
    rows = [
        {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "error": letter.error,
            "key": _text(letter.key),
            "value": _text(letter.value),
        }
        for letter in letters
    ]
    columns = ("topic", "partition", "offset", "error", "key", "value")
    show(rows, output, f"no dead letters of {name}", columns)


@dlq.command("redrive")
@_file
@click.argument("name", metavar="STREAM")
@click.option("-n", "limit", type=click.IntRange(1), help="At most so many.  [default: all]")
@_set
@consent_options
@cluster_options
@refuses
def redrive(
    *, file: str, name: str, limit: int | None, pairs: tuple[str, ...], consent: Consent, target: Target
) -> None:
    """Send dead letters to the topic they came from, each once."""
    from klamm.cli.pipeline import load
    from klamm.pipeline.sql.dead_letters import DeadLetters

    letters = DeadLetters(load(file, pairs, target=target), name, target.client("producer"))
    # An upper bound: a pipeline that runs may add dead letters until the redrive.
    waiting = letters.counts()["waiting"]
    plan = ConfirmationPlan()
    if waiting:
        plan.adds(f"up to {min(waiting, limit or waiting)} records of {letters.topic} back to where they came from")
    if not consent.to(plan, target):
        return
    click.echo(f"Sent {letters.redrive(limit)}.")
    if letters.lost:
        click.echo(f"{letters.lost} were cut, and their records are no longer in {letters.name}'s topic.", err=True)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")

"""`klamm topic`: which topics there are, what is in them, making, changing and deleting them."""

from __future__ import annotations

import fnmatch
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from klamm.cli.command_errors import broker_refusal, error_detail, refuses
from klamm.cli.command_group import Noun
from klamm.cli.completion_candidates import complete_setting, complete_topic
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show, show_one, table_lines
from klamm.cli.target import Target, cluster_options
from klamm.cli.watch import read_pause, watch, watch_option
from klamm.model.units import pluralize

if TYPE_CHECKING:
    from klamm.client.admin.topic_types import TopicDescription
    from klamm.client.blocking_cluster import BlockingCluster


@click.group(cls=Noun)
def topic() -> None:
    """List, show, create, alter and delete topics."""


@topic.command("ls")
@click.argument("pattern", required=False, metavar="[PATTERN]", shell_complete=complete_topic)
@click.option("--internal", is_flag=True, help="Internal topics too.")
@click.option("--sizes", is_flag=True, help="Add records and bytes, which takes more requests.")
@click.option(
    "--rate",
    "rate_s",
    is_flag=False,
    flag_value="1s",
    metavar="[TIME]",
    callback=read_pause,
    help="Add sizes, and records a second over TIME, 1s without one.",
)
@watch_option
@cluster_options
@output_option
@refuses
def ls(
    *,
    pattern: str | None,
    internal: bool,
    sizes: bool,
    rate_s: float | None,
    pause_s: float | None,
    target: Target,
    output: str,
) -> None:
    """List topics; PATTERN may hold * and ?. With --watch again and again, with sizes and records a second."""
    from klamm.cli.queries.topics import list_topics

    rates = TopicRates() if pause_s is not None or rate_s is not None else None

    def choose(cluster: BlockingCluster) -> list[TopicDescription]:
        return [
            topic
            for topic in list_topics(cluster)
            if (internal or not topic.internal) and (pattern is None or fnmatch.fnmatchcase(topic.name, pattern))
        ]

    def query(cluster: BlockingCluster) -> list[dict[str, Any]]:
        topics = choose(cluster)
        # A rate needs two measurements; --watch makes the second with its next round.
        if rates is not None and rate_s is not None and not rates.has_begun:
            _measure(cluster, topics, rates)
            time.sleep(rate_s)
            # Topics may have been created or deleted during the pause.
            topics = choose(cluster)
        measured = _measure(cluster, topics, rates) if sizes or rates is not None else {}
        return [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "replicas": topic.replication_factor,
                "problem": _problem(topic),
                **measured.get(topic.name, {}),
            }
            for topic in topics
        ]

    columns = (
        "topic",
        "partitions",
        "replicas",
        "problem",
        *(("offsets", "size_bytes") if sizes or rates else ()),
        *(("records_per_s",) if rates else ()),
    )
    empty = "no topics; `klamm topic create NAME` makes one"
    watch(target, pause_s, query, functools.partial(show, output=output, empty=empty, columns=columns))


class TopicRates:
    """Records a second of each topic, from the growth of its end offsets between two measurements."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: dict[str, tuple[float, int]] = {}

    @property
    def has_begun(self) -> bool:
        """Whether there is a measurement to compare with."""
        return bool(self._before)

    def add(self, topic: str, end: int) -> float | None:
        """The rate since the last measurement; None at the first."""
        now = self._clock()
        before = self._before.get(topic)
        self._before[topic] = now, end
        if before is None or now <= before[0]:
            return None
        # A topic that was deleted and created again starts at 0.
        return round(max(end - before[1], 0) / (now - before[0]), 1)


def _problem(topic: TopicDescription) -> str | None:
    leaderless = sum(p.leader < 0 for p in topic.partitions)
    behind = sum(len(p.isr) < len(p.replicas) for p in topic.partitions)
    if leaderless:
        return f"{leaderless} without leader"
    return f"{behind} under-replicated" if behind else None


def _measure(
    cluster: BlockingCluster, topics: Sequence[TopicDescription], rates: TopicRates | None
) -> dict[str, dict[str, Any]]:
    from klamm.cli.queries.cluster import describe_log_dirs
    from klamm.cli.queries.offsets import EARLIEST, LATEST, list_offsets

    places = [(description.name, p.partition) for description in topics for p in description.partitions]
    first, last = list_offsets(cluster, places, EARLIEST), list_offsets(cluster, places, LATEST)
    sizes: dict[str, dict[str, Any]] = {description.name: {"offsets": 0, "size_bytes": 0} for description in topics}
    if rates is not None:
        for topic in topics:
            # Markers of transactions count as records here: an end offset does not distinguish them.
            end = sum(last.get((topic.name, p.partition), 0) for p in topic.partitions)
            sizes[topic.name]["records_per_s"] = rates.add(topic.name, end)
    for place in places:
        if place in first and place in last:
            # Offsets, not records: compaction and markers leave gaps.
            sizes[place[0]]["offsets"] += last[place] - first[place]
    for _, log_dir in describe_log_dirs(cluster):
        for partition, replica in log_dir.replicas.items():
            if partition.topic in sizes:
                sizes[partition.topic]["size_bytes"] += replica.size
    return sizes


@topic.command("show")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("--all", "everything", is_flag=True, help="Unset settings too, with their defaults.")
@cluster_options
@output_option
@refuses
def show_(*, name: str, everything: bool, target: Target, output: str) -> None:
    """Show one topic: partitions, leaders, replicas, offsets, sizes, settings."""
    from klamm.cli.queries import configs
    from klamm.cli.queries.offsets import EARLIEST, LATEST, list_offsets
    from klamm.cli.queries.topics import describe_topics
    from klamm.cli.setting_syntax import to_person
    from klamm.model.ids import uuid_to_str

    with target.cluster() as cluster:
        description = describe_topics(cluster, [name])[0]
        settings = configs.describe(cluster, configs.TOPIC, name)
        places = [(name, p.partition) for p in description.partitions]
        first, last = list_offsets(cluster, places, EARLIEST), list_offsets(cluster, places, LATEST)
        sizes = _partition_sizes(cluster, name)
    topic_id = uuid_to_str(description.topic_id)
    partitions = [
        {
            "partition": p.partition,
            "leader": p.leader if p.leader >= 0 else None,
            "epoch": p.leader_epoch,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "first": first.get((name, p.partition)),
            "next": last.get((name, p.partition)),
            # The size on the leader; followers differ by their own retention and compaction.
            "size_bytes": sizes.get((p.leader, p.partition)),
        }
        for p in description.partitions
    ]
    chosen = [setting for setting in settings if everything or not setting.is_default]
    whole: dict[str, Any] = {
        "topic": name,
        "id": topic_id,
        "internal": description.internal,
        "partitions": partitions,
        "settings": {entry.name: entry.value for entry in chosen},
    }

    def table() -> None:
        counts = f"{pluralize(len(partitions), 'partition')}, {pluralize(description.replication_factor, 'replica')}"
        click.echo(f"{name}: {counts}, id {topic_id}\n")
        for line in table_lines(partitions):
            click.echo(line)
        words = [
            {"setting": entry.name, "value": to_person(entry.name, entry.value), "from": entry.source.name}
            for entry in chosen
        ]
        click.echo("\nno settings of its own" if not words else "")
        for line in table_lines(words):
            click.echo(line)

    show_one(whole, output, table) if output in ("table", "json", "yaml", "jsonl") else show(partitions, output)


def _partition_sizes(cluster: BlockingCluster, name: str) -> dict[tuple[int, int], int]:
    from klamm.cli.queries.cluster import describe_log_dirs

    return {
        (broker_id, partition.partition): replica.size
        for broker_id, log_dir in describe_log_dirs(cluster)
        for partition, replica in log_dir.replicas.items()
        # A future replica is the copy of a move between log dirs; it would count twice.
        if partition.topic == name and not replica.is_future
    }


_setting_option = click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_setting,
    help="A setting, with units: retention=7d, segment.bytes=64MiB, cleanup=compact.",
)


@topic.command("create")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-p", "--partitions", type=click.IntRange(1), help="How many; the cluster's default otherwise.")
@click.option("-r", "--replicas", type=click.IntRange(1), help="Copies of each; the cluster's default otherwise.")
@click.option("--if-not-exists", is_flag=True, help="Succeed when it exists already.")
@_setting_option
@consent_options
@cluster_options
@refuses
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    if_not_exists: bool,
    settings: tuple[str, ...],
    consent: Consent,
    target: Target,
) -> None:
    """Create topics."""
    from klamm.cli.queries.topics import create_topic
    from klamm.cli.setting_syntax import parse_settings, to_person
    from klamm.model.errors import ErrorCode, KlammError

    configs = parse_settings(settings)

    def make(cluster: BlockingCluster, name: str, *, validate_only: bool) -> tuple[int, int] | None:
        try:
            return create_topic(
                cluster,
                name,
                partitions=partitions or -1,
                replication_factor=replicas or -1,
                configs=configs,
                validate_only=validate_only,
            )
        except KlammError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                return None
            raise

    with target.cluster() as cluster:
        plan, wanted = ConfirmationPlan(), []
        for name in dict.fromkeys(names):
            # The broker fills in its defaults, so the plan shows the real counts; nothing is created when one of
            # several fails.
            shape = make(cluster, name, validate_only=True)
            if shape is None:
                continue
            wanted.append(name)
            own = "".join(f" {key}={to_person(key, value)}" for key, value in configs.items())
            plan.adds(f"topic {name} partitions={shape[0]} replicas={shape[1]}{own}")
        if not consent.to(plan, target):
            return
        for name in wanted:
            shape = make(cluster, name, validate_only=False)
            # None: with --if-not-exists another client created it since the plan.
            if shape is not None:
                click.echo(f"Created {name} with {pluralize(shape[0], 'partition')}, {pluralize(shape[1], 'replica')}.")


@topic.command("alter")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("-p", "--partitions", type=click.IntRange(1), help="How many it shall have; never fewer than now.")
@_setting_option
@click.option("--unset", "unset", multiple=True, metavar="KEY", help="A setting to take back to its default.")
@consent_options
@cluster_options
@refuses
def alter(
    *,
    name: str,
    partitions: int | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    consent: Consent,
    target: Target,
) -> None:
    """Change how many partitions a topic has, or its settings."""
    from klamm.cli.config import change_settings
    from klamm.cli.queries import configs
    from klamm.cli.queries.topics import add_partitions, find_topics

    if partitions is None and not settings and not unset:
        raise click.UsageError("say what to change: --partitions, --config KEY=VALUE or --unset KEY")
    with target.cluster() as cluster:
        now = len(find_topics(cluster, [name])[0].partitions)
        plan = ConfirmationPlan()
        operations = change_settings(plan, cluster, configs.TOPIC, name, settings, unset)
        more = partitions is not None and partitions != now
        if more:
            add_partitions(cluster, name, partitions or 0, validate_only=True)
            plan.changes("partitions", now, partitions)
            # The default partitioner hashes modulo the partition count, so the order per key breaks at this point.
            click.echo("Note: keys will be sent to other partitions than before.", err=True)
        if not consent.to(plan, target):
            return
        if operations:
            configs.alter(cluster, configs.TOPIC, name, operations)
        if more:
            add_partitions(cluster, name, partitions or 0)
    click.echo(f"Changed {name}.")


@topic.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("--if-exists", is_flag=True, help="Succeed when it does not exist.")
@consent_options
@cluster_options
@refuses
def delete(*, names: tuple[str, ...], if_exists: bool, consent: Consent, target: Target) -> None:
    """Delete topics and all that is in them."""
    from klamm.cli.queries.offsets import EARLIEST, LATEST, list_offsets
    from klamm.cli.queries.topics import delete_topics, list_topics, missing_topic

    with target.cluster() as cluster:
        known = {description.name: description for description in list_topics(cluster)}
        missing = [name for name in names if name not in known]
        if missing and not if_exists:
            # All or nothing: with a misspelt name in the list none is deleted.
            refusal = missing_topic(cluster, missing[0])
            raise broker_refusal(refusal.code, error_detail(refusal))
        wanted = [name for name in dict.fromkeys(names) if name in known]
        places = [(name, p.partition) for name in wanted for p in known[name].partitions]
        first, last = list_offsets(cluster, places, EARLIEST), list_offsets(cluster, places, LATEST)
        plan = ConfirmationPlan()
        for name in wanted:
            own = [place for place in places if place[0] == name]
            offsets = sum(last[place] - first[place] for place in own if place in first and place in last)
            plan.removes(f"topic {name} partitions={len(own)} offsets={offsets}")
        if not consent.to(plan, target):
            return
        for name, (code, message) in delete_topics(cluster, wanted).items():
            if code:
                raise broker_refusal(code, f"{name} was not deleted: {message or code.text}")
            click.echo(f"Deleted {name}.")


@topic.command("trim")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("--before", required=True, metavar="POSITION", help="An offset, `latest`, or a time such as 2h.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one.")
@consent_options
@cluster_options
@refuses
def trim(*, name: str, before: str, partitions: tuple[int, ...], consent: Consent, target: Target) -> None:
    """Delete the records before an offset or a time."""
    from klamm.cli.queries.offsets import (
        EARLIEST,
        InvalidPosition,
        check_position,
        delete_records,
        list_offsets,
        resolve_position,
    )
    from klamm.cli.queries.topics import find_topics
    from klamm.model.errors import ErrorCode

    try:
        check_position(before)
    except InvalidPosition as error:
        raise click.UsageError(f"--before: {error}") from None
    with target.cluster() as cluster:
        held = find_topics(cluster, [name])[0]
        missing = set(partitions) - {p.partition for p in held.partitions}
        if missing:
            many = pluralize(len(held.partitions), "partition")
            message = f"{name} has {many}, and none is number {min(missing)}; `klamm topic show {name}` lists them"
            raise broker_refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        chosen = [(name, p.partition) for p in held.partitions if not partitions or p.partition in partitions]
        first = list_offsets(cluster, chosen, EARLIEST)
        goals = resolve_position(cluster, chosen, before)
        goals = {place: goal for place, goal in goals.items() if goal > first.get(place, 0)}
        plan = ConfirmationPlan()
        for place, goal in goals.items():
            plan.removes(f"{place[0]}-{place[1]} offsets {first[place]} to {goal - 1}")
        if consent.to(plan, target):
            for place, low in delete_records(cluster, goals).items():
                click.echo(f"{place[0]}-{place[1]} begins at {low}.")

"""`klamm cluster reassign|drain|elect`: move replicas and leaders, with a plan before and progress meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.completion_candidates import complete_topic
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import note
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.client.admin.cluster_types import Node
    from klamm.client.admin.topic_types import TopicDescription
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.client.core.reassign_plan import Placement, ReplicaMove
    from klamm.model.config_resources import ConfigResource

POLL_S = 0.2
SHOWN_MAX = 20


def _throttle(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    from klamm.model.units import parse_size_bytes

    if value is None:
        return None
    try:
        return parse_size_bytes(value.removesuffix("/s"))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_throttle_option = click.option(
    "--throttle", callback=_throttle, metavar="BYTES/s", help="Copy no faster than this on each broker, e.g. 50MiB."
)
_wait_option = click.option("--no-wait", is_flag=True, help="Start the moves and leave; --throttle then stays set.")


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topic)
@click.option("--brokers", metavar="ID,...", help="Where replicas may lie.  [default: every broker that is alive]")
@click.option(
    "--replication-factor", "copies", type=click.IntRange(min=1), help="Copies of each partition from now on."
)
@click.option("--cancel", is_flag=True, help="Take back the moves under way.")
@click.option("--status", is_flag=True, help="Show the moves under way and follow them.")
@_throttle_option
@_wait_option
@cluster_options
@consent_options
@refuses
def reassign(
    *,
    topics: tuple[str, ...],
    brokers: str | None,
    copies: int | None,
    cancel: bool,
    status: bool,
    throttle: int | None,
    no_wait: bool,
    target: Target,
    consent: Consent,
) -> None:
    """Spread the replicas of topics (all without TOPIC) evenly over brokers and racks.

    Shows what would move with --dry-run; follows the moves to their end otherwise.
    """
    with target.cluster() as cluster:
        if status:
            _follow(cluster, _under_way(cluster, topics))
            return
        if cancel:
            _cancel(cluster, topics, target, consent)
            return
        alive = _alive(cluster)
        racks = _choose_brokers(alive, brokers)
        placements = _placements(cluster, topics, alive)
        moves = _plan(placements, racks, copies, balance=True)
        _carry_out(cluster, moves, alive, target, consent, throttle=throttle, wait=not no_wait)


@click.command()
@click.argument("broker_ids", nargs=-1, required=True, type=int, metavar="BROKER...")
@_throttle_option
@_wait_option
@cluster_options
@consent_options
@refuses
def drain(
    *, broker_ids: tuple[int, ...], throttle: int | None, no_wait: bool, target: Target, consent: Consent
) -> None:
    """Move every replica off brokers, so that they can be taken away; the others' replicas stay where they are."""
    with target.cluster() as cluster:
        alive = _alive(cluster)
        unknown = sorted(set(broker_ids) - set(alive))
        placements = _placements(cluster, (), alive)
        if unknown and not any(set(unknown) & set(placement.replicas) for placement in placements):
            raise CommandRefusal(
                f"broker {unknown[0]} is not there and holds nothing; `klamm cluster show` lists them",
                code=exit_codes.NOT_FOUND,
            )
        # A drained broker may be down: its replicas are copied from the others of their partitions.
        racks = {broker.id: broker.rack for broker in alive.values() if broker.id not in broker_ids}
        touched = [placement for placement in placements if set(broker_ids) & set(placement.replicas)]
        # No balancing: draining one broker must not move replicas of the others.
        moves = _plan(touched, racks, None, balance=False)
        _carry_out(cluster, moves, alive, target, consent, throttle=throttle, wait=not no_wait)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topic)
@click.option("--unclean", is_flag=True, help="Elect any living replica where there is no leader; records may be lost.")
@cluster_options
@consent_options
@refuses
def elect(*, topics: tuple[str, ...], unclean: bool, target: Target, consent: Consent) -> None:
    """Give partitions their preferred leader back, or with --unclean any leader at all."""
    from klamm.cli.queries.replicas import elect_leaders
    from klamm.client.admin.replica_types import ElectionType
    from klamm.model.errors import ErrorCode

    with target.cluster() as cluster:
        described = _topics(cluster, topics)
        # An unclean leader may lack acknowledged records, which are truncated on the other replicas.
        plan = ConfirmationPlan(destructive=unclean)
        places = []
        for topic in described:
            for partition in topic.partitions:
                if unclean and partition.leader < 0:
                    plan.changes(f"{topic.name}-{partition.partition}", "no leader", "any replica that is alive")
                elif not unclean and partition.replicas and partition.leader != partition.replicas[0]:
                    plan.changes(
                        f"{topic.name}-{partition.partition}",
                        f"led by {partition.leader}",
                        f"led by {partition.replicas[0]}",
                    )
                else:
                    continue
                places.append((topic.name, partition.partition))
        if not consent.to(plan, target):
            return
        results = elect_leaders(cluster, ElectionType(int(unclean)), places)
    refused = {
        # ELECTION_NOT_NEEDED: the leader moved back by itself between the plan and the request.
        place: (code, message)
        for place, (code, message) in results.items()
        if code and code != ErrorCode.ELECTION_NOT_NEEDED
    }
    click.echo(f"{len(results) - len(refused)} of {len(places)} partitions have the requested leader")
    if refused:
        (topic_name, index), (code, message) = next(iter(refused.items()))
        raise CommandRefusal(
            f"{topic_name}-{index}: {code.name}: {message or code.text};"
            " `klamm cluster show` lists the brokers that are alive"
        )


# Reading the cluster


def _alive(cluster: BlockingCluster) -> dict[int, Node]:
    from klamm.cli.queries.cluster import describe_cluster

    return {broker.id: broker for broker in describe_cluster(cluster).brokers if not broker.fenced}


def _choose_brokers(alive: Mapping[int, Node], text: str | None) -> dict[int, str | None]:
    if text is None:
        return {broker.id: broker.rack for broker in alive.values()}
    ids = [word.strip() for word in text.split(",") if word.strip()]
    for word in ids:
        if not word.isdecimal() or int(word) not in alive:
            known = ", ".join(map(str, sorted(alive)))
            raise CommandRefusal(f"broker {word} is not alive; these are: {known}", code=exit_codes.NOT_FOUND)
    return {int(word): alive[int(word)].rack for word in ids}


def _topics(cluster: BlockingCluster, names: Sequence[str]) -> list[TopicDescription]:
    from klamm.cli.queries.topics import find_topics, list_topics

    return find_topics(cluster, names) if names else list_topics(cluster)


def _placements(cluster: BlockingCluster, names: Sequence[str], alive: Mapping[int, Node]) -> list[Placement]:
    from klamm.cli.queries.cluster import describe_log_dirs
    from klamm.client.core.reassign_plan import Placement

    sizes: dict[tuple[str, int], int] = {}
    for _, log_dir in describe_log_dirs(cluster, sorted(alive)):
        for partition, replica in log_dir.replicas.items():
            # The largest replica: followers that are behind hold less than a new copy will.
            sizes[partition] = max(sizes.get(partition, 0), replica.size)
    return [
        Placement(
            topic.name, partition.partition, tuple(partition.replicas), sizes.get((topic.name, partition.partition), 0)
        )
        for topic in _topics(cluster, names)
        for partition in topic.partitions
    ]


def _under_way(cluster: BlockingCluster, names: Sequence[str]) -> list[tuple[str, int]]:
    from klamm.cli.queries.replicas import list_reassignments

    return sorted(place for place in list_reassignments(cluster) if not names or place[0] in names)


def _plan(
    placements: Sequence[Placement], racks: Mapping[int, str | None], copies: int | None, *, balance: bool
) -> list[ReplicaMove]:
    from klamm.client.core.reassign_plan import TooFewBrokers, plan_moves

    try:
        return plan_moves(placements, racks, copies=copies, balance=balance)
    except TooFewBrokers as error:
        raise CommandRefusal(f"{error}; add brokers, or write fewer copies with --replication-factor") from None


# Carrying out moves


def _carry_out(
    cluster: BlockingCluster,
    moves: Sequence[ReplicaMove],
    alive: Mapping[int, Node],
    target: Target,
    consent: Consent,
    *,
    throttle: int | None,
    wait: bool,
) -> None:
    from klamm.cli.queries.replicas import reassign as start_reassignment
    from klamm.model.units import format_size

    plan = ConfirmationPlan()
    for move in moves:
        size = f" ({format_size(move.copied_bytes)} to copy)" if move.copied_bytes else ""
        plan.changes(move.name, _list(move.before), _list(move.after) + size)
    if not consent.to(plan, target):
        return
    total = sum(move.copied_bytes for move in moves)
    click.echo(f"moving {len(moves)} partitions, {format_size(total)} to copy", err=True)
    places = [(move.topic, move.partition) for move in moves]
    if throttle is not None:
        # Before the reassignment: the fetchers of new replicas start at once, at full speed.
        _set_throttle(cluster, moves, alive, throttle)
    try:
        results = start_reassignment(cluster, {(move.topic, move.partition): move.after for move in moves})
        refused = [(place, code, message) for place, (code, message) in results.items() if code]
        if refused:
            (topic, index), code, message = refused[0]
            raise CommandRefusal(f"{topic}-{index} does not move: {code.name}: {message or code.text}")
        if wait:
            _follow(cluster, places)
    finally:
        # Even when the command is interrupted: a forgotten throttle slows down replication for good.
        if throttle is not None and wait:
            _clear_throttle(cluster, moves, alive)
    if not wait:
        click.echo("the moves are under way; `klamm cluster reassign --status` follows them")


def _list(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


def _follow(cluster: BlockingCluster, places: Sequence[tuple[str, int]]) -> None:
    """Show how far the moves are, until all are done."""
    from klamm.cli.outage import Outage, passes
    from klamm.cli.queries.replicas import list_reassignments
    from klamm.client.blocking_cluster import ClusterUnreachable
    from klamm.model.errors import KlammError

    # No limit: the moves go on without this command, and a broker may restart meanwhile.
    outage = Outage(None, note)
    if not places:
        click.echo("nothing is moving")
        return
    waiting: set[tuple[str, int]] = set(places)
    with click.progressbar(length=len(places), label="partitions moved", file=sys.stderr) as bar:
        while waiting:
            try:
                under_way = waiting.intersection(list_reassignments(cluster))
            except (ClusterUnreachable, KlammError) as error:
                if not passes(error):
                    raise
                outage.go_on(waiting, error)
                continue
            outage.end(*waiting)
            bar.update(len(waiting) - len(under_way))
            waiting = under_way
            if waiting:
                time.sleep(POLL_S)
    click.echo(f"{len(places)} partitions are where they should be")


def _cancel(cluster: BlockingCluster, names: Sequence[str], target: Target, consent: Consent) -> None:
    from klamm.cli.queries.replicas import list_reassignments
    from klamm.cli.queries.replicas import reassign as start_reassignment

    under_way = {
        place: reassignment
        for place, reassignment in list_reassignments(cluster).items()
        if not names or place[0] in names
    }
    plan = ConfirmationPlan()
    for (topic, index), reassignment in sorted(under_way.items()):
        # During a reassignment the replica list holds old and new brokers; cancelling drops those being added.
        kept = [broker for broker in reassignment.replicas if broker not in reassignment.adding]
        plan.changes(f"{topic}-{index}", f"moving to {_list(reassignment.replicas)}", f"stays on {_list(kept)}")
    if consent.to(plan, target):
        # Null replicas cancel a reassignment (KIP-455).
        results = start_reassignment(cluster, dict.fromkeys(under_way))
        refused = [(place, code) for place, (code, _) in results.items() if code]
        if refused:
            (topic, index), code = refused[0]
            raise CommandRefusal(f"the move of {topic}-{index} is not taken back: {code.name}: {code.text}")
        click.echo(f"{len(under_way)} moves were taken back")


def _set_throttle(cluster: BlockingCluster, moves: Sequence[ReplicaMove], alive: Mapping[int, Node], rate: int) -> None:
    from klamm.client.core.reassign_throttle import set_throttle

    _alter(cluster, set_throttle(moves, alive, rate))


def _clear_throttle(cluster: BlockingCluster, moves: Sequence[ReplicaMove], alive: Mapping[int, Node]) -> None:
    from klamm.client.core.reassign_throttle import clear_throttle

    _alter(cluster, clear_throttle({move.topic for move in moves}, alive))


def _alter(cluster: BlockingCluster, changes: Mapping[ConfigResource, Mapping[str, str | None]]) -> None:
    from klamm.cli.queries import configs
    from klamm.client.admin.config_types import AlterOp

    for resource, settings in changes.items():
        operations = [
            (AlterOp.DELETE if value is None else AlterOp.SET, name, value) for name, value in settings.items()
        ]
        configs.alter(cluster, resource.type, resource.name, operations)

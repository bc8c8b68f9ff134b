"""`klamm cluster`: brokers, quorum, disks, and partitions that need attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from klamm.cli.cluster_features import features, unregister
from klamm.cli.cluster_reassign import drain, elect, reassign
from klamm.cli.command_errors import refuses
from klamm.cli.command_group import Noun
from klamm.cli.output import output_option, show_one, table_lines
from klamm.cli.target import Target, cluster_options
from klamm.model.units import pluralize

if TYPE_CHECKING:
    from klamm.client.admin.replica_types import LogDirDescription
    from klamm.client.admin.topic_types import PartitionDescription


@click.group(cls=Noun)
def cluster() -> None:
    """Look at the cluster as a whole, and move replicas."""


for _command in (drain, elect, features, reassign, unregister):
    cluster.add_command(_command)


@cluster.command("show")
@cluster_options
@output_option
@refuses
def show_(*, target: Target, output: str) -> None:
    """Show brokers, quorum, disks and partitions that need attention."""
    from klamm.cli.queries.cluster import describe_cluster, describe_log_dirs, describe_quorum
    from klamm.cli.queries.configs import TOPIC, describe_all
    from klamm.cli.queries.topics import list_topics
    from klamm.model.errors import KlammError

    with target.cluster() as connected:
        about = describe_cluster(connected)
        try:
            members: Any = describe_quorum(connected)
        except KlammError:
            members = None  # not every broker that speaks Kafka's protocol has a quorum to show
        # A fenced broker does not answer, and would delay the command by its timeout.
        alive = [broker.id for broker in about.brokers if not broker.fenced]
        dirs = describe_log_dirs(connected, alive)
        topics = list_topics(connected)
        behind = [t.name for t in topics if any(len(p.isr) < len(p.replicas) for p in t.partitions)]
        # Only for topics that are behind: min.insync.replicas of all topics is a large response in a large cluster.
        settings = describe_all(connected, TOPIC, behind, ["min.insync.replicas"]) if behind else {}
    needed = {name: int(entries[0].value or 1) for name, entries in settings.items() if entries}
    partitions = [(topic.name, p) for topic in topics for p in topic.partitions]
    brokers = [
        {
            "broker": broker.id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "state": "fenced" if broker.fenced else "alive",
            "leads": sum(p.leader == broker.id for _, p in partitions),
            "replicas": sum(broker.id in p.replicas for _, p in partitions),
            "size_bytes": sum(
                replica.size for broker_id, d in dirs if broker_id == broker.id for replica in d.replicas.values()
            ),
            "free_bytes": _free(dirs, broker.id),
        }
        for broker in about.brokers
    ]
    trouble = [
        {
            "partition": f"{name}-{p.partition}",
            "problem": _problem(p, needed.get(name, 1)),
            "leader": p.leader if p.leader >= 0 else None,
            "isr": list(p.isr),
            "replicas": list(p.replicas),
        }
        for name, p in partitions
        if p.leader < 0 or len(p.isr) < len(p.replicas)
    ]
    whole = {
        "cluster_id": about.cluster_id,
        # In KRaft the controller id of Metadata is a random broker; only the quorum has the active controller.
        "controller": members.leader_id if members else about.controller_id,
        "quorum_leader": members.leader_id if members else None,
        "quorum_epoch": members.leader_epoch if members else None,
        "voters": [voter.replica_id for voter in members.voters] if members else [],
        "topics": len(topics),
        "partitions": len(partitions),
        "brokers": brokers,
        "trouble": trouble,
    }

    def table() -> None:
        held = f"{pluralize(len(topics), 'topic')}, {pluralize(len(partitions), 'partition')}"
        click.echo(f"cluster {about.cluster_id}: {held}")
        if members:
            voters = ",".join(str(voter.replica_id) for voter in members.voters)
            click.echo(f"quorum: leader {members.leader_id}, epoch {members.leader_epoch}, voters {voters}")
        click.echo("")
        for line in table_lines(brokers):
            click.echo(line)
        click.echo("\nevery partition has its leader and all its replicas" if not trouble else "\nneed attention:")
        for line in table_lines(trouble):
            click.echo(line)

    show_one(whole, output, table)


def _problem(partition: PartitionDescription, needed: int) -> str:
    if partition.leader < 0:
        return "offline"
    return "under min ISR" if len(partition.isr) < needed else "under-replicated"


def _free(dirs: list[tuple[int, LogDirDescription]], broker: int) -> int | None:
    free = [log_dir.usable_bytes for broker_id, log_dir in dirs if broker_id == broker and log_dir.usable_bytes >= 0]
    # The fullest disk: a log dir that is full fails, and the replicas in it go offline.
    return min(free) if free else None

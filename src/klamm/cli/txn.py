"""`klamm txn`: the transactions of a cluster, and ending hanging ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, broker_refusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show, show_one
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.client.admin.transaction_types import ProducerState
    from klamm.client.blocking_cluster import BlockingCluster

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group(cls=Noun)
def txn() -> None:
    """Look at transactions; end one that hangs."""


@txn.command("ls")
@cluster_options
@output_option
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those in this state, e.g. Ongoing.")
@click.option("--older-than", metavar="TIME", help="Only those that began longer ago, e.g. 10m.")
@click.option("--pattern", metavar="REGEX", help="Only those whose whole id matches.")
@refuses
def ls(*, target: Target, output: str, states: tuple[str, ...], older_than: str | None, pattern: str | None) -> None:
    """List transactional ids."""
    from klamm.cli.queries.transactions import list_transactions
    from klamm.client.admin.transaction_types import TRANSACTION_STATES
    from klamm.model.units import parse_duration_ms

    unknown = [state for state in states if state not in TRANSACTION_STATES]
    if unknown:
        raise CommandRefusal(
            f"there is no state {unknown[0]}; write one such as Ongoing or Empty", code=exit_codes.USAGE
        )
    try:
        duration_ms = -1 if older_than is None else parse_duration_ms(older_than)
    except ValueError as error:
        raise click.UsageError(f"--older-than: {error}") from None
    with target.cluster() as cluster:
        listings = list_transactions(cluster, states=states, duration_ms=duration_ms, pattern=pattern)
    rows = [
        {
            "transactional_id": listing.transactional_id,
            "state": listing.state,
            "producer_id": listing.producer_id,
            "coordinator": listing.coordinator,
        }
        for listing in listings
    ]
    columns = ("transactional_id", "state", "producer_id", "coordinator")
    show(rows, output, "no transactional ids", columns)


@txn.command("show")
@click.argument("transactional_id")
@cluster_options
@output_option
@refuses
def show_(*, transactional_id: str, target: Target, output: str) -> None:
    """Show one transactional id: its state, producer, age and partitions."""
    with target.cluster() as cluster:
        show_one(_describe(cluster, transactional_id), output)


@txn.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="End a transaction that hangs in this topic ...")
@click.option("--partition", type=click.IntRange(0), help="... in this partition ...")
@click.option("--start-offset", type=click.IntRange(0), help="... and began at this offset.")
@consent_options
@cluster_options
@refuses
def abort(
    *,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    consent: Consent,
    target: Target,
) -> None:
    """Abort the open transaction of an id and fence its producer, or end one that hangs in a partition.

    With an id the coordinator aborts it, as for a new producer with that id. A transaction that no coordinator has is
    named by topic, partition and the offset at which it began; an abort marker is written to the partition.
    """
    with target.cluster() as cluster:
        if transactional_id is not None and topic is None:
            before = _open_transaction(cluster, transactional_id)
            plan = ConfirmationPlan()
            plan.removes(
                f"open transaction of {transactional_id} in {', '.join(before['partitions']) or 'no partition'}"
            )
            if consent.to(plan, target):
                # InitProducerId stores its timeout with the id; the one of the producer is kept.
                _abort_by_id(cluster, transactional_id, before["timeout_ms"])
        elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
            producer = _open_producer(cluster, topic, partition, start_offset)
            plan = ConfirmationPlan()
            plan.removes(f"transaction of producer {producer.producer_id} in {topic}-{partition} from {start_offset}")
            if consent.to(plan, target):
                _write_marker(cluster, topic, partition, producer)
        else:
            raise click.UsageError("write a transactional id, or --topic, --partition and --start-offset")


def _describe(cluster: BlockingCluster, transactional_id: str) -> dict[str, Any]:
    from klamm.cli.queries.transactions import describe_transaction
    from klamm.client.errors import KafkaError
    from klamm.model.errors import ErrorCode

    try:
        description = describe_transaction(cluster, transactional_id)
    except KafkaError as error:
        if error.item is None:  # not the answer about the id: no coordinator, or no permission
            raise
        sentence = f"{transactional_id} cannot be shown"
        if error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            sentence = f"the transactional id {transactional_id} was never used; `klamm txn ls` lists those in use"
        raise broker_refusal(error.code, sentence) from None
    began_ms = description.start_time_ms
    # The coordinator keeps the start time of the last transaction after its end.
    is_open = began_ms is not None and description.state in OPEN_STATES
    return {
        "transactional_id": transactional_id,
        "state": description.state,
        "producer_id": description.producer_id,
        "producer_epoch": description.producer_epoch,
        "timeout_ms": description.timeout_ms,
        "open_for_ms": max(int(time.time() * 1000) - (began_ms or 0), 0) if is_open else None,
        "partitions": [str(partition) for partition in description.partitions],
    }


def _open_transaction(cluster: BlockingCluster, transactional_id: str) -> dict[str, Any]:
    before = _describe(cluster, transactional_id)
    # PrepareCommit and PrepareAbort are decided: their markers are on the way and nothing can stop them.
    if before["state"] != "Ongoing":
        raise CommandRefusal(f"{transactional_id} has no open transaction: it is {before['state']}")
    return before


def _abort_by_id(cluster: BlockingCluster, transactional_id: str, timeout_ms: int) -> None:
    from klamm.cli.queries.transactions import fence_producer
    from klamm.client.errors import KafkaError

    try:
        fence_producer(cluster, transactional_id, timeout_ms)
    except KafkaError as error:
        raise broker_refusal(error.code, f"{transactional_id} cannot be aborted") from None
    click.echo(f"Aborted {transactional_id}; its producer is fenced.")


def _open_producer(cluster: BlockingCluster, topic: str, partition: int, start_offset: int) -> ProducerState:
    from klamm.cli.queries.transactions import describe_producers

    producers = describe_producers(cluster, topic, partition)
    for producer in producers:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = [producer.transaction_start_offset for producer in producers]
    begun = ", ".join(str(start) for start in starts if start is not None)
    raise CommandRefusal(
        f"no transaction began at offset {start_offset} of {topic}-{partition};"
        + (f" open ones began at {begun}" if begun else " none is open there")
    )


def _write_marker(cluster: BlockingCluster, topic: str, partition: int, producer: ProducerState) -> None:
    from klamm.cli.queries.transactions import abort_transaction
    from klamm.client.errors import KafkaError

    try:
        abort_transaction(
            cluster,
            topic,
            partition,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=producer.coordinator_epoch,
        )
    except KafkaError as error:
        raise broker_refusal(error.code, "the marker was not written") from None
    click.echo(f"Ended the transaction of producer {producer.producer_id} in {topic}-{partition}.")

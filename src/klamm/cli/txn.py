"""`klamm txn`: the transactions of a cluster, and how to end one that hangs."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, broker_refusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show, show_one
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
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
    from klamm.cli.units import parse_duration_ms
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.list_transactions import ListTransactionsRequest

    try:
        duration_ms = -1 if older_than is None else parse_duration_ms(older_than)
    except ValueError as error:
        raise click.UsageError(f"--older-than: {error}") from None
    request = ListTransactionsRequest(
        state_filters=list(states),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )
    rows: list[dict[str, Any]] = []
    with target.cluster() as cluster:
        for broker_id in cluster.broker_ids:
            answer = cluster.broker(broker_id).ask(request)
            if answer.error_code:
                raise broker_refusal(ErrorCode(answer.error_code), f"broker {broker_id} refuses")
            if answer.unknown_state_filters:
                raise CommandRefusal(
                    f"there is no state {answer.unknown_state_filters[0]}; write one such as Ongoing or Empty",
                    code=exit_codes.USAGE,
                )
            rows += [
                {
                    "transactional_id": state.transactional_id,
                    "state": state.transaction_state,
                    "producer_id": state.producer_id,
                    "coordinator": broker_id,
                }
                for state in answer.transaction_states
            ]
    columns = ("transactional_id", "state", "producer_id", "coordinator")
    show(sorted(rows, key=itemgetter("transactional_id")), output, "no transactional ids", columns)


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

    With an id the coordinator aborts it, as if a new producer had come. A transaction no coordinator knows of is named
    by topic, partition and the offset at which it began; its marker is written there by hand.
    """
    with target.cluster() as cluster:
        if transactional_id is not None and topic is None:
            before = _open_transaction(cluster, transactional_id)
            plan = ConfirmationPlan()
            plan.removes(
                f"open transaction of {transactional_id} in {', '.join(before['partitions']) or 'no partition'}"
            )
            if consent.to(plan, target):
                _abort_by_id(cluster, transactional_id, before["timeout_ms"])
        elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
            marker = _marker(cluster, topic, partition, start_offset)
            plan = ConfirmationPlan()
            plan.removes(f"transaction of producer {marker.producer_id} in {topic}-{partition} from {start_offset}")
            if consent.to(plan, target):
                _write_marker(cluster, topic, partition, marker)
        else:
            raise click.UsageError("write a transactional id, or --topic, --partition and --start-offset")


def _describe(cluster: BlockingCluster, transactional_id: str) -> dict[str, Any]:
    from klamm.client.blocking_cluster import TRANSACTION
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest

    coordinator = cluster.coordinator(TRANSACTION, transactional_id)
    described = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id])).transaction_states[0]
    if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise broker_refusal(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"the transactional id {transactional_id} was never used; `klamm txn ls` lists those in use",
        )
    if described.error_code:
        raise broker_refusal(ErrorCode(described.error_code), f"{transactional_id} cannot be shown")
    began_ms = described.transaction_start_time_ms
    is_open = described.transaction_state in OPEN_STATES
    return {
        "transactional_id": transactional_id,
        "state": described.transaction_state,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "timeout_ms": described.transaction_timeout_ms,
        "open_for_ms": max(int(time.time() * 1000) - began_ms, 0) if is_open and began_ms >= 0 else None,
        "partitions": [f"{topic.topic}-{index}" for topic in described.topics for index in topic.partitions],
    }


def _open_transaction(cluster: BlockingCluster, transactional_id: str) -> dict[str, Any]:
    before = _describe(cluster, transactional_id)
    if before["state"] != "Ongoing":
        raise CommandRefusal(f"{transactional_id} has no open transaction: it is {before['state']}")
    return before


def _abort_by_id(cluster: BlockingCluster, transactional_id: str, timeout_ms: int) -> None:
    from klamm.client.blocking_cluster import TRANSACTION
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.init_producer_id import InitProducerIdRequest

    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    coordinator = cluster.coordinator(TRANSACTION, transactional_id)
    for _ in range(200):
        code = ErrorCode(coordinator.ask(request).error_code)
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        time.sleep(0.02)
    if code:
        raise broker_refusal(code, f"{transactional_id} cannot be aborted")
    click.echo(f"Aborted {transactional_id}; its producer is fenced.")


def _marker(cluster: BlockingCluster, topic: str, partition: int, start_offset: int) -> Any:
    from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
    from klamm.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic

    leader = cluster.leader(topic, partition)
    asked = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    producers = leader.ask(asked).topics[0].partitions[0].active_producers
    open_producer = next(
        (producer for producer in producers if producer.current_txn_start_offset == start_offset), None
    )
    if open_producer is None:
        begun = ", ".join(str(e.current_txn_start_offset) for e in producers if e.current_txn_start_offset >= 0)
        raise CommandRefusal(
            f"no transaction began at offset {start_offset} of {topic}-{partition};"
            + (f" open ones began at {begun}" if begun else " none is open there")
        )
    return WritableTxnMarker(
        producer_id=open_producer.producer_id,
        producer_epoch=open_producer.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(open_producer.coordinator_epoch, 0),
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
    )


def _write_marker(cluster: BlockingCluster, topic: str, partition: int, marker: Any) -> None:
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

    leader = cluster.leader(topic, partition)
    result = leader.ask(WriteTxnMarkersRequest(markers=[marker])).markers[0].topics[0].partitions[0]
    if result.error_code:
        raise broker_refusal(ErrorCode(result.error_code), "the marker was not written")
    click.echo(f"Ended the transaction of producer {marker.producer_id} in {topic}-{partition}.")

"""`klamm txn`: the transactions of a cluster, and how to end one that hangs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from klamm.cli.refusal import Refusal, refuses

if TYPE_CHECKING:
    from klamm.client.wire import Cluster

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

_server = click.option(
    "-b", "--bootstrap-server", "bootstrap", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT",
    help="A broker of the cluster.",
)  # fmt: skip
_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the answer.",
)


@click.group()
def txn() -> None:
    """Look at transactions; end one that hangs."""


@txn.command("ls")
@_server
@_output
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only those in this state, e.g. Ongoing.")
@click.option("--older-than", type=click.IntRange(0), metavar="MS", help="Only those that began longer ago.")
@click.option("--pattern", metavar="REGEX", help="Only those whose whole id matches.")
@refuses
def ls(*, bootstrap: str, output: str, states: tuple[str, ...], older_than: int | None, pattern: str | None) -> None:
    """List transactional ids."""
    from klamm.client.wire import Cluster
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.list_transactions import ListTransactionsRequest

    request = ListTransactionsRequest(
        state_filters=list(states),
        duration_filter=-1 if older_than is None else older_than,
        transactional_id_pattern=pattern,
    )
    rows: list[dict[str, Any]] = []
    with Cluster(bootstrap) as cluster:
        for broker_id in cluster.broker_ids:
            answer = cluster.broker(broker_id).ask(request)
            if answer.error_code:
                raise Refusal(f"broker {broker_id} refuses: {ErrorCode(answer.error_code).name}")
            if answer.unknown_state_filters:
                raise Refusal(
                    f"there is no state {answer.unknown_state_filters[0]}; write one such as Ongoing or Empty"
                )
            rows += [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.transaction_state,
                    "producer_id": each.producer_id,
                    "coordinator": broker_id,
                }
                for each in answer.transaction_states
            ]
    _show(sorted(rows, key=lambda row: row["transactional_id"]), output, "no transactional ids")


@txn.command("show")
@click.argument("transactional_id")
@_server
@_output
@refuses
def show(*, transactional_id: str, bootstrap: str, output: str) -> None:
    """Show one transactional id: its state, producer, age and partitions."""
    from klamm.client.wire import Cluster

    with Cluster(bootstrap) as cluster:
        _show([_describe(cluster, transactional_id)], output, "")


@txn.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="End a transaction that hangs in this topic ...")
@click.option("--partition", type=click.IntRange(0), help="... in this partition ...")
@click.option("--start-offset", type=click.IntRange(0), help="... and began at this offset.")
@_server
@refuses
def abort(
    *, transactional_id: str | None, topic: str | None, partition: int | None, start_offset: int | None, bootstrap: str
) -> None:
    """Abort the open transaction of an id and fence its producer, or end one that hangs in a partition.

    With an id the coordinator aborts it, as if a new producer had come. A transaction no coordinator knows of is named
    by topic, partition and the offset at which it began; its marker is written there by hand.
    """
    from klamm.client.wire import Cluster

    with Cluster(bootstrap) as cluster:
        if transactional_id is not None and topic is None:
            _abort_by_id(cluster, transactional_id)
        elif transactional_id is None and topic is not None and partition is not None and start_offset is not None:
            _abort_hanging(cluster, topic, partition, start_offset)
        else:
            raise click.UsageError("write a transactional id, or --topic, --partition and --start-offset")


def _describe(cluster: Cluster, transactional_id: str) -> dict[str, Any]:
    from klamm.client.wire import TRANSACTION
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest

    coordinator = cluster.coordinator(TRANSACTION, transactional_id)
    found = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id])).transaction_states[0]
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise Refusal(f"nobody has used the transactional id {transactional_id}; `klamm txn ls` lists those in use")
    if found.error_code:
        raise Refusal(f"{transactional_id} cannot be shown: {ErrorCode(found.error_code).name}")
    began_ms = found.transaction_start_time_ms
    is_open = found.transaction_state in OPEN_STATES
    return {
        "transactional_id": transactional_id,
        "state": found.transaction_state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.transaction_timeout_ms,
        "open_for_ms": max(int(time.time() * 1000) - began_ms, 0) if is_open and began_ms >= 0 else None,
        "partitions": [f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions],
    }


def _abort_by_id(cluster: Cluster, transactional_id: str) -> None:
    from klamm.client.wire import TRANSACTION
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.init_producer_id import InitProducerIdRequest

    before = _describe(cluster, transactional_id)
    if before["state"] != "Ongoing":
        raise Refusal(f"{transactional_id} has no open transaction: it is {before['state']}")
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=before["timeout_ms"])
    coordinator = cluster.coordinator(TRANSACTION, transactional_id)
    for _ in range(200):
        code = ErrorCode(coordinator.ask(request).error_code)
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        time.sleep(0.02)
    if code:
        raise Refusal(f"{transactional_id} cannot be aborted: {code.name}")
    click.echo(f"Aborted {transactional_id}; its producer is fenced.")


def _abort_hanging(cluster: Cluster, topic: str, partition: int, start_offset: int) -> None:
    from klamm.model.errors import ErrorCode
    from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
    from klamm.protocol.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    leader = cluster.leader(topic, partition)
    asked = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    producers = leader.ask(asked).topics[0].partitions[0].active_producers
    found = next((each for each in producers if each.current_txn_start_offset == start_offset), None)
    if found is None:
        begun = ", ".join(str(e.current_txn_start_offset) for e in producers if e.current_txn_start_offset >= 0)
        raise Refusal(
            f"no transaction began at offset {start_offset} of {topic}-{partition};"
            + (f" open ones began at {begun}" if begun else " none is open there")
        )
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(found.coordinator_epoch, 0),
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
    )
    result = leader.ask(WriteTxnMarkersRequest(markers=[marker])).markers[0].topics[0].partitions[0]
    if result.error_code:
        raise Refusal(f"the marker was not written: {ErrorCode(result.error_code).name}")
    click.echo(f"Ended the transaction of producer {found.producer_id} in {topic}-{partition}.")


def _show(rows: list[dict[str, Any]], output: str, empty: str) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(empty)
        return
    heads = list(rows[0])
    table = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(heads))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else str(value)

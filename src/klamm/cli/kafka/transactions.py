"""kafka-transactions: list, describe, find and abort transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed
from klamm.cli.kafka.script import ToolFailed, columns, connect, java_error, read_flags
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

FLAGS: Final = Flags(
    "kafka-transactions",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag("duration-filter", "list: only those open longer, in milliseconds.", "ms"),
    Flag("transactional-id-pattern", "list: only ids that match.", "pattern"),
    Flag("transactional-id", "describe: the id.", "id"),
    Flag("transactionalId", "forceTerminateTransaction: the id.", "id"),
    Flag("topic", "describe-producers, find-hanging, abort: the topic.", "topic"),
    Flag("partition", "describe-producers, find-hanging, abort: the partition.", "number"),
    Flag("broker-id", "describe-producers, find-hanging: the broker to ask.", "number"),
    Flag("max-transaction-timeout", "find-hanging: minutes after which one hangs.", "minutes"),
    Flag("start-offset", "abort: where the transaction began.", "offset"),
    Flag("producer-id", "abort: the producer.", "number"),
    Flag("producer-epoch", "abort: its epoch.", "number"),
    Flag("coordinator-epoch", "abort: the coordinator's epoch.", "number"),
)
_USAGE = "usage: kafka-transactions.sh [-h] [-v] [--command-config FILE] --bootstrap-server host:port COMMAND ...\n"
_ERROR = _USAGE + "kafka-transactions.sh: error: "
HANGING_MINUTES: Final = 15


def main(args: list[str]) -> int:
    """Run kafka-transactions."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    if not parsed.rest:
        raise ToolFailed(_ERROR + "too few arguments")
    if not parsed.has("bootstrap-server"):
        raise ToolFailed(_ERROR + "argument --bootstrap-server is required")
    act = _COMMANDS.get(parsed.rest[0])
    if act is None:
        raise ToolFailed(f"{_ERROR}invalid choice: '{parsed.rest[0]}' (choose from {', '.join(_COMMANDS)})")
    with connect(parsed) as cluster:
        act(cluster, parsed)
    return 0


def _needs(parsed: Parsed, *names: str) -> None:
    for name in names:
        if not parsed.has(name):
            raise ToolFailed(f"{_ERROR}argument --{name} is required")


def _list(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.errors import raise_for
    from klamm.protocol.messages.list_transactions import ListTransactionsRequest

    request = ListTransactionsRequest(
        duration_filter=parsed.integer("duration-filter", -1, bits=64) or -1,
        transactional_id_pattern=parsed.get("transactional-id-pattern"),
    )
    rows = []
    for broker in cluster.broker_ids:
        answer = cluster.broker(broker).ask(request)
        raise_for(answer.error_code)
        rows += [
            [state.transactional_id, str(broker), str(state.producer_id), state.transaction_state]
            for state in answer.transaction_states
        ]
    print(columns(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], rows))


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.blocking_cluster import TRANSACTION
    from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest

    _needs(parsed, "transactional-id")
    name = parsed.text("transactional-id")
    coordinator = cluster.coordinator(TRANSACTION, name)
    described = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]
    if described.error_code:
        reason = (
            "the ID could not be found"
            if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            else ErrorCode(described.error_code).name
        )
        raise ToolFailed(
            f"Failed to describe transaction state of transactional-id `{name}`: DescribeTransactions request for"
            f" transactionalId `{name}` failed because {reason}. Enable debug logging for additional detail."
        )
    began = described.transaction_start_time_ms
    heads = ["CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"]
    heads += ["TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"]
    owner = next((b for b in cluster.broker_ids if cluster.broker(b) is coordinator), cluster.broker_ids[0])
    row = [
        str(owner),
        name,
        str(described.producer_id),
        str(described.producer_epoch),
        described.transaction_state,
    ]
    row += [str(described.transaction_timeout_ms)]
    row += ["None", "None"] if began < 0 else [str(began), str(max(int(time.time() * 1000) - began, 0))]
    row.append(",".join(f"{topic.topic}-{index}" for topic in described.topics for index in topic.partitions))
    print(columns(heads, [row]))


def _producers(cluster: BlockingCluster, topic: str, partition: int, broker: int | None) -> list[Any]:
    from klamm.client.errors import raise_for
    from klamm.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest

    asked = cluster.leader(topic, partition) if broker is None else cluster.broker(broker)
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    description = asked.ask(request).topics[0].partitions[0]
    raise_for(description.error_code, description.error_message)
    return list(description.active_producers)


def _describe_producers(cluster: BlockingCluster, parsed: Parsed) -> None:
    _needs(parsed, "topic", "partition")
    partition = parsed.integer("partition") or 0
    heads = ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"]
    heads.append("CurrentTransactionStartOffset")
    topic, broker = parsed.text("topic"), parsed.integer("broker-id")
    try:
        producers = _producers(cluster, topic, partition, broker)
    except KlammError as error:
        whom = "leader" if broker is None else f"broker {broker}"
        raise ToolFailed(
            f"Failed to describe producers for partition {topic}-{partition} on {whom}: {java_error(error)}"
        ) from None
    rows = [
        [
            str(producer.producer_id),
            str(producer.producer_epoch),
            str(producer.coordinator_epoch),
            str(producer.last_sequence),
            str(producer.last_timestamp),
            "None" if producer.current_txn_start_offset < 0 else str(producer.current_txn_start_offset),
        ]
        for producer in producers
    ]
    print(columns(heads, rows))


def _find_hanging(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.topics import list_topics

    if not parsed.has("topic") and not parsed.has("broker-id"):
        raise ToolFailed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    limit_ms = (parsed.integer("max-transaction-timeout", HANGING_MINUTES) or HANGING_MINUTES) * 60_000
    now = int(time.time() * 1000)
    known = _known_producers(cluster)
    rows = []
    for topic in list_topics(cluster):
        if parsed.has("topic") and topic.name != parsed.text("topic"):
            continue
        for p in topic.partitions:
            if parsed.has("partition") and p.partition != parsed.integer("partition"):
                continue
            if p.leader < 0 or (parsed.has("broker-id") and p.leader != parsed.integer("broker-id")):
                continue
            for producer in _producers(cluster, topic.name, p.partition, None):
                open_ms = now - producer.last_timestamp
                if producer.current_txn_start_offset < 0 or open_ms <= limit_ms:
                    continue
                if (topic.name, p.partition) in known.get(producer.producer_id, set()):
                    continue
                rows.append(
                    [
                        topic.name,
                        str(p.partition),
                        str(producer.producer_id),
                        str(producer.producer_epoch),
                        str(producer.coordinator_epoch),
                        str(producer.current_txn_start_offset),
                        str(producer.last_timestamp),
                        str(open_ms // 60_000),
                    ]
                )
    heads = ["Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp"]
    print(columns([*heads, "Duration(min)"], rows))


def _known_producers(cluster: BlockingCluster) -> dict[int, set[tuple[str, int]]]:
    """Partitions that coordinators know to be in an open transaction, by producer."""
    from klamm.client.blocking_cluster import TRANSACTION
    from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest
    from klamm.protocol.messages.list_transactions import ListTransactionsRequest

    known: dict[int, set[tuple[str, int]]] = {}
    for broker in cluster.broker_ids:
        for state in cluster.broker(broker).ask(ListTransactionsRequest(duration_filter=-1)).transaction_states:
            request = DescribeTransactionsRequest(transactional_ids=[state.transactional_id])
            described = cluster.coordinator(TRANSACTION, state.transactional_id).ask(request).transaction_states[0]
            for topic in described.topics:
                known.setdefault(described.producer_id, set()).update(
                    (topic.topic, index) for index in topic.partitions
                )
    return known


def _abort(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.errors import raise_for
    from klamm.protocol.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    _needs(parsed, "topic", "partition")
    topic, partition = parsed.text("topic"), parsed.integer("partition") or 0
    if parsed.has("start-offset"):
        start = parsed.integer("start-offset", bits=64)
        try:
            producers = [e for e in _producers(cluster, topic, partition, None) if e.current_txn_start_offset == start]
        except KlammError as error:
            raise ToolFailed(
                f"Failed to validate producer state for partition {topic}-{partition}: {java_error(error)}"
            ) from None
        if not producers:
            raise ToolFailed(
                f"Could not find any open transactions starting at offset {start} on partition {topic}-{partition}"
            )
        producer, epoch, coordinator_epoch = (
            producers[0].producer_id,
            producers[0].producer_epoch,
            producers[0].coordinator_epoch,
        )
    else:
        if not parsed.has("producer-id"):
            raise ToolFailed(
                "The transaction to abort must be identified either with --start-offset or with --producer-id"
            )
        _needs(parsed, "producer-epoch", "coordinator-epoch")
        producer, epoch = parsed.integer("producer-id", bits=64) or 0, parsed.integer("producer-epoch", bits=16) or 0
        coordinator_epoch = parsed.integer("coordinator-epoch") or 0
    marker = WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=False,
        coordinator_epoch=max(coordinator_epoch, 0),
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
    )
    try:
        answer = cluster.leader(topic, partition).ask(WriteTxnMarkersRequest(markers=[marker]))
        raise_for(answer.markers[0].topics[0].partitions[0].error_code)
    except KlammError as error:
        raise ToolFailed(f"Failed to abort transaction of producer {producer}: {java_error(error)}") from None


def _force(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.blocking_cluster import TRANSACTION
    from klamm.client.errors import raise_for
    from klamm.protocol.messages.init_producer_id import InitProducerIdRequest

    _needs(parsed, "transactionalId")
    name = parsed.text("transactionalId")
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    for _ in range(200):
        answer = cluster.coordinator(TRANSACTION, name).ask(request)
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        time.sleep(0.02)
    raise_for(answer.error_code)


_COMMANDS: Final = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _force,
}

"""kafka-transactions: list, describe, find and abort transactions."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Final

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
    Flag("broker-id", "describe-producers, find-hanging: the broker.", "number"),
    Flag("max-transaction-timeout", "find-hanging: minutes after which one hangs.", "minutes"),
    Flag("start-offset", "abort: where the transaction began.", "offset"),
    Flag("producer-id", "abort: the producer.", "number"),
    Flag("producer-epoch", "abort: its epoch.", "number"),
    Flag("coordinator-epoch", "abort: the coordinator's epoch.", "number"),
)
_USAGE = "usage: kafka-transactions.sh [-h] [-v] [--command-config FILE] --bootstrap-server host:port COMMAND ...\n"
_ERROR = _USAGE + "kafka-transactions.sh: error: "
HANGING_MINUTES: Final = 15
_FENCED_TIMEOUT_MS: Final = 60_000
"""The transaction timeout that is stored with a fenced id: that of a producer unless it sets another."""


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
    from klamm.cli.queries.transactions import list_transactions

    listings = list_transactions(
        cluster,
        duration_ms=parsed.integer("duration-filter", -1, bits=64) or -1,
        pattern=parsed.get("transactional-id-pattern"),
    )
    rows = [
        [listing.transactional_id, str(listing.coordinator), str(listing.producer_id), listing.state]
        for listing in sorted(listings, key=attrgetter("coordinator"))  # broker by broker, as Kafka's tool lists them
    ]
    print(columns(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], rows))


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.transactions import describe_transaction
    from klamm.client.errors import KafkaError

    _needs(parsed, "transactional-id")
    name = parsed.text("transactional-id")
    try:
        description = describe_transaction(cluster, name)
    except KafkaError as error:
        if error.item is None:  # not the answer about the id: no coordinator, or no permission
            raise
        is_missing = error.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        reason = "the ID could not be found" if is_missing else error.code.name
        raise ToolFailed(
            f"Failed to describe transaction state of transactional-id `{name}`: DescribeTransactions request for"
            f" transactionalId `{name}` failed because {reason}. Enable debug logging for additional detail."
        ) from None
    began = description.start_time_ms
    heads = ["CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"]
    heads += ["TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"]
    row = [
        str(description.coordinator),
        name,
        str(description.producer_id),
        str(description.producer_epoch),
        description.state,
        str(description.timeout_ms),
    ]
    row += ["None", "None"] if began is None else [str(began), str(max(int(time.time() * 1000) - began, 0))]
    row.append(",".join(map(str, description.partitions)))
    print(columns(heads, [row]))


def _describe_producers(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.transactions import describe_producers

    _needs(parsed, "topic", "partition")
    partition = parsed.integer("partition") or 0
    heads = ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"]
    heads.append("CurrentTransactionStartOffset")
    topic, broker = parsed.text("topic"), parsed.integer("broker-id")
    try:
        producers = describe_producers(cluster, topic, partition, broker)
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
            str(producer.transaction_start_offset),  # "None" outside of a transaction, as Kafka's tool prints it
        ]
        for producer in producers
    ]
    print(columns(heads, rows))


def _find_hanging(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.topics import list_topics
    from klamm.cli.queries.transactions import describe_producers, open_partitions

    if not parsed.has("topic") and not parsed.has("broker-id"):
        raise ToolFailed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    # 15 minutes is the default of transaction.max.timeout.ms: a coordinator has aborted every younger one it has.
    limit_ms = (parsed.integer("max-transaction-timeout", HANGING_MINUTES) or HANGING_MINUTES) * 60_000
    now = int(time.time() * 1000)
    known = open_partitions(cluster)
    rows = []
    for topic in list_topics(cluster):
        if parsed.has("topic") and topic.name != parsed.text("topic"):
            continue
        for p in topic.partitions:
            if parsed.has("partition") and p.partition != parsed.integer("partition"):
                continue
            if p.leader < 0 or (parsed.has("broker-id") and p.leader != parsed.integer("broker-id")):
                continue
            for producer in describe_producers(cluster, topic.name, p.partition):
                open_ms = now - producer.last_timestamp
                if producer.transaction_start_offset is None or open_ms <= limit_ms:
                    continue
                # A coordinator that has the transaction open will end it; only orphans hang.
                if (topic.name, p.partition) in known.get(producer.producer_id, set()):
                    continue
                rows.append(
                    [
                        topic.name,
                        str(p.partition),
                        str(producer.producer_id),
                        str(producer.producer_epoch),
                        str(producer.coordinator_epoch),
                        str(producer.transaction_start_offset),
                        str(producer.last_timestamp),
                        str(open_ms // 60_000),
                    ]
                )
    heads = ["Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp"]
    print(columns([*heads, "Duration(min)"], rows))


def _abort(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.transactions import abort_transaction, describe_producers

    _needs(parsed, "topic", "partition")
    topic, partition = parsed.text("topic"), parsed.integer("partition") or 0
    if parsed.has("start-offset"):
        start = parsed.integer("start-offset", bits=64)
        try:
            kept = describe_producers(cluster, topic, partition)
        except KlammError as error:
            raise ToolFailed(
                f"Failed to validate producer state for partition {topic}-{partition}: {java_error(error)}"
            ) from None
        producers = [producer for producer in kept if producer.transaction_start_offset == start]
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
        # Brokers before 3.0 cannot describe producers, so all three ids are written by hand then.
        _needs(parsed, "producer-epoch", "coordinator-epoch")
        producer, epoch = parsed.integer("producer-id", bits=64) or 0, parsed.integer("producer-epoch", bits=16) or 0
        coordinator_epoch = parsed.integer("coordinator-epoch") or 0
    try:
        abort_transaction(
            cluster,
            topic,
            partition,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
        )
    except KlammError as error:
        raise ToolFailed(f"Failed to abort transaction of producer {producer}: {java_error(error)}") from None


def _force(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.transactions import fence_producer

    _needs(parsed, "transactionalId")
    fence_producer(cluster, parsed.text("transactionalId"), _FENCED_TIMEOUT_MS)


_COMMANDS: Final = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _force,
}

"""AddPartitionsToTxn, v0-5: announce the partitions a transaction writes to.

v2 PRODUCER_FENCED · v3 flexible · v4 many transactions at once, verification by brokers · v5 abortable errors
(KIP-890)
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, wire


@struct
class AddPartitionsToTxnTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[int] = wire(array(int32))


@struct
class AddPartitionsToTxnTransaction:
    """One transaction and its partitions."""

    transactional_id: str = wire(string)
    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    # Set by a partition leader that verifies a transaction and adds nothing to it.
    verify_only: bool = wire(boolean)
    topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic))


@message(api_key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnRequest:
    """Add partitions, or from v4 let a partition leader verify that they were added."""

    transactions: list[AddPartitionsToTxnTransaction] = wire(array(AddPartitionsToTxnTransaction), since=4)
    # Producers stay at version 3; brokers verify with the later ones.
    v3_and_below_transactional_id: str = wire(string, until=3)
    v3_and_below_producer_id: int = wire(int64, until=3)
    v3_and_below_producer_epoch: int = wire(int16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = wire(array(AddPartitionsToTxnTopic), until=3)


@struct
class AddPartitionsToTxnPartitionResult:
    """The result of one partition."""

    partition_index: int = wire(int32)
    partition_error_code: int = wire(int16)


@struct
class AddPartitionsToTxnTopicResult:
    """The partitions of one topic."""

    name: str = wire(string)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(array(AddPartitionsToTxnPartitionResult))


@struct
class AddPartitionsToTxnResult:
    """The partitions of one transaction."""

    transactional_id: str = wire(string)
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(array(AddPartitionsToTxnTopicResult))


@message(api_key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnResponse:
    """The result of each partition."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(array(AddPartitionsToTxnResult), since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = wire(
        array(AddPartitionsToTxnTopicResult), until=3
    )

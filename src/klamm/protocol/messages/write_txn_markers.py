"""WriteTxnMarkers, v1-2: how a coordinator ends transactions in the partitions they wrote to.

v1 flexible · v2 the transaction's protocol version
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, struct, wire


@struct
class WritableTxnMarkerTopic:
    """The partitions of one topic."""

    name: str = wire(string)
    partition_indexes: list[int] = wire(array(int32))


@struct
class WritableTxnMarker:
    """How one producer's transaction ended, and the partitions that need the marker."""

    producer_id: int = wire(int64)
    producer_epoch: int = wire(int16)
    transaction_result: bool = wire(boolean)
    topics: list[WritableTxnMarkerTopic] = wire(array(WritableTxnMarkerTopic))
    # A partition refuses markers of an older coordinator by it.
    coordinator_epoch: int = wire(int32)
    # From 2 on the marker's epoch is one above that of the transaction's batches (KIP-890).
    transaction_version: int = wire(int8, since=2)


@message(api_key=27, versions=(1, 2), flexible=1)
class WriteTxnMarkersRequest:
    """Have partition leaders append commit or abort markers."""

    markers: list[WritableTxnMarker] = wire(array(WritableTxnMarker))


@struct
class WritableTxnMarkerPartitionResult:
    """The result of one marker."""

    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@struct
class WritableTxnMarkerTopicResult:
    """The partitions of one topic."""

    name: str = wire(string)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(array(WritableTxnMarkerPartitionResult))


@struct
class WritableTxnMarkerResult:
    """The markers of one producer."""

    producer_id: int = wire(int64)
    topics: list[WritableTxnMarkerTopicResult] = wire(array(WritableTxnMarkerTopicResult))


@message(api_key=27, versions=(1, 2), flexible=1)
class WriteTxnMarkersResponse:
    """Which markers were appended."""

    markers: list[WritableTxnMarkerResult] = wire(array(WritableTxnMarkerResult))

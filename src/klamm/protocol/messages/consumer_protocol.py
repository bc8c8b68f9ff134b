"""What consumers of classic groups write into JoinGroup and SyncGroup; to the broker these are opaque bytes.

Both travel behind an int16 with their version. v1 owned partitions · v2 generation · v3 rack; never flexible
"""

from klamm.protocol.schema import array, blob, int32, message, string, struct, wire


@struct
class TopicPartition:
    """The partitions of one topic."""

    topic: str = wire(string)
    partitions: list[int] = wire(array(int32))


@message(versions=(0, 3))
class ConsumerProtocolSubscription:
    """A member's subscription and owned partitions, for the group's leader."""

    topics: list[str] = wire(array(string))
    user_data: bytes | None = wire(blob, nullable=0, default=None)
    # For cooperative rebalancing (KIP-429).
    owned_partitions: list[TopicPartition] = wire(array(TopicPartition), since=1)
    # Decides between two members that claim the same partition (KIP-792).
    generation_id: int = wire(int32, since=2, default=-1)
    rack_id: str | None = wire(string, since=3, nullable=3, default=None)


@message(versions=(0, 3))
class ConsumerProtocolAssignment:
    """What the group's leader gives to a member."""

    assigned_partitions: list[TopicPartition] = wire(array(TopicPartition))
    user_data: bytes | None = wire(blob, nullable=0, default=None)

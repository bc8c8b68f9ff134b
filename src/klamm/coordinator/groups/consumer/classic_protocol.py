"""What consumers of the classic protocol write into joins and syncs, read and written for consumer groups."""

from collections.abc import Iterable, Mapping
from struct import Struct

from klamm.coordinator.groups.consumer.member import Held
from klamm.coordinator.groups.consumer.topology import Topology
from klamm.model.errors import RemoteProtocolError
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

_VERSION = Struct(">h")
_NEWEST = 3


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise RemoteProtocolError("no version in what a consumer says")
    return max(0, min(int(_VERSION.unpack_from(data)[0]), _NEWEST))


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """What a member wants and has; RemoteProtocolError when the bytes are something else."""
    return decode(ConsumerProtocolSubscription, _version(metadata), metadata, 2)[0]


def read_assignment(data: bytes, topology: Topology, epoch: int) -> Held:
    """What a member was given, as far as the topics exist; nothing when it was given nothing yet."""
    if not data:
        return {}
    assignment = decode(ConsumerProtocolAssignment, _version(data), data, 2)[0]
    return {
        topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in by_id(assignment.assigned_partitions, topology)
    }


def by_id(topics: Iterable[TopicPartition], topology: Topology) -> list[tuple[bytes, list[int]]]:
    """Partitions by the ids of their topics; topics that do not exist are left out."""
    known = topology.topics
    return [(known[each.topic].id, each.partitions) for each in topics if each.topic in known and each.partitions]


def write_assignment(assigned: Mapping[bytes, Iterable[int]], topology: Topology, metadata: bytes) -> bytes:
    """An assignment in the version the member speaks in its subscription."""
    version = _version(metadata) if len(metadata) >= 2 else 0
    topics = []
    for topic_id, numbers in assigned.items():
        name = topology.name(topic_id)
        if name is not None:
            topics.append(TopicPartition(topic=name, partitions=sorted(numbers)))
    topics.sort(key=lambda each: each.topic)
    return _VERSION.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=topics), version)

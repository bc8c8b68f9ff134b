"""Subscriptions and assignments of the classic consumer protocol, decoded and encoded for consumer groups."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
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
        raise RemoteProtocolError("consumer protocol data without a version")
    # Versions only append fields, so an unknown newer one is read as the newest known.
    return max(0, min(int(_VERSION.unpack_from(data)[0]), _NEWEST))


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode a member's subscription and owned partitions; RemoteProtocolError when that fails."""
    return decode(ConsumerProtocolSubscription, _version(metadata), metadata, 2)[0]


def read_assignment(data: bytes, topology: Topology, epoch: int) -> Held:
    """Decode a member's assignment, without topics that no longer exist; empty data is no assignment."""
    if not data:
        return {}
    assignment = decode(ConsumerProtocolAssignment, _version(data), data, 2)[0]
    return {
        topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in by_id(assignment.assigned_partitions, topology)
    }


def by_id(topics: Iterable[TopicPartition], topology: Topology) -> list[tuple[bytes, list[int]]]:
    """Return partitions by topic id, without topics that do not exist."""
    known = topology.topics
    return [(known[topic.topic].id, topic.partitions) for topic in topics if topic.topic in known and topic.partitions]


def write_assignment(assigned: Mapping[bytes, Iterable[int]], topology: Topology, metadata: bytes) -> bytes:
    """Encode an assignment in the version of the member's subscription."""
    version = _version(metadata) if len(metadata) >= 2 else 0
    topics = []
    for topic_id, numbers in assigned.items():
        name = topology.name(topic_id)
        if name is not None:
            topics.append(TopicPartition(topic=name, partitions=sorted(numbers)))
    topics.sort(key=attrgetter("topic"))
    return _VERSION.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=topics), version)

"""The cluster as consumer groups see it: topics with their partitions and racks, and whether that has changed."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from klamm.coordinator.groups.assignors import TopicSpec
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage, TopicImage
from klamm.model.config import SettingValue


class Topology:
    """An image, and cached values that are computed from it."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self._racks: Mapping[int, str] = {}
        self._known: dict[str, tuple[TopicImage, TopicSpec, bytes]] = {}

    def update(self, image: MetadataImage) -> None:
        """The cluster has changed."""
        if image.cluster is not self.image.cluster:
            racks = {broker.id: broker.rack for broker in image.cluster.brokers.values() if broker.rack is not None}
            if racks != self._racks:
                self._racks = racks
                self._known.clear()
        # Deleted topics leave entries behind; dropping all is cheaper than tracking them.
        if len(self._known) > 2 * len(image.topics) + 100:
            self._known.clear()
        self.image = image

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        """Every topic by name."""
        return self.image.topics.by_name

    def ids(self, names: Iterable[str]) -> frozenset[bytes]:
        """The ids of those that exist."""
        topics = self.topics
        return frozenset(topics[name].id for name in names if name in topics)

    def name(self, topic_id: bytes) -> str | None:
        """The name of a topic, if it exists."""
        topic = self.image.topics.by_id.get(topic_id)  # type: ignore[call-overload]
        return topic.name if topic is not None else None

    def specs(self, names: Iterable[str]) -> dict[bytes, TopicSpec]:
        """The input of assignors, by topic id."""
        known = (self._describe_topic(name) for name in names)
        return {topic.id: spec for topic, spec, _ in filter(None, known)}

    def metadata_hash(self, names: Iterable[str]) -> int:
        """A number that changes when one of these topics appears, goes, grows or moves to other racks; 0 for none.

        Kafka hashes the same facts with another function, so a group that changes brokers computes its target anew.
        """
        known = [entry[2] for entry in map(self._describe_topic, sorted(names)) if entry is not None]
        if not known:
            return 0
        return int.from_bytes(blake2b(b"".join(known), digest_size=8).digest(), "big", signed=True)

    def group_values(self, group_id: str) -> Mapping[str, SettingValue]:
        """The settings of a group."""
        return self.image.group_values(group_id)

    def _describe_topic(self, name: str) -> tuple[TopicImage, TopicSpec, bytes] | None:
        topic = self.topics.get(name)
        if topic is None:
            return None
        known = self._known.get(name)
        # Images share topics that did not change, so identity shows that this one did not.
        if known is not None and known[0] is topic:
            return known
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(
                    self._racks[replica] for replica in topic.partitions[number].replicas if replica in self._racks
                )
                for number in sorted(topic.partitions)
            )
        facts: list[Any] = [
            topic.id,
            name,
            len(topic.partitions),
            *(sorted(partition_racks) for partition_racks in racks),
        ]
        entry = topic, TopicSpec(len(topic.partitions), racks), blake2b(repr(facts).encode(), digest_size=8).digest()
        self._known[name] = entry
        return entry

"""Consumer groups without a loop: a cluster whose topics come and go, and members that behave as clients do."""

from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.groups_world import Answer, World
from klamm.coordinator.groups import GroupConfig
from klamm.coordinator.groups.consumer.config import ConsumerGroupConfig
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import Member
from klamm.coordinator.groups.group import Caller
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    Provenance,
    ResourceType,
    TopicImage,
    TopicsImage,
)
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, consumer=ConsumerGroupConfig(assignment_interval_ms=0))


def consumer_config(**settings: Any) -> GroupConfig:
    return replace(CONFIG, consumer=replace(CONFIG.consumer, **settings))


class ConsumerWorld(World):
    """A shard with consumer groups, and the cluster they read."""

    def __init__(self, config: GroupConfig = CONFIG, **topics: int) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self._topic_ids = 0
        super().__init__(config)
        for name, partitions in topics.items():
            self.create(name, partitions)

    def restart(self) -> None:
        super().restart()
        self.run(self.shard.on_loaded(self.image, self.now))

    # The cluster

    def _become(self, **changes: Any) -> None:
        before = self.image
        self.image = replace(before, provenance=Provenance(before.provenance.offset + 1, 1), **changes)
        self.run(self.shard.on_metadata(MetadataDelta.between(before, self.image), self.image, self.now))

    def _put(self, *topics: TopicImage, gone: str = "") -> None:
        by_name = {name: topic for name, topic in self.image.topics.by_name.items() if name != gone}
        by_name |= {topic.name: topic for topic in topics}
        self._become(topics=TopicsImage(by_name, {topic.id: topic for topic in by_name.values()}))

    def create(self, name: str, partitions: int, replicas: tuple[tuple[int, ...], ...] = ()) -> None:
        self._topic_ids += 1
        self._put(_topic(name, Uuid(self._topic_ids.to_bytes(16, "big")), partitions, replicas))

    def grow(self, name: str, partitions: int) -> None:
        self._put(_topic(name, self.image.topics.by_name[name].id, partitions))

    def delete(self, name: str) -> None:
        self._put(gone=name)

    def brokers(self, *racks: str | None) -> None:
        known = {number: BrokerImage(number, 1, Uuid(bytes(16)), {}, rack=rack) for number, rack in enumerate(racks)}
        self._become(cluster=ClusterImage(known))

    def configure(self, group_id: str, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self._become(configs={ConfigResource(ResourceType.GROUP, group_id): named})

    def topic_id(self, name: str) -> bytes:
        return self.image.topics.by_name[name].id

    # The group

    def consumers(self, group_id: str = "g") -> ConsumerGroup:
        found = self.shard.groups[group_id]
        assert isinstance(found, ConsumerGroup), found
        return found

    def member_of(self, member_id: str, group_id: str = "g") -> Member:
        return self.consumers(group_id).members[member_id]

    def beat(self, request: ConsumerGroupHeartbeatRequest, version: int = 1, client_id: str = "c") -> Answer:
        answer = Answer()
        caller = Caller(client_id, "/127.0.0.1", version)
        try:
            self.run(self.shard.consumer_heartbeat(request, caller, self.now, answer))
        except KlammError as error:
            answer(error)
            self.shard.check()
        return answer

    def read_all(self, *consumers: "Consumer", rounds: int = 12) -> None:
        """Let everybody send heartbeats until nothing changes any more."""
        for _ in range(rounds):
            for consumer in consumers:
                consumer.beat()
        owned = [place for consumer in consumers for place in consumer.owned]
        assert len(owned) == len(set(owned)), "a partition is read twice"


def _topic(name: str, topic_id: Uuid, partitions: int, replicas: tuple[tuple[int, ...], ...] = ()) -> TopicImage:
    placed = replicas or ((0,),) * partitions
    return TopicImage(
        name,
        topic_id,
        {
            number: PartitionImage(placed[number], placed[number], placed[number][0], 0, 0)
            for number in range(partitions)
        },
    )


@dataclass
class Consumer:
    """A client of the new protocol; it reads what it is given and gives back what it must, when it is next heard of."""

    world: ConsumerWorld
    member_id: str
    topics: tuple[str, ...] | None = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    rack_id: str | None = None
    assignor: str | None = None
    group_id: str = "g"
    rebalance_ms: int = 60_000
    version: int = 1
    epoch: int = 0
    owned: set[tuple[bytes, int]] = field(default_factory=set)
    last: Answer | None = None

    def request(self, epoch: int, *, full: bool = False) -> ConsumerGroupHeartbeatRequest:
        full = full or epoch == 0
        by_topic: dict[bytes, list[int]] = {}
        for topic, number in sorted(self.owned):
            by_topic.setdefault(topic, []).append(number)
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rack_id=self.rack_id if full else None,
            rebalance_timeout_ms=self.rebalance_ms if full else -1,
            subscribed_topic_names=list(self.topics) if full and self.topics is not None else None,
            subscribed_topic_regex=self.regex if full else None,
            server_assignor=self.assignor if full else None,
            topic_partitions=[TopicPartitions(topic_id=t, partitions=numbers) for t, numbers in by_topic.items()],
        )

    def hear(self, answer: Answer) -> ErrorCode:
        self.last = answer
        if answer.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch = 0
            self.owned = set()
        if answer.error:
            return answer.error
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {
                (bytes(topic.topic_id), number)
                for topic in answer.assignment.topic_partitions
                for number in topic.partitions
            }
        return ErrorCode.NONE

    def beat(self, *, full: bool = False) -> ErrorCode:
        return self.hear(self.world.beat(self.request(self.epoch, full=full), self.version))

    def join(self) -> "Consumer":
        self.epoch = 0
        self.owned = set()
        error = self.beat()
        assert error is ErrorCode.NONE, self.last and self.last.value
        if not self.member_id:
            assert self.last is not None
            self.member_id = self.last.member_id
        return self

    def subscribe(self, *topics: str, regex: str | None = None) -> ErrorCode:
        self.topics = topics
        self.regex = regex if regex is not None or self.regex is None else ""
        return self.beat(full=True)

    def leave(self, epoch: int = -1) -> ErrorCode:
        error = self.world.beat(self.request(epoch), self.version).error
        self.owned = set()
        self.epoch = 0
        return error

    @property
    def numbers(self) -> list[int]:
        """The partitions it reads, of whatever topic."""
        return sorted(number for _, number in self.owned)

    @property
    def me(self) -> Member:
        return self.world.member_of(self.member_id, self.group_id)

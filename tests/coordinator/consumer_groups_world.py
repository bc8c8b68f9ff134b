"""Consumer groups without a loop: a cluster whose topics come and go, and members that behave as clients do."""

from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.groups_world import Answer, World
from klamm.coordinator.groups import GroupConfig
from klamm.coordinator.groups.consumer.config import ConsumerGroupConfig
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import ConsumerMember
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
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from klamm.protocol.messages.metadata_records import ConfigRecord

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

    def configure(self, group_id: str | None, **settings: str) -> None:
        """Settings of a group, or with None of all brokers."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        whose = (
            ConfigResource(ResourceType.BROKER, "")
            if group_id is None
            else ConfigResource(ResourceType.GROUP, group_id)
        )
        delta = MetadataDelta(self.image)
        for name, value in named.items():
            delta.replay(ConfigRecord(resource_type=whose.type, resource_name=whose.name, name=name, value=value))
        changed = delta.apply(*self.image.provenance)
        self._become(configs=changed.configs, values=changed.values)

    def topic_id(self, name: str) -> bytes:
        return self.image.topics.by_name[name].id

    # The group

    def consumers(self, group_id: str = "g") -> ConsumerGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ConsumerGroup), group
        return group

    def member_of(self, member_id: str, group_id: str = "g") -> ConsumerMember:
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
        """Let all consumers send heartbeats until no assignment changes."""
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

    def receive(self, answer: Answer) -> ErrorCode:
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
        return self.receive(self.world.beat(self.request(self.epoch, full=full), self.version))

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
    def me(self) -> ConsumerMember:
        return self.world.member_of(self.member_id, self.group_id)


@dataclass
class ClassicConsumer:
    """A client of the classic protocol: joins, syncs, sends heartbeats, and rejoins when they are answered so.

    An eager one gives up everything before it joins; a cooperative one says what it has and gives back afterwards.
    """

    world: ConsumerWorld
    topics: tuple[str, ...] = ("t",)
    cooperative: bool = True
    instance_id: str | None = None
    group_id: str = "g"
    rebalance_ms: int = 60_000
    session_ms: int = 10_000
    member_id: str = ""
    generation: int = -1
    owned: set[tuple[str, int]] = field(default_factory=set)
    waiting: Answer | None = None
    ids: dict[str, bytes] = field(default_factory=dict)
    """The ids its topics had when it was given them; one that is created anew is another topic."""

    @property
    def protocol(self) -> str:
        return "cooperative-sticky" if self.cooperative else "range"

    def _metadata(self) -> bytes:
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self.owned):
            topics.setdefault(topic, []).append(number)
        subscription = ConsumerProtocolSubscription(
            topics=sorted(self.topics),
            owned_partitions=[TopicPartition(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
            generation_id=self.generation,
        )
        return b"\x00\x02" + encode(subscription, 2)

    def ask(self) -> Answer:
        """Send a join; the answer may take long in a classic group."""
        if not self.cooperative:
            self.owned = set()
        answer = self.world.join(
            self.member_id,
            group_id=self.group_id,
            instance_id=self.instance_id,
            protocols=((self.protocol, self._metadata()),),
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
        )
        if not answer.pending and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self.ask()
        self.waiting = answer
        return answer

    def receive(self) -> ErrorCode:
        """Take the answer to the join and fetch the assignment; a leader shares out in turn."""
        answer, self.waiting = self.waiting, None
        assert answer is not None
        if answer.error:
            self._forget(answer.error)
            return answer.error
        self.member_id = answer.member_id
        self.generation = answer.generation_id
        synced = self.world.sync(
            self.member_id,
            self.generation,
            self._share_out(answer) if answer.leader == self.member_id else None,
            group_id=self.group_id,
            instance_id=self.instance_id,
        )
        if synced.pending:
            self.waiting = synced
            return ErrorCode.NONE
        return self.take(synced)

    def take(self, synced: Answer) -> ErrorCode:
        if synced.error:
            self._forget(synced.error)
            return synced.error
        assignment = decode(ConsumerProtocolAssignment, 2, synced.assignment, 2)[0]
        self.owned = {
            (partition.topic, number) for partition in assignment.assigned_partitions for number in partition.partitions
        }
        topics = self.world.image.topics.by_name
        self.ids = {name: topics[name].id for name, _ in self.owned if name in topics}
        return ErrorCode.NONE

    def _forget(self, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
            self.owned = set()
            self.generation = -1

    def _share_out(self, answer: Answer) -> dict[str, bytes]:
        member_ids = sorted(member.member_id for member in answer.members)
        places = sorted(
            (name, number)
            for name in self.topics
            if name in self.world.image.topics.by_name
            for number in self.world.image.topics.by_name[name].partitions
        )
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in member_ids}
        for index, (name, number) in enumerate(places):
            shares[member_ids[index % len(member_ids)]].setdefault(name, []).append(number)
        return {
            member: b"\x00\x02"
            + encode(
                ConsumerProtocolAssignment(
                    assigned_partitions=[TopicPartition(topic=name, partitions=mine) for name, mine in share.items()]
                ),
                2,
            )
            for member, share in shares.items()
        }

    def beat(self) -> ErrorCode:
        """One round of a client's life: wait, or say hello, or join again."""
        if self.waiting is not None:
            if self.waiting.pending:
                return ErrorCode.NONE
            if hasattr(self.waiting.value, "generation_id"):
                return self.receive()
            synced, self.waiting = self.waiting, None
            return self.take(synced)
        if self.generation >= 0:
            error = self.world.heartbeat(
                self.member_id, self.generation, group_id=self.group_id, instance_id=self.instance_id
            )
            if not error:
                return error
            self._forget(error)
        self.ask()
        return self.beat() if self.waiting is not None and not self.waiting.pending else ErrorCode.NONE

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


def settle(world: ConsumerWorld, *clients: "Consumer | ClassicConsumer", rounds: int = 15) -> None:
    """Let all clients act until no assignment changes; then every partition has one reader."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
        world.pass_time(1)
    by_name = [
        (world.image.topics.by_id[topic].name, n) for c in clients if isinstance(c, Consumer) for topic, n in c.owned
    ]
    by_name += [place for c in clients if isinstance(c, ClassicConsumer) for place in c.owned]
    assert len(by_name) == len(set(by_name)), f"a partition is read twice: {sorted(by_name)}"

"""Images and deltas: what records add up to, what they share, and that a snapshot says the same."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.metadata import (
    EMPTY_IMAGE,
    ConfigResource,
    MetadataDelta,
    MetadataImage,
    MetadataLoader,
    ResourceType,
    decode_record,
    encode_record,
    same_content,
)
from klamm.model.ids import TopicPartition, Uuid
from klamm.protocol.messages import metadata_records as r

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str, *, before: int | None = None) -> list[r.MetadataRecord]:
    records = []
    for line in (GOLDEN / name).read_text().splitlines():
        offset, value, _ = line.split("\t")
        if before is None or int(offset) < before:
            records.append(decode_record(bytes.fromhex(value)))
    return records


def image_of(records: Sequence[r.MetadataRecord], start: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    delta = MetadataDelta(start)
    delta.replay_all(records)
    return delta.apply(len(records) - 1, 1)


def a_topic(name: str, partitions: int = 1, replicas: Sequence[int] = (1, 2, 3)) -> list[r.MetadataRecord]:
    topic_id = name.encode().ljust(16, b"\0")
    partitions_made = [
        r.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(replicas),
            isr=list(replicas),
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[bytes([replica]) * 16 for replica in replicas],
        )
        for index in range(partitions)
    ]
    return [r.TopicRecord(name=name, topic_id=topic_id), *partitions_made]


def id_of(name: str) -> Uuid:
    return Uuid(name.encode().ljust(16, b"\0"))


class Ears:
    """A publisher that remembers what it heard."""

    def __init__(self) -> None:
        self.updates: list[tuple[MetadataDelta, MetadataImage]] = []

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.updates.append((delta, image))


def test_kafkas_log_and_kafkas_snapshot_of_it_lead_to_the_same_image() -> None:
    from_log = image_of(golden("metadata_log.tsv", before=1375))
    from_snapshot = image_of(golden("metadata_snapshot.tsv"))
    assert same_content(from_log, from_snapshot)
    from_log.check()
    assert sorted(from_log.topics.by_name) == ["__consumer_offsets", "__transaction_state", "a.b", "bar", "orders"]
    assert from_log.topic_configs("orders") == {"cleanup.policy": "delete"}
    assert from_log.broker_configs(None) == {"min.insync.replicas": "1"}
    assert from_log.features["metadata.version"] == 30
    assert from_log.next_producer_id == 1000
    assert len(from_log.acls) == len(from_log.scram) == 1


def test_the_stopped_node_of_kafkas_log_leaves_an_eligible_leader_behind() -> None:
    image = image_of(golden("metadata_log.tsv"))
    partition = image.topics.partition("orders", 0)
    assert partition is not None
    assert (partition.leader, partition.isr, partition.elr, partition.leader_epoch) == (-1, (), (1,), 1)
    broker = image.cluster.brokers[1]
    assert broker.fenced
    assert broker.in_controlled_shutdown
    assert image.cluster.alive() == []


def test_a_new_image_shares_what_did_not_change() -> None:
    before = image_of([record for i in range(50) for record in a_topic(f"t{i}", 3)])
    delta = MetadataDelta(before)
    delta.replay(r.PartitionChangeRecord(topic_id=id_of("t7"), partition_id=1, leader=2))
    after = delta.apply(1, 1)
    assert after.topics.by_name["t3"] is before.topics.by_name["t3"]
    assert after.topics.by_name["t7"].partitions[0] is before.topics.by_name["t7"].partitions[0]
    assert after.configs is before.configs
    assert after.cluster.brokers is before.cluster.brokers
    changed, untouched = after.topics.by_name["t7"].partitions[1], before.topics.by_name["t7"].partitions[1]
    assert (changed.leader, changed.leader_epoch, changed.partition_epoch) == (2, 1, 1)
    assert (untouched.leader, untouched.leader_epoch, untouched.partition_epoch) == (1, 0, 0)
    assert list(delta.topics_changed) == [id_of("t7")]
    assert list(delta.topics_changed[id_of("t7")].partitions) == [1]


def test_a_topic_deleted_and_made_again_in_one_step_is_two_topics() -> None:
    before = image_of(a_topic("orders"))
    delta = MetadataDelta(before)
    again = a_topic("orders")
    for record in again:
        record.topic_id = b"second".ljust(16, b"\0")  # type: ignore[union-attr]
    delta.replay_all([r.RemoveTopicRecord(topic_id=id_of("orders")), *again])
    after = delta.apply(5, 1)
    assert list(delta.topics_deleted) == [id_of("orders")]
    assert delta.topics_changed[Uuid(b"second".ljust(16, b"\0"))].created
    assert len(after.topics) == 1
    after.check()


def test_a_topic_that_came_and_went_is_not_mentioned() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all([*a_topic("flash"), r.RemoveTopicRecord(topic_id=id_of("flash"))])
    assert not delta.topics_changed
    assert not delta.topics_deleted
    assert delta.apply(3, 1).is_empty


def test_deleting_a_topic_takes_its_configs_along() -> None:
    config = r.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name="retention.ms", value="1")
    before = image_of([*a_topic("orders"), config])
    delta = MetadataDelta(before)
    delta.replay(r.RemoveTopicRecord(topic_id=id_of("orders")))
    assert delta.apply(9, 1).is_empty
    assert delta.configs_changed == {ConfigResource(ResourceType.TOPIC, "orders"): {"retention.ms": None}}


def test_a_broker_hears_what_it_leads_follows_and_drops() -> None:
    before = image_of([*a_topic("old"), *a_topic("moved")])
    delta = MetadataDelta(before)
    delta.replay_all(
        [
            *a_topic("led", replicas=(1, 2)),
            *a_topic("followed", replicas=(2, 1)),
            *a_topic("elsewhere", replicas=(2, 3)),
            r.RemoveTopicRecord(topic_id=id_of("old")),
            r.PartitionChangeRecord(topic_id=id_of("moved"), partition_id=0, replicas=[2, 3], isr=[2, 3], leader=2),
        ]
    )
    local = delta.local_changes(1)
    assert list(local.leaders) == [TopicPartition("led", 0)]
    assert list(local.followers) == [TopicPartition("followed", 0)]
    assert local.removed == {
        TopicPartition("old", 0): (id_of("old"), True),
        TopicPartition("moved", 0): (id_of("moved"), False),
    }


def test_records_that_cannot_follow_stop_the_replay() -> None:
    image = image_of([*a_topic("orders"), r.RegisterBrokerRecord(broker_id=1, broker_epoch=5, rack=None)])
    for record in (
        r.TopicRecord(name="orders", topic_id=b"x" * 16),
        r.RemoveTopicRecord(topic_id=b"x" * 16),
        r.PartitionChangeRecord(topic_id=id_of("orders"), partition_id=7),
        r.UnregisterBrokerRecord(broker_id=2, broker_epoch=5),
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=1),
    ):
        with pytest.raises(LookupError):
            MetadataDelta(image).replay(record)


def test_the_loader_shows_a_metadata_transaction_only_when_it_is_whole() -> None:
    ears = Ears()
    loader = MetadataLoader([ears])
    records = golden("metadata_log.tsv", before=10)
    loader.load(records[:3], 3, 1)
    assert loader.image is EMPTY_IMAGE or loader.image.provenance.offset == 0
    assert not loader.image.features
    loader.load(records[3:], 9, 1)
    assert loader.image.provenance.offset == 9
    assert len(loader.image.features) == 6
    assert ears.updates[-1][0].features_changed["metadata.version"] == 30


def test_an_aborted_metadata_transaction_never_counts() -> None:
    loader = MetadataLoader()
    loader.load(a_topic("first"), 1, 1)
    loader.load([r.BeginTransactionRecord(), *a_topic("second")], 4, 1)
    assert loader.image.provenance.offset == 1
    loader.load([r.AbortTransactionRecord(reason="changed my mind"), *a_topic("third")], 7, 1)
    assert sorted(loader.image.topics.by_name) == ["first", "third"]


def test_a_late_publisher_hears_everything_at_once() -> None:
    loader = MetadataLoader()
    values = [encode_record(record) for record in a_topic("orders", 2)]
    loader.on_commit(10, 3, values)
    ears = Ears()
    loader.add_publisher(ears)
    (delta, image), *_ = ears.updates
    assert image.provenance == (12, 3)
    assert sorted(delta.topics_changed[id_of("orders")].partitions) == [0, 1]


def test_a_snapshot_replaces_what_was_known_and_says_what_is_gone() -> None:
    ears = Ears()
    loader = MetadataLoader([ears])
    broker = r.RegisterBrokerRecord(broker_id=4, broker_epoch=1, rack=None)
    config = r.ConfigRecord(resource_type=4, resource_name="", name="num.io.threads", value="9")
    loader.load([*a_topic("gone"), *a_topic("stays"), broker, config], 5, 1)
    grown = [*a_topic("stays", 2), r.FeatureLevelRecord(name="metadata.version", feature_level=30)]
    loader.on_snapshot(100, 2, [encode_record(record) for record in grown])
    delta, image = ears.updates[-1]
    assert image.provenance == (99, 2)
    assert list(delta.topics_deleted) == [id_of("gone")]
    assert list(delta.topics_changed[id_of("stays")].partitions) == [1]
    assert delta.brokers_changed == {4: None}
    assert delta.configs_changed == {ConfigResource(4, ""): {"num.io.threads": None}}
    assert delta.features_changed == {"metadata.version": 30}


def test_creating_one_topic_among_ten_thousand_copies_no_topic() -> None:
    before = image_of([record for i in range(10_000) for record in a_topic(f"t{i}")])
    delta = MetadataDelta(before)
    delta.replay_all(a_topic("new"))
    after = delta.apply(1, 1)
    assert all(after.topics.by_id[topic_id] is topic for topic_id, topic in before.topics.by_id.items())


# A random but legal history of a cluster


class History:
    """Makes records that can follow each other, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.image = EMPTY_IMAGE
        self.records: list[r.MetadataRecord] = []
        self.made = 0

    def add(self, *records: r.MetadataRecord) -> None:
        self.records += records
        self.image = image_of(records, self.image)

    def step(self) -> None:
        moves = [
            self.feature,
            self.register,
            self.create,
            self.config,
            self.quota,
            self.acl,
            self.scram,
            self.token,
            self.producer_ids,
            self.change_broker,
            self.change_partition,
            self.remove,
        ]
        self.random.choice(moves)()

    def feature(self) -> None:
        name = self.random.choice(["metadata.version", "group.version"])
        self.add(r.FeatureLevelRecord(name=name, feature_level=self.random.randrange(3)))

    def register(self) -> None:
        self.made += 1
        cordoned = self.random.choice([None, [], [bytes([1]) * 16]])
        self.add(
            r.RegisterBrokerRecord(
                broker_id=self.random.randrange(4),
                broker_epoch=self.made,
                incarnation_id=self.random.randbytes(16),
                end_points=[r.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
                features=[r.BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)],
                rack=self.random.choice([None, "", "a"]),
                fenced=self.random.random() < 0.5,
                in_controlled_shutdown=self.random.random() < 0.5,
                log_dirs=[self.random.randbytes(16)],
                cordoned_log_dirs=cordoned,
            )
        )

    def create(self) -> None:
        self.made += 1
        self.add(*a_topic(f"topic{self.made}", self.random.randrange(1, 4)))

    def config(self) -> None:
        names = list(self.image.topics.by_name)
        resource = self.random.choice([(2, self.random.choice(names)), (4, ""), (4, "1")] if names else [(4, "")])
        value = self.random.choice([None, "1", "2"])
        self.add(r.ConfigRecord(resource_type=resource[0], resource_name=resource[1], name="k", value=value))

    def quota(self) -> None:
        entity = [r.EntityData(entity_type="user", entity_name=self.random.choice([None, "a"]))]
        if self.random.random() < 0.5:
            entity.append(r.EntityData(entity_type="client-id", entity_name="c"))
        self.random.shuffle(entity)
        remove = self.random.random() < 0.3
        self.add(r.ClientQuotaRecord(entity=entity, key="rate", value=0.0 if remove else 5.5, remove=remove))

    def acl(self) -> None:
        if self.image.acls and self.random.random() < 0.4:
            self.add(r.RemoveAccessControlEntryRecord(id=self.random.choice(list(self.image.acls))))
        else:
            self.add(r.AccessControlEntryRecord(id=self.random.randbytes(16), principal="User:a"))

    def scram(self) -> None:
        if self.random.random() < 0.4:
            self.add(r.RemoveUserScramCredentialRecord(name="alice", mechanism=1))
        else:
            self.add(r.UserScramCredentialRecord(name="alice", mechanism=1, salt=self.random.randbytes(4)))

    def token(self) -> None:
        if self.random.random() < 0.4:
            self.add(r.RemoveDelegationTokenRecord(token_id="t"))
        else:
            self.add(r.DelegationTokenRecord(token_id="t", owner="User:a"))

    def producer_ids(self) -> None:
        self.add(r.ProducerIdsRecord(broker_id=1, next_producer_id=self.image.next_producer_id + 1000))

    def change_broker(self) -> None:
        if not self.image.cluster.brokers:
            return
        broker = self.random.choice(list(self.image.cluster.brokers.values()))
        if self.random.random() < 0.2:
            self.add(r.UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
        else:
            fenced = self.random.choice([-1, 0, 1])
            self.add(r.BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced))

    def change_partition(self) -> None:
        partitions = list(self.image.topics.partitions())
        if not partitions:
            return
        topic, index, partition = self.random.choice(partitions)
        isr = [replica for replica in partition.replicas if self.random.random() < 0.7]
        elr = [replica for replica in partition.replicas if replica not in isr]
        self.add(
            r.PartitionChangeRecord(
                topic_id=topic.id,
                partition_id=index,
                isr=isr,
                leader=isr[0] if isr else -1,
                eligible_leader_replicas=elr,
                leader_recovery_state=self.random.choice([-1, 0, 1]),
            )
        )

    def remove(self) -> None:
        if self.image.topics.by_id and self.random.random() < 0.3:
            self.add(r.RemoveTopicRecord(topic_id=self.random.choice(list(self.image.topics.by_id))))


@given(st.integers(0, 2**32))
def test_a_snapshot_says_the_same_as_the_history_it_was_taken_from(seed: int) -> None:
    history = History(seed)
    for _ in range(60):
        history.step()
    image = image_of(history.records)
    image.check()
    assert same_content(image, history.image), "one delta and many deltas disagree"
    values = [encode_record(record) for record in image.to_records()]
    rebuilt = image_of([decode_record(value) for value in values])
    assert same_content(rebuilt, image)
    old = image_of(history.records[: len(history.records) // 2])
    between = MetadataDelta.between(old, image)
    assert same_content(between.apply(0, 0), image)
    assert set(between.topics_deleted) == set(old.topics.by_id) - set(image.topics.by_id)

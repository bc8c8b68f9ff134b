"""A cluster lives a random life; after every step `Cluster.commit` checks that it still makes sense."""

from random import Random

import pytest

from klamm.metadata import EMPTY_IMAGE, MetadataDelta, same_content
from klamm.metadata.records import decode_record, encode_record
from klamm.protocol.messages import alter_partition as ap
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest


class Life:
    """Steps of brokers, leaders and operators, drawn from one seed."""

    def __init__(self, cluster, seed, features):
        self.random = Random(seed)
        self.cluster = cluster(5, seed=seed, finalized_features=features)
        self.lives = dict.fromkeys(range(1, 6), 1)

    def step(self):
        moves = [
            (self.create, 3),
            (self.grow, 1),
            (self.delete, 1),
            (self.silence, 2),
            (self.send_heartbeat, 6),
            (self.restart, 6),
            (self.shut_down, 1),
            (self.unregister, 1),
            (self.propose, 8),
            (self.elect, 2),
            (self.balance, 1),
            (self.fail_over, 1),
            (self.move, 4),
            (self.die, 2),
            (self.elect_unclean_leaders, 1),
        ]
        self.random.choices([move for move, _ in moves], [weight for _, weight in moves])[0]()

    def registered(self):
        return list(self.cluster.image.cluster.brokers)

    def topics(self):
        return list(self.cluster.image.topics.by_name)

    def create(self):
        configs = self.random.choice([None, {"min.insync.replicas": "2"}, {"unclean.leader.election.enable": "true"}])
        name = f"t{self.random.randrange(100)}"
        self.cluster.create(name, self.random.randrange(1, 5), self.random.randrange(1, 4), configs=configs)

    def grow(self):
        if topics := self.topics():
            wish = CreatePartitionsTopic(name=self.random.choice(topics), count=6, assignments=None)
            self.cluster.commit(self.cluster.controller.create_partitions(CreatePartitionsRequest(topics=[wish])))

    def delete(self):
        if topics := self.topics():
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=self.random.choice(topics))])
            self.cluster.commit(self.cluster.controller.delete_topics(request, 6))

    def silence(self):
        brokers = self.registered()
        self.cluster.silence(*self.random.sample(brokers, self.random.randrange(len(brokers) + 1)))

    def send_heartbeat(self):
        if brokers := self.registered():
            self.cluster.heartbeat(self.random.choice(brokers))

    def restart(self):
        broker_id = self.random.choice(list(self.lives))
        self.lives[broker_id] += 1
        clean = self.random.random() < 0.5
        self.cluster.now_ms += 9_000 if self.random.random() < 0.7 else 0
        self.cluster.register(
            broker_id,
            incarnation_id=bytes([broker_id]) * 12 + self.lives[broker_id].to_bytes(4, "big"),
            previous_broker_epoch=self.cluster.epochs.get(broker_id, -1) if clean else -1,
        )
        if self.random.random() < 0.7:
            self.cluster.heartbeat(broker_id)

    def shut_down(self):
        if brokers := self.registered():
            self.cluster.heartbeat(self.random.choice(brokers), want_shut_down=True)

    def unregister(self):
        if len(self.registered()) > 3:
            broker_id = self.random.choice(self.registered())
            request = UnregisterBrokerRequest(broker_id=broker_id)
            self.cluster.commit(self.cluster.controller.unregister_broker(request))

    def propose(self):
        """A leader proposes any ISR, right or wrong."""
        partitions = list(self.cluster.image.topics.partitions())
        if not partitions:
            return
        topic, index, partition = self.random.choice(partitions)
        asker = partition.leader if partition.has_leader else self.random.choice(partition.replicas)
        if asker not in self.cluster.image.cluster.brokers:
            return
        isr = [replica for replica in partition.replicas if replica == asker or self.random.random() < 0.6]
        data = ap.PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch - self.random.choice([0, 0, 0, 1]),
            partition_epoch=partition.partition_epoch - self.random.choice([0, 0, 0, 1]),
            new_isr_with_epochs=[ap.BrokerState(broker_id=replica) for replica in isr],
        )
        request = ap.AlterPartitionRequest(
            broker_id=asker,
            broker_epoch=self.cluster.image.cluster.brokers[asker].epoch,
            topics=[ap.TopicData(topic_id=topic.id, partitions=[data])],
        )
        self.cluster.commit(self.cluster.controller.alter_partition(request, 3))

    def elect(self):
        request = ElectLeadersRequest(election_type=self.random.choice([0, 0, 1]), topic_partitions=None)
        self.cluster.commit(self.cluster.controller.elect_leaders(request))

    def move(self):
        """An operator moves a partition anywhere, or takes the move back."""
        partitions = list(self.cluster.image.topics.partitions())
        if not partitions or not self.registered():
            return
        topic, index, _ = self.random.choice(partitions)
        brokers = self.registered()
        target = self.random.sample(brokers, self.random.randrange(1, min(4, len(brokers)) + 1))
        wish = ReassignablePartition(partition_index=index, replicas=None if self.random.random() < 0.2 else target)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic.name, partitions=[wish])],
            allow_replication_factor_change=self.random.random() < 0.7,
        )
        self.cluster.commit(self.cluster.controller.alter_partition_reassignments(request))

    def die(self):
        """A process ends, and the controller notices at once."""
        if brokers := self.registered():
            broker_id = self.random.choice(brokers)
            self.cluster.controller.on_broker_disconnected(broker_id)
            epoch = self.cluster.image.cluster.brokers[broker_id].epoch
            self.cluster.commit(self.cluster.controller.fence_dead_broker(broker_id, epoch))

    def elect_unclean_leaders(self):
        self.cluster.commit(self.cluster.controller.elect_unclean_leaders(limit=5))

    def balance(self):
        self.cluster.commit(self.cluster.controller.balance_leaders(limit=5))

    def fail_over(self):
        """Another controller takes over, from a snapshot as it would be read from disk."""
        delta = MetadataDelta(EMPTY_IMAGE)
        for record in self.cluster.image.to_records():
            delta.replay(decode_record(encode_record(record)))
        image = delta.apply(*self.cluster.image.provenance)
        assert same_content(image, self.cluster.image)
        self.cluster.commit(self.cluster.controller.take_over(image, self.cluster.now_ms))


@pytest.mark.parametrize("elr", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_keeps_its_promises(cluster, seed, elr):
    life = Life(cluster, seed, {"metadata.version": 30, "eligible.leader.replicas.version": elr})
    for _ in range(150):
        life.step()
    assert len(life.cluster.log) > 100, f"seed {seed} did nothing"

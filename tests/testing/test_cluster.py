"""A cluster of a test goes on when one of its nodes is killed, takes it back, and has faults on request."""

import os
import socket

import pytest
from confluent_kafka import KafkaError, Producer

import klamm.testing
from klamm.client import Admin
from klamm.model.errors import ConfigError


@pytest.fixture(scope="module")
def shared_cluster():
    with klamm.testing.cluster(3) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster):
    """Without the faults of the test before: librdkafka fails records to a broker that a node has not listed yet."""
    shared_cluster.heal()
    shared_cluster.wait()
    return shared_cluster


def send(bootstrap: str, topic: str, partitions: int = 3, **settings) -> list[KafkaError | None]:
    """One record to each partition with librdkafka; the error of each, None for none."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": 60_000, **settings})
    ended: list[KafkaError | None] = []
    for partition in range(partitions):
        producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: ended.append(error))
    assert producer.flush(70) == 0
    return ended


def leader_of(place, topic: str) -> int:
    with Admin(bootstrap_servers=place.bootstrap) as admin:
        return admin.describe_topics([topic])[topic].partitions[0].leader


def test_three_nodes_outlive_one(cluster):
    assert [node.id for node in cluster.nodes] == [1, 2, 3]
    topic = cluster.topic(partitions=3)
    assert send(cluster.bootstrap, topic) == [None] * 3
    before = cluster.nodes[2].pid
    cluster.nodes[2].kill()
    assert not cluster.nodes[2].running
    assert send(cluster.bootstrap, topic) == [None] * 3
    cluster.nodes[2].start()
    cluster.wait(3)
    assert cluster.nodes[2].pid != before
    assert send(cluster.nodes[2].bootstrap, topic) == [None] * 3
    cluster.nodes[1].stop()
    assert send(cluster.bootstrap, topic) == [None] * 3
    cluster.nodes[1].start()
    cluster.wait(3)


def test_one_node_is_slow_until_it_is_healed(cluster):
    topic = cluster.topic()
    slow = cluster.nodes[leader_of(cluster, topic) - 1]
    slow.slow(60.0, "Produce")
    stuck = send(cluster.bootstrap, topic, 1, **{"message.timeout.ms": 1000})
    assert stuck[0] is not None
    assert stuck[0].code() == KafkaError._MSG_TIMED_OUT
    slow.heal()
    assert send(cluster.bootstrap, topic, 1) == [None]


def test_every_node_refuses_until_it_is_healed(cluster):
    topic = cluster.topic(partitions=3)
    cluster.refuse("TOPIC_AUTHORIZATION_FAILED", "Produce")
    refused = send(cluster.bootstrap, topic)
    assert [error and error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 3
    cluster.heal()
    assert send(cluster.bootstrap, topic) == [None] * 3
    with cluster.admin() as admin:
        latest = admin.list_offsets({(topic, partition): -1 for partition in range(3)})
    assert sorted(offset.offset for offset in latest.values()) == [1, 1, 1]


def test_a_refusal_for_a_while_is_outlived(cluster):
    topic = cluster.topic()
    cluster.nodes[leader_of(cluster, topic) - 1].refuse("NOT_ENOUGH_REPLICAS", "Produce", times=2)
    assert send(cluster.bootstrap, topic, 1) == [None]


def test_mistakes_in_faults_are_named(cluster):
    with pytest.raises(ValueError, match="did you mean"):
        cluster.refuse("UNKNOWN_SERVER_ERROR", "Produc")


def test_nothing_stays_behind():
    made = klamm.testing.Cluster(1).start()
    pid, folder = made.nodes[0].pid, made.data
    made.nodes[0].pause()
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not os.path.exists(folder)
    assert not made.running


def test_a_node_that_cannot_start_says_why():
    made = klamm.testing.Cluster(1)
    with (
        socket.create_server(("127.0.0.1", made.port)),
        pytest.raises(RuntimeError, match=rf"(?s)node 1 .*{made.port}.* taken"),
    ):
        made.start()
    assert not made.running
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        klamm.testing.Cluster(1, config={"num.partitions": "none"})

"""`klamm cluster reassign|drain|elect` on three real processes: what is shown before, and where replicas lie after."""

import json
import subprocess

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from harness import KLAMM, KlammCluster, unique

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KlammCluster(tmp_path_factory.mktemp("moves")) as running:
        yield running


def klamm(cluster, *words, expect=0):
    done = subprocess.run(
        [*KLAMM, *words, "-b", cluster.bootstrap], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == expect, done.stderr
    return done.stdout


def replicas(cluster, topic):
    described = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=30).topics[topic]
    return {index: partition.replicas for index, partition in described.partitions.items()}


@pytest.fixture
def topic(cluster):
    name = unique("move")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 4, 2, config={"min.insync.replicas": "1"})])[name].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(400):
        producer.produce(name, b"x" * 500, partition=number % 4)
    assert producer.flush(60) == 0
    yield name
    admin.delete_topics([name])[name].result(60)


def test_show_counts_nodes_and_names_no_trouble(cluster, topic):
    shown = json.loads(klamm(cluster, "cluster", "show", "-o", "json"))
    assert [broker["broker"] for broker in shown["brokers"]] == [1, 2, 3]
    assert shown["voters"] == [1, 2, 3]
    assert shown["trouble"] == []


def test_a_dry_run_moves_nothing(cluster, topic):
    before = replicas(cluster, topic)
    shown = klamm(cluster, "cluster", "reassign", topic, "--replication-factor", "3", "--dry-run")
    assert f"~ {topic}-0:" in shown
    assert replicas(cluster, topic) == before


def test_more_copies_under_a_throttle(cluster, topic):
    out = klamm(cluster, "cluster", "reassign", topic, "--replication-factor", "3", "--throttle", "10MiB", "--yes")
    assert "4 partitions are where they should be" in out
    assert {tuple(sorted(node_ids)) for node_ids in replicas(cluster, topic).values()} == {(1, 2, 3)}
    left = klamm(cluster, "config", "ls", "topic", topic, "-o", "json")
    assert "throttled" not in left


def test_a_drained_broker_holds_nothing_of_the_topic(cluster, topic):
    klamm(cluster, "cluster", "reassign", topic, "--brokers", "1,2", "--yes")
    assert {tuple(sorted(node_ids)) for node_ids in replicas(cluster, topic).values()} == {(1, 2)}


def test_preferred_leaders_come_back(cluster, topic):
    """After a node was away, it leads again what it is first for."""
    node = cluster.node(2)
    node.restart()
    klamm(cluster, "cluster", "elect", topic, "--yes")
    described = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=30).topics[topic]
    assert all(partition.leader == partition.replicas[0] for partition in described.partitions.values())


def test_an_unknown_broker_is_named(cluster, topic):
    done = subprocess.run(
        [*KLAMM, "cluster", "reassign", topic, "--brokers", "1,9", "-b", cluster.bootstrap],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "broker 9 is not alive; these are: 1, 2, 3" in done.stderr


def test_drain_leaves_a_broker_empty(cluster, topic):
    klamm(cluster, "cluster", "drain", "3", "--yes")
    assert all(3 not in node_ids for node_ids in replicas(cluster, topic).values())
    shown = json.loads(klamm(cluster, "cluster", "show", "-o", "json"))
    assert next(broker["replicas"] for broker in shown["brokers"] if broker["broker"] == 3) == 0

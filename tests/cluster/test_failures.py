"""Three real processes lose a node, or a link, or all nodes, while librdkafka clients write and read.

Whatever happens, an acknowledged record is there once and in order, transactions are whole, and readers see all of it.
"""

import os
import random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from chaos.load import Load, wait_until_whole
from harness import KlammCluster, Links, Wire, batch
from harness.client_stories import until
from harness.wire import produce_fields

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SETTINGS = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


@pytest.fixture
def cluster(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with KlammCluster(tmp_path, overrides=SETTINGS) as running:
        yield running


@pytest.fixture
def load(cluster):
    with Load(cluster.bootstrap, SEED) as running:
        running.wait_for_progress()
        yield running


@pytest.fixture
def load_with_large_records(cluster):
    with Load(cluster.bootstrap, SEED, large_records=True) as running:
        running.wait_for_progress()
        yield running


def leader(cluster, topic="chaos-log", partition=0):
    """The node that leads a partition."""
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=30).topics
    return cluster.node(topics[topic].partitions[partition].leader)


def controller(cluster):
    """The node whose controller is active."""
    with Wire(cluster.nodes[0].port) as wire:
        requested = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = wire.call("describe_quorum", 2, topics=requested)
    return cluster.node(answer.topics[0].partitions[0].leader_id)


def test_kill_the_leader(cluster, load):
    node = leader(cluster)
    node.kill9()
    load.wait_for_progress()
    node.start()
    assert load.judge() == []


def test_kill_the_controller(cluster, load):
    node = controller(cluster)
    node.kill9()
    load.wait_for_progress()
    node.start()
    assert load.judge() == []


def test_pause_the_leader_past_its_session(cluster, load_with_large_records):
    load = load_with_large_records
    node = leader(cluster)
    node.pause()
    load.wait_for_progress()
    node.resume()
    load.wait_for_progress()
    assert load.judge() == []


def test_pause_the_controller_past_its_session(cluster, load):
    node = controller(cluster)
    node.pause()
    load.wait_for_progress()
    node.resume()
    load.wait_for_progress()
    assert load.judge() == []


@pytest.mark.long
def test_kill_every_node_one_after_the_other(cluster, load):
    for node in cluster.nodes:
        node.kill9()
        load.wait_for_progress(50, 1)
        node.start()
        wait_until_whole({"bootstrap.servers": cluster.bootstrap})
    assert load.judge() == []


@pytest.mark.long
def test_kill_all_nodes_at_once(cluster, load):
    for node in cluster.nodes:
        node.kill9()
    cluster.start()
    load.wait_for_progress()
    assert load.judge() == []


@pytest.mark.long
def test_restart_all_nodes_one_after_the_other(cluster, load):
    """A rolling restart: clients go on."""
    for node in cluster.nodes:
        node.restart()
        load.wait_for_progress(50, 1)
        wait_until_whole({"bootstrap.servers": cluster.bootstrap})
    assert load.judge() == []


def test_stop_all_nodes_at_once_and_start_them_again(cluster, load):
    cluster.stop()
    cluster.start()
    load.wait_for_progress()
    assert load.judge() == []


def test_a_leader_cut_from_its_followers_acknowledges_nothing(tmp_path):
    with (
        Links() as links,
        KlammCluster(tmp_path, overrides=SETTINGS, links=links) as cluster,
        Load(cluster.bootstrap, SEED) as load,
    ):
        load.wait_for_progress()
        node = leader(cluster)
        links.isolate(node.node_id, [other.node_id for other in cluster.nodes if other is not node])
        load.wait_for_progress()
        links.heal()
        load.wait_for_progress()
        assert load.judge() == []


@pytest.mark.parametrize("known", [False, True], ids=["a new producer", "a producer that has written before"])
def test_what_follows_a_batch_that_a_new_leader_never_got_waits_for_it(tmp_path, known):
    """librdkafka sends on while its first batches wait for a leader that is cut off, and takes one answer for all.

    Of a producer that the log knows it takes the refusal for the end of an epoch, and sends again under the next what
    other partitions have already: duplicates, which only a paused leader beside several partitions brings about.
    """
    with Links() as links, KlammCluster(tmp_path, overrides=SETTINGS, links=links) as cluster:
        topic = "cut-off"
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(topic, 1, 3, config={"min.insync.replicas": "2"})])[topic].result(60)
        wait_until_whole({"bootstrap.servers": cluster.bootstrap})
        old = leader(cluster, topic)
        others = [node for node in cluster.nodes if node is not old]
        with Wire(old.port, timeout=60) as behind:
            producer = behind.call("init_producer_id", 4, transactional_id=None)
            written, *batches = (
                batch(b"%d" % sequence, producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence)
                for sequence in range(4)
            )
            if known:
                assert behind.produce(topic, written).error_code == ErrorCode.none
            else:
                batches = [written, *batches]
            first, *following = batches
            links.isolate(old.node_id, [node.node_id for node in others])
            behind.send("produce", 9, **produce_fields(topic, first))
            new = until(lambda: leads(others, topic), "another node leads")
            with Wire(new.port, timeout=60) as wire:
                codes = [wire.produce(topic, records).error_code for records in reversed(following)]
                assert codes == [ErrorCode.not_enough_replicas] * len(following)
                codes = [wire.produce(topic, records).error_code for records in batches]
                assert codes == [ErrorCode.none] * len(batches)
                assert wire.values(topic) == [b"0", b"1", b"2", b"3"]
        links.heal()


def leads(nodes, topic):
    """Which of some nodes leads a partition, as they see it; None for another node, or without a leader."""
    with Wire(nodes[0].port) as wire:
        (described,) = wire.call("metadata", 12, topics=[{"name": topic}]).topics
    return next((node for node in nodes if node.node_id == described.partitions[0].leader_id), None)

"""The metrics and the health of three real processes: lag of partitions of other nodes, a node that is killed."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import KlammCluster, Wire, unique
from harness.members import wait_until
from harness.scrapes import Scrape, served_address

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

SETTINGS = {
    "metrics.listeners": "127.0.0.1:0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
SECONDS = "kafka_consumergroup_group_lag_seconds"
GROUPS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KlammCluster(tmp_path_factory.mktemp("metrics"), overrides=SETTINGS) as running:
        yield running


def addresses(cluster):
    return [served_address(node.log()) for node in cluster.nodes if node.process is not None]


def create_topic(cluster, partitions, factor, **config):
    name = unique("metrics")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, partitions, factor, config=config)])[name].result(60)
    return name


def produce(cluster, topic, times_ms, partitions):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20})
    for time_ms in times_ms:
        for partition in range(partitions):
            producer.produce(topic, b"x", partition=partition, timestamp=time_ms)
    assert producer.flush(60) == 0


def find_lags(cluster, topic, group):
    """The lag in seconds by partition, over all nodes: the coordinator's; None where it is not served."""
    scrapes = [Scrape(address) for address in addresses(cluster)]
    lags = {}
    for partition in ("0", "1", "2"):
        values = [scrape.find(SECONDS, group=group, topic=topic, partition=partition) for scrape in scrapes]
        lags[partition] = next((value for value in values if value is not None), None)
    return lags


def test_a_group_that_commits_between_scrapes_always_has_a_lag_in_seconds(cluster):
    """Two of three partitions have no replica on the group's coordinator."""
    topic, group = create_topic(cluster, 3, 1), unique("moving")
    now_ms = int(time.time() * 1000)
    # One record a minute in each partition, the first one five hours old.
    produce(cluster, topic, [now_ms - (300 - number) * 60_000 for number in range(300)], 3)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        for offset in range(40, 280, 30):
            partitions = [TopicPartition(topic, partition, offset) for partition in range(3)]
            consumer.commit(offsets=partitions, asynchronous=False)
            if offset == 40:
                wait_until(lambda: None not in find_lags(cluster, topic, group).values(), what="no lag is served")
            lags = find_lags(cluster, topic, group)
            age_s = time.time() - (now_ms / 1000 - (300 - offset) * 60)
            for partition, lag in lags.items():
                assert lag is not None, f"no lag of partition {partition} at {offset}"
                # Interpolated until the leaders are asked again: by far nearer than the hours between the records.
                assert abs(lag - age_s) <= max(0.1 * age_s, 60), f"partition {partition} at {offset}"

        def is_exact():
            age_s = time.time() - (now_ms / 1000 - (300 - 250) * 60)
            return all(abs(lag - age_s) <= max(0.03 * age_s, 2) for lag in find_lags(cluster, topic, group).values())

        wait_until(is_exact, what="the lag did not become exact")
    finally:
        consumer.close()


def test_a_group_that_has_read_everything_of_other_nodes_has_no_lag(cluster):
    topic, group = create_topic(cluster, 3, 1), unique("done")
    produce(cluster, topic, [1_700_000_000_000] * 5, 3)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, index, 5) for index in range(3)], asynchronous=False)
    finally:
        consumer.close()
    wait_until(lambda: find_lags(cluster, topic, group) == {"0": 0.0, "1": 0.0, "2": 0.0})


def test_hundreds_of_groups_have_their_lag_after_a_few_scrapes(cluster):
    topic = create_topic(cluster, 3, 1)
    now_ms = int(time.time() * 1000)
    produce(cluster, topic, [now_ms - 3_600_000 + number * 3_000 for number in range(1_000)], 3)
    groups = [unique("many") for _ in range(GROUPS)]
    by_node = {}
    with Wire(cluster.nodes[0].port) as wire:
        for coordinator in wire.call("find_coordinator", 4, key_type=0, coordinator_keys=groups).coordinators:
            by_node.setdefault(coordinator.node_id, []).append(coordinator.key)
    for node_id, keys in by_node.items():
        with Wire(cluster.node(node_id).port) as wire:
            for key in keys:
                offset = 3 * groups.index(key)
                partitions = [{"partition_index": index, "committed_offset": offset} for index in range(3)]
                fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
                wire.call(
                    "offset_commit", 8, group_id=key, topics=[{"name": topic, "partitions": partitions}], **fields
                )

    def count_served():
        served = 0
        for address in addresses(cluster):
            scrape = Scrape(address)
            served += sum(labels["topic"] == topic for labels in scrape.labels(SECONDS))
        return served

    wait_until(lambda: count_served() == 3 * GROUPS, what="groups without a lag in seconds")
    scrapes = [Scrape(address) for address in addresses(cluster)]
    for number, group in enumerate(groups):
        seconds = sum(scrape.sum("kafka_consumergroup_group_max_lag_seconds", group=group) for scrape in scrapes)
        age_s = time.time() - now_ms / 1000 + 3_600 - 9 * number
        assert abs(seconds - age_s) <= 0.05 * age_s, f"group {number}"

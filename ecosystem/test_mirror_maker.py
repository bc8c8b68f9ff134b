"""MirrorMaker 2 both ways between the three nodes and another cluster, of the same kind and of the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from ecosystem import maven
from ecosystem.cluster import Cluster, eventually
from ecosystem.mirrors import mirror_properties, start_mirror

pytestmark = pytest.mark.program("MirrorMaker 2", maven.version("connect", "connect-mirror"))


@pytest.fixture(scope="module", params=["klamm", "kafka"])
def other_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster at the other end."""
    with Cluster(request.param, tmp_path_factory.mktemp("other")) as cluster:
        yield cluster


def by_partition(cluster: Cluster, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.partition, record.key, record.value) for record in cluster.read(topic)]


def retention(cluster: Cluster, topic: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = cluster.admin.describe_configs([resource])[resource].result(60)["retention.ms"]
    return str(entry.value)


def committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    groups = [ConsumerGroupTopicPartitions(group)]
    offsets = cluster.admin.list_consumer_group_offsets(groups)[group].result(60).topic_partitions
    return {entry.partition: entry.offset for entry in offsets if entry.topic == topic}


def commit_all(cluster: Cluster, group: str, topic: str) -> None:
    """Commit the end of every partition, as a group that has read everything."""
    ends: dict[int, int] = {}
    for record in cluster.read(topic):
        ends[record.partition] = record.offset + 1
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": "0"})
    try:
        offsets = [TopicPartition(topic, partition, offset) for partition, offset in ends.items()]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def test_both_ways(cluster: Cluster, other_cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Topics of each of two clusters are mirrored to the other with their partitions, order and settings, exactly once
    while a node is killed with SIGKILL; offsets of a group are translated. The other cluster is of the kind named."""
    topic = f"orders-{request.node.callspec.id}"
    for home, name in ((cluster, "here"), (other_cluster, "there")):
        home.create_topic(topic, 3, retention_ms="86400001")
        home.produce(topic, [(f"{name}-{number % 50}", f"{name}-{number}") for number in range(5000)])
    commit_all(cluster, topic, topic)
    properties = mirror_properties(cluster.bootstrap, other_cluster.bootstrap, topic)
    with start_mirror(tmp_path, properties) as mirror:
        for home, target, name in ((cluster, other_cluster, "here"), (other_cluster, cluster, "there")):
            remote = f"{name}.{topic}"
            eventually(
                lambda target=target, remote=remote: remote in target.admin.list_topics(timeout=60).topics,  # type: ignore[misc]
                f"{remote} exists",
            )
            target.wait_for_records(remote, len(home.read(topic)))
        cluster.node(2).kill9()
        for home, name in ((cluster, "here"), (other_cluster, "there")):
            home.produce(topic, [(f"{name}-{number % 50}", f"{name}-{number}") for number in range(5000, 7000)])
        cluster.restore()
        for home, target, name in ((cluster, other_cluster, "here"), (other_cluster, cluster, "there")):
            remote = f"{name}.{topic}"
            target.wait_for_records(remote, len(home.read(topic)))
            assert by_partition(target, remote) == by_partition(home, topic)
            assert retention(target, remote) == "86400001"
        commit_all(cluster, topic, topic)
        wanted = committed(cluster, topic, topic)
        remote = f"here.{topic}"

        def offsets_are_translated() -> bool:
            return committed(other_cluster, topic, remote).keys() == wanted.keys()

        eventually(offsets_are_translated, "the offsets of the group are translated")
        assert mirror.is_running, mirror.tail()
    upstream = dict(committed(other_cluster, topic, remote).items())
    ends = {record.partition: record.offset + 1 for record in other_cluster.read(remote)}
    assert all(0 < upstream[partition] <= ends[partition] for partition in wanted), (upstream, ends)

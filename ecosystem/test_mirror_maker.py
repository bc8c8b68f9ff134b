"""MirrorMaker 2 both ways between the three nodes and another cluster, of the same kind and of the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from ecosystem import maven
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process

pytestmark = pytest.mark.program("MirrorMaker 2", maven.version("connect", "connect-mirror"))


@pytest.fixture(scope="module", params=["klamm", "kafka"])
def other_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster at the other end."""
    with Cluster(request.param, tmp_path_factory.mktemp("other")) as cluster:
        yield cluster


def properties(here: Cluster, there: Cluster, topics: str) -> str:
    settings = {
        "clusters": "here, there",
        "here.bootstrap.servers": here.bootstrap,
        "there.bootstrap.servers": there.bootstrap,
        "here->there.enabled": "true",
        "there->here.enabled": "true",
        "topics": topics,
        "groups": topics,
        "replication.factor": "3",
        "checkpoints.topic.replication.factor": "3",
        "heartbeats.topic.replication.factor": "3",
        "offset-syncs.topic.replication.factor": "3",
        "offset.storage.replication.factor": "3",
        "status.storage.replication.factor": "3",
        "config.storage.replication.factor": "3",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "sync.topic.configs.interval.seconds": "2",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": "0",
        "dedicated.mode.enable.internal.rest": "false",
        "here.exactly.once.source.support": "enabled",
        "there.exactly.once.source.support": "enabled",
        "offset.flush.interval.ms": "500",
        "plugin.discovery": "only_scan",
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


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
    file = tmp_path / "mm2.properties"
    file.write_text(properties(cluster, other_cluster, topic))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    with Process(maven.java_command("connect", main, str(file), heap_mb=512), tmp_path / "output.log") as mirror:
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

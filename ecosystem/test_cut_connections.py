"""Client libraries of Go and C whose connections are reset and whose replies are lost."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecosystem.clients import CONFLUENT, FRANZ, KAFKA_GO, SARAMA, Client, events
from ecosystem.cluster import eventually
from ecosystem.cuts import CutCluster
from ecosystem.judging import assert_kept, positions, seen, wait_for_acknowledged

PARTITIONS = 6
ROUNDS = 12
CLIENTS = [client.parameter for client in (FRANZ, SARAMA, KAFKA_GO, CONFLUENT)]


@pytest.fixture(scope="module")
def proxied_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutCluster]:
    with CutCluster(request.config.getoption("--broker"), tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cut_cluster(proxied_cluster: CutCluster) -> CutCluster:
    proxied_cluster.restore()
    return proxied_cluster


@pytest.mark.quick
@pytest.mark.parametrize("client", CLIENTS)
def test_connections_are_cut(client: Client, cut_cluster: CutCluster, topic: str, tmp_path: Path) -> None:
    """A fiftieth of the replies to Produce is lost with its connection, and twelve times connections are reset, while
    a producer writes and a group member reads: acknowledged records are in the log and were read, none twice or out
    of order where the producer is idempotent."""
    cut_cluster.create_topic(topic, PARTITIONS)
    where = {"bootstrap": cut_cluster.cut_bootstrap, "topic": topic}
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    with (
        client.start("produce", tmp_path / "produce.log", **where, pause="2ms") as producer,
        client.start("member", tmp_path / "member.log", **where, group=topic) as member,
    ):
        wait_for_acknowledged(producer, 100)
        cut_cluster.lose_replies(0.02)
        for _ in range(ROUNDS):
            wait_for_acknowledged(producer, 100)
            cut_cluster.reset_connections(source)
        cut_cluster.lose_replies(0.0)
        wait_for_acknowledged(producer, 100)
        assert producer.stop() == 0, producer.tail()
        acknowledged = positions(events(producer.text, "acknowledged"))
        eventually(lambda: set(acknowledged) <= set(seen(member)), "every acknowledged record was read", pause_s=0.5)
        assert member.stop() == 0, member.tail()
    assert_kept(client, cut_cluster.read(topic), acknowledged)

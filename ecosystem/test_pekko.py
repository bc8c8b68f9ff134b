"""Pekko's Kafka connector: plain producer, committing flow, transactional flow."""

from pathlib import Path

import pytest

from ecosystem import maven
from ecosystem.cluster import Cluster
from ecosystem.processes import Process, run

pytestmark = pytest.mark.program("Pekko connectors", maven.version("pekko", "pekko-connectors-kafka_2.13"))


def application(*arguments: str) -> list[str]:
    quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
    return maven.java_command("pekko", "PekkoApp", *arguments, options=quiet)


def prepare(cluster: Cluster, topic: str, tmp_path: Path, count: int) -> list[str]:
    """Topics, and numbers written by Pekko's own producer; gives the output a flow must come to."""
    for name in ("in", "out"):
        cluster.create_topic(f"{topic}-{name}")
    run(application("produce", cluster.bootstrap, topic, str(count)), tmp_path / "produce.log")
    assert sorted(cluster.read_values(f"{topic}-in"), key=int) == [str(number) for number in range(count)]
    return sorted(f"done-{number}" for number in range(count))


@pytest.mark.quick
@pytest.mark.parametrize("stream", ["commit", "transact"])
def test_flow(cluster: Cluster, topic: str, tmp_path: Path, stream: str) -> None:
    """Producer.plainSink writes 2,000 records; a committing or a transactional flow sends each of them on once."""
    expected = prepare(cluster, topic, tmp_path, 2000)
    with Process(application(stream, cluster.bootstrap, topic), tmp_path / "flow.log"):
        cluster.wait_for_records(f"{topic}-out", len(expected))
        assert sorted(cluster.read_values(f"{topic}-out")) == expected


def test_transactional_flow_while_it_and_nodes_die(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Transactional.source into Transactional.flow, killed with SIGKILL three times and each node once: every record is
    sent on once."""
    expected = prepare(cluster, topic, tmp_path, 20000)
    for node in (1, 2, 3):
        with Process(application("transact", cluster.bootstrap, topic), tmp_path / f"flow-{node}.log"):
            cluster.wait_for_progress(f"{topic}-out", len(expected))
            cluster.node(node).kill9()
        cluster.restore()
    with Process(application("transact", cluster.bootstrap, topic), tmp_path / "flow.log"):
        cluster.wait_for_records(f"{topic}-out", len(expected))
        assert sorted(cluster.read_values(f"{topic}-out")) == expected

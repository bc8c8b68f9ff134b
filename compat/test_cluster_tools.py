"""Apache Kafka's tools for clusters, against three nodes: what lacks replicas, who leads, what moves, who is who."""

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from compat.clients import JavaClient, ToolOutput
from compat.clusters import BrokerCluster

TOOLS = "org.apache.kafka.tools."
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
PATIENCE_S = 90.0
Run = Callable[..., ToolOutput]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    settings = {"auto.leader.rebalance.enable": "false", "broker.session.timeout.ms": "4000"}
    settings |= {"broker.heartbeat.interval.ms": "500", "replica.lag.time.max.ms": "4000"}
    kind = request.config.getoption("--broker")
    with BrokerCluster(kind, tmp_path_factory.mktemp("cluster"), overrides=settings) as running:
        yield running


@pytest.fixture
def run(java: JavaClient, cluster: BrokerCluster) -> Run:
    """Run a tool against the cluster and require its success."""

    def run_tool(main: str, *args: str, exits: int = 0) -> ToolOutput:
        name = main if "." in main else TOOLS + main
        where = ("--bootstrap-server", cluster.bootstrap)
        output = java.tool(name, *args, *where) if main == "ClusterTool" else java.tool(name, *where, *args)
        assert output.exit == exits, output.text
        return output

    return run_tool


def wait_for(read: Callable[[], str], wanted: Callable[[str], bool], what: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted(text := read()):
        assert time.monotonic() < deadline, f"never: {what}\n{text}"
    return text


def is_blank(text: str) -> bool:
    return text.strip() == ""


def describing(run: Run, topic: str, flag: str) -> Callable[[], str]:
    """Run the tool for the partitions of a topic that `flag` selects."""

    def describe() -> str:
        return run("TopicCommand", "--describe", flag, "--topic", topic).out

    return describe


def leaders(run: Run, topic: str) -> list[int]:
    text = run("TopicCommand", "--describe", "--topic", topic).out
    return [int(leader) for leader in re.findall(r"Partition: \d+\tLeader: (\d+)", text)]


def replicas(run: Run, topic: str) -> list[str]:
    return re.findall(r"Replicas: ([\d,]+)\t", run("TopicCommand", "--describe", "--topic", topic).out)


def create(run: Run, topic: str, assignment: str, *configs: str) -> None:
    options = [part for config in configs for part in ("--config", config)]
    run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", assignment, *options)


def test_who_is_there(run: Run, cluster: BrokerCluster) -> None:
    output = run("ClusterTool", "cluster-id").out
    assert re.search(r"Cluster ID: \S{22}", output), output
    listed = run("ClusterTool", "list-endpoints").out
    for node_id, node in enumerate(cluster.nodes, 1):
        assert re.search(rf"^{node_id}\s+127\.0\.0\.1\s+{node.port}\b", listed, re.MULTILINE), listed


def test_the_quorum(run: Run) -> None:
    status = run("MetadataQuorumCommand", "describe", "--status").out
    assert re.search(r"LeaderId:\s+[123]\b", status), status
    assert re.search(r"MaxFollowerLagTimeMs:\s+\d+", status), status
    for node_id in (1, 2, 3):
        assert re.search(rf'CurrentVoters:.*"id": {node_id}\b', status), status
    replication = run("MetadataQuorumCommand", "describe", "--replication").out
    assert len(re.findall(r"\t(?:Leader|Follower)\b", replication)) == 3, replication


def test_topics_are_spread(run: Run, topic: str) -> None:
    run("TopicCommand", "--create", "--topic", topic, "--partitions", "6", "--replication-factor", "2")
    assert sorted(leaders(run, topic)) == [1, 1, 2, 2, 3, 3]
    held = ",".join(replicas(run, topic)).split(",")
    assert sorted(held) == sorted("123" * 4)


def test_a_missing_node_shows_and_its_return_too(run: Run, topic: str, cluster: BrokerCluster) -> None:
    create(run, topic, "3:1:2,1:2:3", "min.insync.replicas=3")
    assert run("TopicCommand", "--describe", "--under-replicated-partitions", "--topic", topic).out.strip() == ""
    cluster.node(3).stop()

    describe = partial(describing, run, topic)

    def both(text: str) -> bool:
        return "Partition: 0\t" in text and "Partition: 1\t" in text

    wait_for(describe("--under-replicated-partitions"), both, "both partitions lack a replica")
    wait_for(describe("--under-min-isr-partitions"), both, "both partitions have too few in sync")
    assert describe("--unavailable-partitions")().strip() == ""
    assert 3 not in leaders(run, topic)
    cluster.node(3).start()
    wait_for(describe("--under-replicated-partitions"), is_blank, "all replicas are in sync again")
    assert describe("--under-min-isr-partitions")().strip() == ""
    at_minimum = describe("--at-min-isr-partitions")()
    assert both(at_minimum), at_minimum


def test_preferred_leaders_are_elected(run: Run, topic: str, cluster: BrokerCluster, tmp_path: Path) -> None:
    create(run, topic, "2:1,1:2,3:2")
    cluster.node(2).stop()
    cluster.node(2).start()
    wait_for(describing(run, topic, "--under-replicated-partitions"), is_blank, "all in sync")
    assert leaders(run, topic) == [1, 1, 3]
    chosen = tmp_path / "partitions.json"
    chosen.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0}]}))
    done = run("LeaderElectionCommand", "--election-type", "preferred", "--path-to-json-file", str(chosen)).out
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in done
    assert leaders(run, topic) == [2, 1, 3]
    again = run("LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", "0").out
    assert f"Valid replica already elected for partitions {topic}-0" in again
    run("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    unclean = ("--election-type", "unclean", "--topic", topic, "--partition", "1")
    assert f"Valid replica already elected for partitions {topic}-1" in run("LeaderElectionCommand", *unclean).out


def plan(topic: str, *wanted: list[int]) -> str:
    parts = [{"topic": topic, "partition": index, "replicas": ids} for index, ids in enumerate(wanted)]
    return json.dumps({"version": 1, "partitions": parts})


def test_partitions_are_reassigned(run: Run, topic: str, tmp_path: Path) -> None:
    create(run, topic, "1:2,2:3", "min.insync.replicas=1")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    proposed = run(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3").out
    assert "Current partition replica assignment" in proposed
    assert "Proposed partition reassignment configuration" in proposed
    file = tmp_path / "plan.json"
    file.write_text(plan(topic, [3, 1], [1, 2, 3]))
    begun = run(REASSIGN, "--execute", "--reassignment-json-file", str(file), "--throttle", "50000000").out
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in begun
    verify = (REASSIGN, "--verify", "--reassignment-json-file", str(file))

    def complete(text: str) -> bool:
        return all(f"Reassignment of partition {topic}-{index} is completed." in text for index in (0, 1))

    ended = wait_for(lambda: run(*verify).out, complete, "the moves are over")
    assert "Clearing topic-level throttles" in ended
    assert replicas(run, topic) == ["3,1", "1,2,3"]
    assert "No partition reassignments found." in run(REASSIGN, "--list").out
    described = run(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic).out
    assert "replication.throttled" not in described
    file.write_text(plan(topic, [3, 99], [1]))
    refused = run(REASSIGN, "--execute", "--reassignment-json-file", str(file), exits=1)
    assert "99" in refused.text


def test_a_reassignment_is_cancelled(run: Run, topic: str, tmp_path: Path) -> None:
    """So many bytes at so few per second take longer than the test."""
    create(run, topic, "1:2", "min.insync.replicas=1")
    run(
        "ProducerPerformance", "--topic", topic, "--num-records", "2000", "--record-size", "10000", "--throughput", "-1"
    )
    file = tmp_path / "plan.json"
    file.write_text(plan(topic, [3, 2]))
    run(REASSIGN, "--execute", "--reassignment-json-file", str(file), "--throttle", "1000")
    listed = run(REASSIGN, "--list").out
    assert re.search(rf"{topic}-0: replicas: 3,2,1\. adding: 3\. removing: 1\.", listed), listed
    verified = run(REASSIGN, "--verify", "--reassignment-json-file", str(file)).out
    assert f"Reassignment of partition {topic}-0 is still in progress." in verified
    cancelled = run(REASSIGN, "--cancel", "--reassignment-json-file", str(file)).out
    assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled
    assert "No partition reassignments found." in run(REASSIGN, "--list").out
    assert sorted(replicas(run, topic)[0].split(",")) == ["1", "2"]


def test_settings_of_brokers(run: Run) -> None:
    defaults = ("--entity-type", "brokers", "--entity-default")
    run(CONFIGS, "--alter", *defaults, "--add-config", "log.retention.ms=7200000")
    for broker_id in ("1", "2", "3"):
        one = ("--entity-type", "brokers", "--entity-name", broker_id)
        run(CONFIGS, "--alter", *one, "--add-config", f"message.max.bytes=200000{broker_id}")
        described = run(CONFIGS, "--describe", *one, "--all").out
        assert f"message.max.bytes=200000{broker_id} sensitive=false" in described
        assert "log.retention.ms=7200000 sensitive=false" in described
        run(CONFIGS, "--alter", *one, "--delete-config", "message.max.bytes")
    run(CONFIGS, "--alter", *defaults, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in run(CONFIGS, "--describe", *defaults).out


def test_feature_levels(run: Run) -> None:
    name = "eligible.leader.replicas.version"
    described = run("FeatureCommand", "describe").out
    assert re.search(rf"Feature: {name}\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1", described), described
    run("FeatureCommand", "downgrade", "--feature", f"{name}=0")
    features = run("FeatureCommand", "describe").out
    assert re.search(rf"Feature: {name}\s.*FinalizedVersionLevel: 0\b", features), features
    run("FeatureCommand", "upgrade", "--feature", f"{name}=1")
    features = run("FeatureCommand", "describe").out
    assert re.search(rf"Feature: {name}\s.*FinalizedVersionLevel: 1\b", features), features
    assert "99" in run("FeatureCommand", "upgrade", "--feature", f"{name}=99", exits=1).text


def test_fixed_voters_become_part_of_the_log(run: Run) -> None:
    voters = re.compile(r"^[123]\s+(\S{22})\s.*\b(?:Leader|Follower)\b", re.MULTILINE)
    run("FeatureCommand", "upgrade", "--feature", "kraft.version=1")
    features = run("FeatureCommand", "describe").out
    assert re.search(r"Feature: kraft.version\s.*FinalizedVersionLevel: 1\b", features), features
    directories = voters.findall(run("MetadataQuorumCommand", "describe", "--replication").out)
    assert len(set(directories)) == 3, directories
    refused = run("FeatureCommand", "downgrade", "--feature", "kraft.version=0", exits=1)
    assert "kraft.version" in refused.text


def test_a_broker_is_unregistered(run: Run, cluster: BrokerCluster) -> None:
    cluster.node(3).stop()
    output = run("ClusterTool", "unregister", "--id", "3").out
    assert "Broker 3 is no longer registered." in output
    again = run("ClusterTool", "unregister", "--id", "3", exits=1)
    assert "3" in again.text
    cluster.node(3).start()

    def endpoints() -> str:
        return run("ClusterTool", "list-endpoints").out

    wait_for(endpoints, lambda text: re.search(r"^3\s", text, re.MULTILINE) is not None, "the broker is back")

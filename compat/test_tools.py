"""Apache Kafka's own command-line tools must find a broker they know, and print what they always print."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient, ToolOutput

TOOLS = "org.apache.kafka.tools."
CONFIGS = "kafka.admin.ConfigCommand"
Run = Callable[..., ToolOutput]


@pytest.fixture
def run(java: JavaClient, broker: Broker) -> Run:
    """Run a tool against the broker and require its success."""

    def run_tool(main: str, *args: str, exits: int = 0) -> ToolOutput:
        name = main if "." in main else TOOLS + main
        where = ("--bootstrap-server", broker.bootstrap)
        # A sub-command of kafka-cluster owns its options; elsewhere they stand before the sub-command.
        output = java.tool(name, *args, *where) if main == "ClusterTool" else java.tool(name, *where, *args)
        assert output.exit == exits, output.text
        return output

    return run_tool


def test_broker_api_versions(run: Run, broker: Broker) -> None:
    text = run("BrokerApiVersionsCommand").out
    assert f"{broker.bootstrap} (id: 1 rack: null isFenced: false)" in text
    served = {int(key): name for name, key in re.findall(r"(\w+)\((\d+)\): \d+(?: to \d+)? \[usable: \d+\]", text)}
    for key in (0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 55, 57, 60, 75):
        assert key in served, f"API {key} is not served:\n{text}"
    produce = re.search(r"Produce\(0\): 0 to 13 ", text)
    fetch = re.search(r"Fetch\(1\): 4 to 18 ", text)
    assert produce, text
    assert fetch, text


def test_topics(run: Run, topic: str) -> None:
    created = run("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--config", "segment.ms=7000000")
    assert f"Created topic {topic}." in created.out
    assert topic in run("TopicCommand", "--list").out.split()

    described = run("TopicCommand", "--describe", "--topic", topic).out
    assert re.search(
        rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: ", described
    )
    assert "segment.ms=7000000" in described
    for partition in (0, 1):
        assert f"Topic: {topic}\tPartition: {partition}\tLeader: 1\tReplicas: 1\tIsr: 1" in described

    run("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run("TopicCommand", "--describe", "--topic", topic).out

    again = run("TopicCommand", "--create", "--topic", topic, exits=1)
    assert "already exists" in again.text
    fewer = run("TopicCommand", "--alter", "--topic", topic, "--partitions", "3", exits=1)
    assert "5" in fewer.text
    wrong = run("TopicCommand", "--create", "--topic", "no/such name", exits=1)
    assert "no/such name" in wrong.text or "invalid" in wrong.text.lower()

    run("TopicCommand", "--delete", "--topic", topic)
    gone = run("TopicCommand", "--describe", "--topic", topic, exits=1)
    assert "does not exist" in gone.text


def test_topic_configs(run: Run, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run("TopicCommand", "--create", "--topic", topic, "--config", "retention.ms=86400000")

    described = run(CONFIGS, "--describe", *entity).out
    assert "retention.ms=86400000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=86400000" in described

    run(CONFIGS, "--alter", *entity, "--add-config", "max.message.bytes=2000000,cleanup.policy=[compact,delete]")
    run(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    described = run(CONFIGS, "--describe", *entity).out
    assert "max.message.bytes=2000000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "retention.ms" not in described

    everything = run(CONFIGS, "--describe", *entity, "--all").out
    for line in (
        "retention.ms=604800000 sensitive=false",
        "segment.bytes=1073741824 sensitive=false",
        "min.insync.replicas=1 sensitive=false",
        "compression.type=producer sensitive=false synonyms={DEFAULT_CONFIG:compression.type=producer}",
        "message.timestamp.type=CreateTime sensitive=false",
    ):
        assert line in everything, line

    refused = run(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=soon", exits=1)
    assert "InvalidConfigurationException" in refused.text
    unknown = run(CONFIGS, "--alter", *entity, "--add-config", "retention.mss=1", exits=1)
    assert "InvalidConfigurationException" in unknown.text


def test_broker_configs(run: Run) -> None:
    one = ("--entity-type", "brokers", "--entity-name", "1")
    every = ("--entity-type", "brokers", "--entity-default")
    run(CONFIGS, "--alter", *one, "--add-config", "log.cleaner.threads=2")
    run(CONFIGS, "--alter", *every, "--add-config", "log.retention.ms=100000000")
    try:
        described = run(CONFIGS, "--describe", *one).out
        assert re.search(r"log\.cleaner\.threads=2 .*DYNAMIC_BROKER_CONFIG:log\.cleaner\.threads=2", described)
        described = run(CONFIGS, "--describe", *every).out
        assert re.search(r"log\.retention\.ms=100000000 .*DYNAMIC_DEFAULT_BROKER_CONFIG", described)
        everything = run(CONFIGS, "--describe", *one, "--all").out
        assert "node.id=1 sensitive=false synonyms={STATIC_BROKER_CONFIG:node.id=1}" in everything
        assert "num.io.threads=8 " in everything
        refused = run(CONFIGS, "--alter", *one, "--add-config", "node.id=7", exits=1)
        assert "InvalidRequestException" in refused.text or "InvalidConfigurationException" in refused.text
    finally:
        run(CONFIGS, "--alter", *one, "--delete-config", "log.cleaner.threads")
        run(CONFIGS, "--alter", *every, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in run(CONFIGS, "--describe", *every).out


def test_perf_test_offsets_and_deleted_records(
    run: Run, java: JavaClient, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The perf tool writes over several segments; the offsets add up, and move when the head is deleted."""
    settings = ("--partitions", "2", "--config", "segment.bytes=1048576")
    run("TopicCommand", "--create", "--topic", topic, *settings)
    perf = java.tool(
        TOOLS + "ProducerPerformance",
        *("--topic", topic, "--num-records", "8000", "--record-size", "1000", "--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={broker.bootstrap}"),
    )
    assert perf.exit == 0, perf.text
    assert "8000 records sent" in perf.out

    ends = offsets(run("GetOffsetShell", "--topic", topic).out)
    assert sum(ends.values()) == 8000
    assert offsets(run("GetOffsetShell", "--topic", topic, "--time", "earliest").out) == {0: 0, 1: 0}
    latest_times = offsets(run("GetOffsetShell", "--topic", topic, "--time", "max-timestamp").out)
    assert all(0 <= latest_times[partition] < end for partition, end in ends.items())

    partition = max(ends, key=lambda p: ends[p])
    cut = ends[partition] // 2
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": partition, "offset": cut}]}))
    deleted = run("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert f"partition: {topic}-{partition}\tlow_watermark: {cut}" in deleted.out
    starts = offsets(run("GetOffsetShell", "--topic", topic, "--time", "earliest").out)
    assert starts == {partition: cut, 1 - partition: 0}

    logs = run("LogDirsCommand", "--describe", "--topic-list", topic).out
    description = json.loads(next(line for line in logs.splitlines() if line.startswith("{")))
    (folder,) = description["brokers"][0]["logDirs"]
    assert folder["error"] is None
    assert folder["logDir"] == str(broker.data)
    sizes = {one["partition"]: one["size"] for one in folder["partitions"]}
    assert set(sizes) == {f"{topic}-0", f"{topic}-1"}
    assert sizes[f"{topic}-{1 - partition}"] > 1000 * ends[1 - partition]


def test_cluster_features_and_quorum(run: Run, broker: Broker) -> None:
    meta = dict(line.split("=", 1) for line in (broker.data / "meta.properties").read_text().split() if "=" in line)
    assert f"Cluster ID: {meta['cluster.id']}" in run("ClusterTool", "cluster-id").out

    features = run("FeatureCommand", "describe").out
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: 4\.3-IV0", features)

    status = run("MetadataQuorumCommand", "describe", "--status").out
    assert re.search(rf"ClusterId:\s+{re.escape(meta['cluster.id'])}", status)
    assert re.search(r"LeaderId:\s+1\n", status)
    assert re.search(r"MaxFollowerLag:\s+0\n", status)
    assert f"CONTROLLER://127.0.0.1:{broker.controller_port}" in status
    assert re.search(r"HighWatermark:\s+[1-9]\d*", status)
    replication = run("MetadataQuorumCommand", "describe", "--replication").out
    assert re.search(r"\n1\s+\S{22}\s+\d+\s+0\s+\d+\s+\d+\s+Leader", replication)


def offsets(text: str) -> dict[int, int]:
    """`topic:partition:offset` lines as numbers."""
    return {int(line.split(":")[-2]): int(line.split(":")[-1]) for line in text.split()}

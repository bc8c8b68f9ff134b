"""Kafka's verifiable clients and performance tools, from the jars that `compat` fetches."""

import json
from pathlib import Path
from typing import Any

import pytest

from compat import toolchain
from ecosystem import manifests
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process, run

VERSION = manifests.maven_version(toolchain.HERE / "kafka" / "pom.xml", "kafka-tools")
PERF = pytest.mark.program("Kafka performance tools", VERSION)
VERIFIABLE = pytest.mark.program("Kafka verifiable clients", VERSION)
TOOLS = "org.apache.kafka.tools."


def tool(name: str, *arguments: str) -> list[str]:
    return [*toolchain.java_command(heap_mb=256, log_level="error"), TOOLS + name, *arguments]


def events(text: str, name: str) -> list[dict[str, Any]]:
    """The JSON lines of a verifiable client for one kind of event."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["name"] == name]


def positions(records: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Where records are, and what they hold."""
    return sorted((record["partition"], record["offset"], record["value"]) for record in records)


@VERIFIABLE
@pytest.mark.quick
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_clients(cluster: Cluster, topic: str, tmp_path: Path, protocol: str) -> None:
    """VerifiableProducer writes 3,000 records with acks=all, VerifiableConsumer reads every one of them once."""
    cluster.create_topic(topic)
    where = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    sent = run(tool("VerifiableProducer", *where, "--max-messages", "3000", "--acks", "-1"), tmp_path / "producer.log")
    group = ("--group-id", topic, "--group-protocol", protocol, "--reset-policy", "earliest", "--verbose")
    read = run(tool("VerifiableConsumer", *where, *group, "--max-messages", "3000"), tmp_path / "consumer.log")
    acknowledged = positions(events(sent, "producer_send_success"))
    assert len(acknowledged) == 3000
    assert positions(events(read, "record_data")) == acknowledged


@VERIFIABLE
def test_verifiable_clients_while_nodes_are_killed(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Every node is killed with SIGKILL and restarted once while VerifiableProducer writes and VerifiableConsumer
    reads: every acknowledged record is in the topic and was read."""
    cluster.create_topic(topic)
    where = ("--bootstrap-server", cluster.bootstrap, "--topic", topic)
    group = ("--group-id", topic, "--reset-policy", "earliest", "--verbose", "--session-timeout", "10000")
    producer = tool("VerifiableProducer", *where, "--acks", "-1", "--throughput", "500")
    with (
        Process(producer, tmp_path / "producer.log") as writer,
        Process(tool("VerifiableConsumer", *where, *group), tmp_path / "consumer.log") as reader,
    ):
        writer.wait_line("producer_send_success", times=500)
        reader.wait_line("record_data", times=500)
        for node in (1, 2, 3):
            cluster.restart(node)
        count = writer.text.count("producer_send_success")
        writer.wait_line("producer_send_success", times=count + 500)
        writer.stop()
        acknowledged = set(positions(events(writer.text, "producer_send_success")))
        eventually(
            lambda: acknowledged <= set(positions(events(_whole_lines(reader.text), "record_data"))),
            "every acknowledged record was read",
            pause_s=1.0,
        )
    kept = {(record.partition, record.offset, record.text) for record in cluster.read(topic)}
    assert acknowledged <= kept


@PERF
@pytest.mark.quick
def test_producer_and_consumer_perf(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """kafka-producer-perf-test writes 50,000 records of 500 bytes, kafka-consumer-perf-test reads them all."""
    cluster.create_topic(topic)
    count = ("--num-records", "50000", "--record-size", "500", "--throughput", "-1", "--command-property", "acks=all")
    sent = run(
        tool("ProducerPerformance", "--topic", topic, "--bootstrap-server", cluster.bootstrap, *count),
        tmp_path / "producer.log",
    )
    assert "50000 records sent" in sent, sent
    where = ("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--timeout", "60000")
    read = run(tool("ConsumerPerformance", *where, "--num-records", "50000"), tmp_path / "consumer.log")
    columns = [line.split(", ") for line in read.splitlines() if ", " in line]
    header, figures = columns[-2], columns[-1]
    assert int(figures[header.index("data.consumed.in.nMsg")]) == 50000, read
    assert len(cluster.read(topic)) == 50000


@PERF
@pytest.mark.quick
@pytest.mark.parametrize("duration_ms", [1, 50])
def test_transactional_producer_perf(cluster: Cluster, topic: str, tmp_path: Path, duration_ms: int) -> None:
    """kafka-producer-perf-test --transaction-duration-ms: each transaction begins as soon as the one before has ended,
    and every record is committed once."""
    cluster.create_topic(topic)
    load = ("--num-records", "20000", "--record-size", "100", "--throughput", "4000")
    transactions = ("--transactional-id", topic, "--transaction-duration-ms", str(duration_ms))
    sent = run(
        tool("ProducerPerformance", "--topic", topic, "--bootstrap-server", cluster.bootstrap, *load, *transactions),
        tmp_path / "producer.log",
    )
    assert "20000 records sent" in sent, sent
    assert len(cluster.read(topic)) == 20000


def _whole_lines(text: str) -> str:
    """Without the line that is being written."""
    return text[: text.rfind("\n") + 1]

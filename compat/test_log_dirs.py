"""Apache Kafka's tools move a replica between log dirs: kafka-reassign-partitions starts, kafka-log-dirs shows it."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient, Record

PATIENCE_S = 120
TOOLS = "org.apache.kafka.tools."


@pytest.fixture
def several(subject: type[Broker], tmp_path: Path) -> Iterator[Broker]:
    """A node with three log dirs."""
    paths = ",".join(str(tmp_path / "data" / name) for name in ("a", "b", "c"))
    node = subject(tmp_path, overrides={"log.dirs": paths, "log.segment.delete.delay.ms": "100"})
    node.start()
    yield node
    node.close()


def described(java: JavaClient, node: Broker, topic: str) -> dict[tuple[str, bool], dict]:
    """(log dir, future) -> what kafka-log-dirs prints for partition 0."""
    output = java.tool(
        TOOLS + "LogDirsCommand", "--bootstrap-server", node.bootstrap, "--describe", "--topic-list", topic
    )
    assert output.exit == 0, output.text
    description = json.loads(next(line for line in output.out.splitlines() if line.startswith("{")))
    return {
        (os.path.basename(logDir["logDir"]), partition["isFuture"]): partition
        for logDir in description["brokers"][0]["logDirs"]
        for partition in logDir["partitions"]
        if partition["partition"] == f"{topic}-0"
    }


def reassign(java: JavaClient, node: Broker, plan: Path, what: str, *more: str) -> str:
    output = java.tool(
        TOOLS + "reassign.ReassignPartitionsCommand",
        "--bootstrap-server",
        node.bootstrap,
        "--reassignment-json-file",
        str(plan),
        what,
        *more,
    )
    assert output.exit == 0, output.text
    return output.out


def test_a_replica_moves_between_log_dirs(java: JavaClient, several: Broker, tmp_path: Path) -> None:
    topic = "moving"
    java.create(several.bootstrap, topic)
    java.produce(several.bootstrap, topic, [Record(value=b"%d" % i) for i in range(500)])
    ((home, future),) = described(java, several, topic)
    assert not future
    wanted = next(name for name in ("a", "b", "c") if name != home)
    plan = tmp_path / "plan.json"
    row = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(tmp_path / "data" / wanted)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    started = reassign(java, several, plan, "--execute", "--replica-alter-log-dirs-throttle", "10000000")
    assert "Successfully started moving log directory to" in started, started
    deadline = time.monotonic() + PATIENCE_S
    while "completed successfully" not in (status := reassign(java, several, plan, "--verify")) or not re.search(
        rf"Reassignment of replica {topic}-0-1 completed successfully", status
    ):
        assert time.monotonic() < deadline, status
    assert set(described(java, several, topic)) == {(wanted, False)}
    assert described(java, several, topic)[wanted, False]["offsetLag"] == 0
    assert len(java.consume(several.bootstrap, topic, count=500)) == 500
    java.produce(several.bootstrap, topic, [Record(value=b"after")])
    several.stop()
    several.start()
    assert set(described(java, several, topic)) == {(wanted, False)}
    assert len(java.consume(several.bootstrap, topic, count=501)) == 501


def test_a_log_dir_nobody_has(java: JavaClient, several: Broker, tmp_path: Path) -> None:
    java.create(several.bootstrap, "staying")
    plan = tmp_path / "plan.json"
    row = {"topic": "staying", "partition": 0, "replicas": [1], "log_dirs": ["/nowhere"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    output = java.tool(
        TOOLS + "reassign.ReassignPartitionsCommand",
        "--bootstrap-server",
        several.bootstrap,
        "--reassignment-json-file",
        str(plan),
        "--execute",
        "--timeout",
        "3000",
    )
    assert "LogDirNotFoundException" in output.text or "not found in the config" in output.text, output.text

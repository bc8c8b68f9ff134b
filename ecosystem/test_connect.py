"""Kafka Connect in distributed mode: an exactly-once source and a sink, with workers and nodes killed."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat.brokers import free_port
from ecosystem import maven
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process

pytestmark = pytest.mark.program("Kafka Connect", maven.version("connect", "connect-runtime"))

FILE = "org.apache.kafka.connect.file."


class Worker:
    """A distributed worker: a process and its REST address."""

    def __init__(self, cluster: Cluster, group: str, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.folder.mkdir()
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "listeners": f"http://127.0.0.1:{self.port}",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "only_scan",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "rebalance.timeout.ms": "10000",
            "scheduled.rebalance.max.delay.ms": "1000",
            "offset.flush.interval.ms": "500",
        }
        for storage in ("config", "offset", "status"):
            settings[f"{storage}.storage.topic"] = f"{group}-{storage}"
            settings[f"{storage}.storage.replication.factor"] = "3"
        settings["offset.storage.partitions"] = "3"
        settings["status.storage.partitions"] = "2"
        self.file = folder / "worker.properties"
        self.file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.process = self.start()

    def start(self) -> Process:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.process = Process(
            maven.java_command("connect", main, str(self.file), heap_mb=384), self.folder / "output.log"
        )
        return self.process

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A request to the REST interface; None where the worker is not ready for it."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refusal:
            if refusal.code in (404, 409, 500, 503):
                return None
            raise AssertionError(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from None

    def create(self, name: str, config: dict[str, str]) -> None:
        """Create a connector, and wait until it and its task run."""
        eventually(lambda: self.call("PUT", f"/connectors/{name}/config", config), f"{name} is created")
        eventually(lambda: self.runs(name), f"{name} runs")

    def runs(self, name: str) -> bool:
        status = self.call("GET", f"/connectors/{name}/status")
        if not status:
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        assert "FAILED" not in states, json.dumps(status)
        return len(states) > 1 and set(states) == {"RUNNING"}


@contextmanager
def workers(cluster: Cluster, group: str, folder: Path, count: int) -> Iterator[list[Worker]]:
    """Workers of one Connect cluster."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            worker = Worker(cluster, group, folder / f"worker-{number}")
            stack.callback(lambda worker=worker: worker.process.kill9())  # type: ignore[misc]
            started.append(worker)
        yield started


def append(file: Path, first: int, upto: int) -> list[str]:
    """Write lines to the file a source reads."""
    lines = [f"line-{number}" for number in range(first, upto)]
    with file.open("a") as output:
        output.writelines(line + "\n" for line in lines)
    return lines


def test_exactly_once_source_and_sink(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two workers, an exactly-once file source and a file sink: every line of the file is committed to the topic once,
    in order, and arrives in the other file, although each worker and each node is killed with SIGKILL once."""
    cluster.create_topic(topic, 1)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = append(source, 0, 3000)
    with workers(cluster, f"{topic}-connect", tmp_path, 2) as (one, two):
        one.create(
            "source",
            {
                "connector.class": FILE + "FileStreamSourceConnector",
                "tasks.max": "1",
                "file": str(source),
                "topic": topic,
                "batch.size": "100",
                "exactly.once.support": "required",
                "transaction.boundary": "poll",
            },
        )
        one.create(
            "sink",
            {
                "connector.class": FILE + "FileStreamSinkConnector",
                "tasks.max": "1",
                "file": str(sink),
                "topics": topic,
                "consumer.override.isolation.level": "read_committed",
            },
        )
        cluster.wait_for_records(topic, 3000)
        for number, worker in enumerate((one, two)):
            lines += append(source, len(lines), len(lines) + 2000)
            worker.process.kill9()
            other = (two, one)[number]
            eventually(lambda other=other: other.runs("source"), "the source runs elsewhere")  # type: ignore[misc]
            worker.start()
            cluster.wait_for_records(topic, len(lines))
        for node in (1, 2, 3):
            lines += append(source, len(lines), len(lines) + 1000)
            cluster.restart(node)
            cluster.wait_for_records(topic, len(lines))
        assert cluster.read_values(topic) == lines
        # A sink delivers at least once; with the file's order that is every line, some of them again.
        eventually(lambda: set(sink.read_text().split()) >= set(lines), "every line is in the other file")

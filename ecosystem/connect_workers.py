"""Kafka Connect's distributed workers, and the configurations of a file source and a file sink."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compat.brokers import free_port
from ecosystem import maven
from ecosystem.cluster import eventually
from ecosystem.processes import Process

FILE = "org.apache.kafka.connect.file."


class Worker:
    """A distributed worker: a process and its REST address."""

    def __init__(self, bootstrap: str, group: str, folder: Path, replication: int) -> None:
        self.port = free_port()
        self.folder = folder
        self.folder.mkdir()
        settings = {
            "bootstrap.servers": bootstrap,
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
            settings[f"{storage}.storage.replication.factor"] = str(replication)
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
def workers(bootstrap: str, group: str, folder: Path, count: int, *, replication: int = 3) -> Iterator[list[Worker]]:
    """Workers of one Connect cluster."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            worker = Worker(bootstrap, group, folder / f"worker-{number}", replication)
            stack.callback(lambda worker=worker: worker.process.kill9())  # type: ignore[misc]
            started.append(worker)
        yield started


def append_lines(file: Path, first: int, upto: int) -> list[str]:
    """Write lines to the file a source reads."""
    lines = [f"line-{number}" for number in range(first, upto)]
    with file.open("a") as output:
        output.writelines(line + "\n" for line in lines)
    return lines


def source_config(file: Path, topic: str) -> dict[str, str]:
    """The lines of a file into a topic, exactly once."""
    return {
        "connector.class": FILE + "FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
        "batch.size": "100",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }


def sink_config(file: Path, topic: str) -> dict[str, str]:
    """The committed records of a topic into a file."""
    return {
        "connector.class": FILE + "FileStreamSinkConnector",
        "tasks.max": "1",
        "file": str(file),
        "topics": topic,
        "consumer.override.isolation.level": "read_committed",
    }

"""Flink's exactly-once Kafka sink, with its tasks failing, its process killed and nodes killed."""

from pathlib import Path

import pytest

from ecosystem import maven
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process

pytestmark = pytest.mark.program("Flink Kafka connector", maven.version("flink", "flink-connector-kafka"))
BATCH = 2000
OPENS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.util", "java.lang", "java.time", "java.nio")
)


def job(cluster: Cluster, topic: str, folder: Path, restore_from: str = "-") -> list[str]:
    arguments = (cluster.bootstrap, topic, str(folder), restore_from)
    return maven.java_command("flink", "FlinkJob", *arguments, heap_mb=768, options=OPENS)


def write_numbers(cluster: Cluster, topic: str, first: int) -> int:
    """Write the next numbers to the topic that the job reads; gives how many there are by then."""
    cluster.produce(f"{topic}-in", [(None, str(number)) for number in range(first, first + BATCH)])
    return first + BATCH


def last_checkpoint(folder: Path) -> str:
    """The newest checkpoint that is complete."""
    complete = sorted(folder.glob("checkpoints/*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime_ns)
    return str(complete[-1].parent) if complete else "-"


def test_exactly_once_sink(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """A job with checkpoints every 300 ms whose task fails once, whose process is killed with SIGKILL and restored from
    its last checkpoint, while each node is killed: every record is committed once."""
    for name in ("in", "out"):
        cluster.create_topic(f"{topic}-{name}", 4)
    total = write_numbers(cluster, topic, 0)
    with Process(job(cluster, topic, tmp_path), tmp_path / "first.log"):
        eventually((tmp_path / "failed").exists, "the task has failed once")
        cluster.wait_for_progress(f"{topic}-out", total)
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint != "-"
    with Process(job(cluster, topic, tmp_path, checkpoint), tmp_path / "second.log") as second:
        for node in (1, 2, 3):
            total = write_numbers(cluster, topic, total)
            cluster.wait_for_progress(f"{topic}-out", total)
            cluster.restart(node)
        cluster.wait_for_records(f"{topic}-out", total)
        assert second.is_running, second.tail()
    assert sorted(cluster.read_values(f"{topic}-out")) == sorted(f"done-{number}" for number in range(total))

"""Kafka Connect in distributed mode: an exactly-once source and a sink, with workers and nodes killed."""

from pathlib import Path

import pytest

from ecosystem import maven
from ecosystem.cluster import Cluster, eventually
from ecosystem.connect_workers import append_lines, sink_config, source_config, workers

pytestmark = pytest.mark.program("Kafka Connect", maven.version("connect", "connect-runtime"))


def test_exactly_once_source_and_sink(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two workers, an exactly-once file source and a file sink: every line of the file is committed to the topic once,
    in order, and arrives in the other file, although each worker and each node is killed with SIGKILL once."""
    cluster.create_topic(topic, 1)
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    lines = append_lines(source, 0, 3000)
    with workers(cluster.bootstrap, f"{topic}-connect", tmp_path, 2) as (one, two):
        one.create("source", source_config(source, topic))
        one.create("sink", sink_config(sink, topic))
        cluster.wait_for_records(topic, 3000)
        for number, worker in enumerate((one, two)):
            lines += append_lines(source, len(lines), len(lines) + 2000)
            worker.process.kill9()
            other = (two, one)[number]
            eventually(lambda other=other: other.runs("source"), "the source runs elsewhere")  # type: ignore[misc]
            worker.start()
            cluster.wait_for_records(topic, len(lines))
        for node in (1, 2, 3):
            lines += append_lines(source, len(lines), len(lines) + 1000)
            cluster.restart(node)
            cluster.wait_for_records(topic, len(lines))
        assert cluster.read_values(topic) == lines
        # A sink delivers at least once; with the file's order that is every line, some of them again.
        eventually(lambda: set(sink.read_text().split()) >= set(lines), "every line is in the other file")

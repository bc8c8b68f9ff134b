"""Tools of others for the terminal and for monitoring: kcat, kaf, kminion."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from compat import toolchain
from compat.brokers import free_port
from ecosystem import manifests
from ecosystem.clients import GO, value
from ecosystem.cluster import Cluster, eventually
from ecosystem.processes import Process

BROKER_SETTINGS = {"message.max.bytes": "10000000", "replica.fetch.max.bytes": "10000000"}
KAF_MODULE = "github.com/birdayz/kaf"
RUN_TIMEOUT_S = 180.0


def kaf() -> str:
    """kaf, built from the module its manifest requires."""
    sources = sorted(path for path in (GO / "kaf").iterdir() if path.is_file())

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        toolchain.run_build(
            ["go", "build", "-mod=readonly", "-o", str(folder / "kaf"), f"{KAF_MODULE}/cmd/kaf"], folder
        )

    return str(toolchain.cached("ecosystem-kaf", sources, build) / "kaf")


def kcat_version() -> str:
    """The installed program prints its version."""
    if shutil.which("kcat") is None:
        return "none"
    text = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False)
    match = re.search(r"Version (\S+) \(.*librdkafka ([\d.]+)", text.stdout + text.stderr)
    return f"{match[1]} (librdkafka {match[2]})" if match else "unknown"


def run(command: list[str], given: bytes = b"") -> str:
    """Standard output of a tool that ends with 0."""
    done = subprocess.run(command, input=given, capture_output=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
    return done.stdout.decode(errors="replace")


@pytest.mark.program("kcat", kcat_version())
class TestKcat:
    @pytest.mark.quick
    def test_lines_and_files(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Writes 3,000 keyed lines under each codec and files of 500 KB to 4 MB, idempotently; reads all of it back,
        by offsets from the end, by time and as a group; lists the metadata of three nodes as JSON."""
        cluster.create_topic(topic, 3, max_message_bytes="10000000")
        kcat = ["kcat", "-q", "-b", cluster.bootstrap]
        write = [*kcat, "-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "message.max.bytes=10000000"]
        expected = []
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            lines = [f"{codec}-{number}" for number in range(600)]
            run([*write, "-z", codec, "-K", ":"], "".join(f"{line}:{line}\n" for line in lines).encode())
            expected += lines
        files = []
        for number, size in enumerate((500_000, 1_500_000, 4_000_000)):
            files.append(tmp_path / f"file-{number}")
            files[-1].write_bytes(value(number, size))
        run([*write, "-p", "1", *map(str, files)])
        expected += [path.read_text() for path in files]
        assert sorted(cluster.read_values(topic)) == sorted(expected)

        read = [*kcat, "-C", "-t", topic, "-e", "-X", "fetch.message.max.bytes=10000000"]
        assert sorted(run([*read, "-o", "beginning"]).splitlines()) == sorted(expected)
        assert run([*read, "-p", "1", "-o", "-3"]).splitlines() == expected[-3:]
        assert sorted(run([*read, "-o", "s@0"]).splitlines()) == sorted(expected)
        group = [*kcat, "-e", "-X", "auto.offset.reset=earliest", "-G", topic, topic]
        assert sorted(run(group).splitlines()) == sorted(expected)
        metadata = json.loads(run([*kcat, "-L", "-J", "-t", topic]))
        assert [broker["id"] for broker in sorted(metadata["brokers"], key=lambda node: node["id"])] == [1, 2, 3]
        assert [len(partition["isrs"]) for partition in metadata["topics"][0]["partitions"]] == [3, 3, 3]


@pytest.mark.program("kaf", manifests.go_version(GO / "kaf" / "go.mod", KAF_MODULE))
class TestKaf:
    @pytest.mark.quick
    def test_topics_records_and_groups(self, cluster: Cluster, topic: str, tmp_path: Path) -> None:
        """Makes a topic of three copies, describes it and the nodes, writes 500 records, reads them alone and as a
        group that commits, shows the group without lag, deletes it and the topic."""
        kaf_command = [kaf(), "-b", cluster.bootstrap]
        run([*kaf_command, "topic", "create", topic, "-p", "3", "-r", "3"])
        eventually(lambda: topic in run([*kaf_command, "topics"]), "the topic is listed")
        lines = [f"line-{number}" for number in range(500)]
        run([*kaf_command, "produce", topic, "--partitioner", "rr"], "".join(f"{line}\n" for line in lines).encode())
        assert sorted(cluster.read_values(topic)) == sorted(lines)
        assert sorted(run([*kaf_command, "consume", topic, "--output", "raw"]).split()) == sorted(lines)
        described = run([*kaf_command, "topic", "describe", topic])
        assert len(re.findall(r"^\s+\d\s+\d+\s+[123]\s+\[1 2 3]\s+\[1 2 3]", described, re.MULTILINE)) == 3, described
        nodes = run([*kaf_command, "nodes"])
        assert all(f"127.0.0.1:{node.port}" in nodes for node in cluster.nodes), nodes

        group = f"{topic}-group"
        member = [*kaf_command, "consume", topic, "-g", group, "--commit", "--output", "raw"]
        with Process(member, tmp_path / "member.log") as program:
            eventually(lambda: sorted(program.text.split()) == sorted(lines), "the group has read every line")
            assert re.search(rf"^{group}\s+Stable\s+1\b", run([*kaf_command, "groups"]), re.MULTILINE)
            no_lag = re.compile(r"^\s*Total\s+500\s+0\s*$", re.MULTILINE)
            describe = [*kaf_command, "group", "describe", group]
            eventually(lambda: no_lag.search(run(describe)), "all of it is committed")
        # A member that was killed is missed when its session is over.
        eventually(lambda: "Empty" in run(describe), "the group is empty")
        run([*kaf_command, "group", "delete", group])
        assert group not in run([*kaf_command, "groups"])
        run([*kaf_command, "topic", "delete", topic])
        eventually(lambda: topic not in cluster.admin.list_topics(timeout=10).topics, "the topic is gone")


def kminion_version() -> str:
    """kminion is not in every module proxy: the one on the PATH is tested, under the version it prints."""
    program = shutil.which("kminion")
    if program is None:
        return "none"
    text = subprocess.run(["go", "version", "-m", program], capture_output=True, text=True, check=False).stdout
    match = re.search(r"^\s*mod\s+\S+\s+v(\S+)", text, re.MULTILINE)
    return match[1] if match else "built from source"


@pytest.mark.skipif(shutil.which("kminion") is None, reason="kminion is not on the PATH")
@pytest.mark.program("kminion", kminion_version())
class TestKminion:
    @pytest.mark.parametrize("mode", ["adminApi", "offsetsTopic"])
    def test_figures(self, cluster: Cluster, topic: str, tmp_path: Path, mode: str) -> None:
        """Exports the metrics of a cluster, by the admin API and by reading __consumer_offsets: watermarks, lag and
        three nodes are right, end-to-end probes to every node arrive."""
        cluster.create_topic(topic, 1)
        cluster.produce(topic, [(str(number), f"record {number}") for number in range(300)])
        read = ["kcat", "-q", "-b", cluster.bootstrap, "-e", "-c", "100", "-X", "auto.offset.reset=earliest"]
        run([*read, "-G", topic, topic])
        port = free_port()
        environment = {
            "KAFKA_BROKERS": cluster.bootstrap,
            "EXPORTER_HOST": "127.0.0.1",
            "EXPORTER_PORT": str(port),
            "MINION_CONSUMERGROUPS_SCRAPEMODE": mode,
            "MINION_ENDTOEND_ENABLED": "true",
            "MINION_ENDTOEND_TOPICMANAGEMENT_REPLICATIONFACTOR": "3",
        }
        with Process(["kminion"], tmp_path / "log", environment=environment) as program:
            wanted = {
                f'kminion_kafka_topic_high_water_mark_sum{{topic_name="{topic}"}}': 300.0,
                f'kminion_kafka_consumer_group_topic_lag{{group_id="{topic}",topic_name="{topic}"}}': 200.0,
            }
            figures: dict[str, float] = {}

            def has_settled() -> bool:
                figures.update(metrics(port))
                probes = [count for name, count in figures.items() if "end_to_end_messages_received_total" in name]
                arrived = len(probes) == 3 and min(probes) >= 20
                return arrived and all(figures.get(name) == number for name, number in wanted.items())

            try:
                eventually(has_settled, "kminion's figures are right", pause_s=1.0)
            except AssertionError:
                print("\n".join(f"{name} {number}" for name, number in figures.items() if topic in name))
                raise
            assert program.is_running, program.tail()
            cluster_info = [name for name in figures if name.startswith("kminion_kafka_cluster_info")]
            assert 'broker_count="3"' in cluster_info[0], cluster_info
            lost = {name: count for name, count in figures.items() if "messages_lost_total" in name and count}
            assert not lost


def metrics(port: int) -> dict[str, float]:
    """What an exporter shows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(number) for name, _, number in pairs}

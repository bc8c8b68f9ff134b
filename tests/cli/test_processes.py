"""`klamm` as a person runs it: real processes, real ports, real folders.

A mistake is answered with one sentence and exit code 1, and nothing is touched.
"""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from harness import KLAMM, KlammProcess, Wire, batch
from klamm.cli.port_owner import find_holder, name_holder
from klamm.net.free_ports import free_port_row, free_ports

PATIENCE_S = 30


def klamm(*args, env=None, cwd=None):
    """Run to the end."""
    return subprocess.run(
        [*KLAMM, *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=cwd,
        env={**os.environ, **(env or {})},
    )  # fmt: skip


def everything(folder):
    """What lies below a folder: every name, with size and time of change."""
    files = {}
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        files[str(path.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns) if path.is_file() else None
    return files


def refused(result, *words):
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert result.stderr.startswith("klamm: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def used_folder(tmp_path):
    """A data folder that a node has used and left cleanly."""
    with KlammProcess(tmp_path / "node") as node:
        with Wire(node.port) as wire:
            wire.produce(wire.create_topic("precious"), batch(b"x"))
        node.stop()
    return node.data


def server_properties(path, data, **extra):
    """A file as Kafka's users have it: one node, its usual settings, some of them without meaning here."""
    broker, controller = free_ports("127.0.0.1", 2)
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": str(data),
        "num.partitions": "2",
        "num.recovery.threads.per.data.dir": "2",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.retention.hours": "168",
        "log.segment.bytes": "1073741824",
        "log.retention.check.interval.ms": "300000",
        **{key.replace("_", "."): value for key, value in extra.items()},
    }
    path.write_text("# a comment\n" + "".join(f"{key}={value}\n" for key, value in lines.items()))
    return broker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_one_line_and_a_quiet_end(tmp_path, number):
    process = subprocess.Popen(
        [*KLAMM, "up", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert line.startswith("Klamm is ready on 127.0.0.1:")
    # Where the metrics are, in a line of its own behind the one that scripts wait for.
    assert re.fullmatch(r"(  metrics  http://127.0.0.1:\d+/metrics.*\n)?", out), out
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / ".klamm" / "meta.properties").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_ephemeral_node_leaves_nothing_behind(tmp_path, number):
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    scratch.mkdir()
    home.mkdir()
    process = subprocess.Popen(
        [*KLAMM, "up", "--port", "0", "--ephemeral"], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert list(scratch.iterdir())
        with Wire(int(line.rpartition(":")[2])) as wire:
            wire.produce(wire.create_topic(), batch(b"x"))
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (0, "")
    assert list(scratch.iterdir()) == []
    assert list(home.iterdir()) == []


def test_a_port_of_a_cluster_that_is_taken(tmp_path):
    """Told before any node is started: the reason stood only at the end of a node's log."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = klamm("up", "--nodes", 3, "--data", tmp_path / "new", "--port", port)
        refused(result, f"port {port}", "node 1", f"pid {os.getpid()} (", "--port")
        assert not (tmp_path / "new").exists()


TAKE_METRICS_PORT = """
import sys
from klamm.cli.main import cli
from klamm.net import free_ports
port = int(sys.argv.pop(1))
free_ports.claim_or_free = lambda host, wanted: port
cli()
"""


def test_a_metrics_port_taken_while_a_cluster_starts(tmp_path):
    """The port was free when the cluster was planned; another process took it before the node did."""
    first = free_port_row("127.0.0.1", 6)[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-c",
            TAKE_METRICS_PORT,
            port,
            "up",
            "--nodes",
            3,
            "--port",
            first,
            "--data",
            tmp_path,
        ]
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        try:
            lines = [process.stdout.readline() for _ in range(8)]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
    assert (lines[-1], process.returncode, err) == ("Ctrl-C stops all of them.\n", 0, "")
    pattern = re.compile(rf"  metrics of node \d  http://127\.0\.0\.1:(\d+)/metrics  \(port {port} is taken\)\n")
    addresses = [pattern.fullmatch(line) for line in lines[4:7]]
    assert all(addresses), lines
    assert len({address[1] for address in addresses}) == 3


def test_a_port_that_no_process_shows():
    assert find_holder(0) is None
    assert name_holder("port 1 on h is taken by another process: x", "go", proc="/nowhere") == (
        "port 1 on h is taken by another process; stop it, or go"
    )
    assert name_holder("something else", "go") == "something else"


def test_a_server_file_says_where_the_port_is_written(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server_properties(tmp_path / "server.properties", tmp_path / "data")
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"
        words = ("server", tmp_path / "server.properties", "--override", listeners, "--log-level", "error")
        refused(klamm(*words), f"port {port}", f"pid {os.getpid()} (", "`listeners`")


def test_a_taken_port(tmp_path, used_folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(
            klamm("up", "--data", tmp_path / "new", "--port", port), f"port {port}", f"pid {os.getpid()} (", "--port"
        )
        assert not (tmp_path / "new").exists()
        before = everything(used_folder)
        refused(klamm("up", "--data", used_folder, "--port", port), str(port), "taken")
        assert everything(used_folder) == before
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        refused(klamm("up", "--ephemeral", "--port", port, env={"TMPDIR": str(scratch)}), "taken")
        assert list(scratch.iterdir()) == []


def test_a_folder_that_cannot_be_one(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    before = everything(tmp_path)
    refused(klamm("up", "--port", "0", "--data", file), str(file))
    refused(klamm("up", "--port", "0", "--data", file / "below"), str(file))
    assert everything(tmp_path) == before
    assert file.read_text() == "mine"


def test_a_folder_in_use(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_text("meow")
    before = everything(tmp_path)
    refused(klamm("up", "--port", "0", "--data", folder), str(folder))
    assert everything(tmp_path) == before


def test_a_folder_of_another_cluster(tmp_path, used_folder):
    other = tmp_path / "other"
    file = tmp_path / "node.properties"
    server_properties(file, other)
    formatted = klamm("storage", "format", "-t", "l6t1Q_H-TtyNbcQtxA6dGA", "-c", file)
    assert formatted.returncode == 0, formatted
    server_properties(file, f"{other},{used_folder}")
    before = everything(tmp_path)
    refused(klamm("server", file, "--log-level", "error"), "cluster")
    assert everything(tmp_path) == before


def test_a_folder_of_another_node(tmp_path, used_folder):
    file = tmp_path / "node.properties"
    server_properties(file, used_folder, node_id="7")
    before = everything(tmp_path)
    refused(klamm("server", file, "--log-level", "error"), "node")
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("num.partitons", "3", "num.partitions"),
        ("num.partitions", "many", "num.partitions"),
        ("log.dirs", "", "log.dirs"),
    ],
)
def test_a_mistake_in_the_file(tmp_path, key, value, word):
    file = tmp_path / "node.properties"
    server_properties(file, tmp_path / "data", **{key: value})
    before = everything(tmp_path)
    refused(klamm("server", file), word)
    assert everything(tmp_path) == before


def test_a_mistake_in_an_override(tmp_path):
    refused(klamm("up", "--port", "0", "--data", tmp_path / "data", "--override", "num.partitons=3"), "num.partitions")
    assert list(tmp_path.iterdir()) == []


def names(folder):
    """What lies below the folder of a running node, without the checkpoints it writes every few seconds."""
    return {name for name in everything(folder) if not name.endswith("-checkpoint")}


def test_a_second_process_on_the_same_folder(tmp_path):
    with KlammProcess(tmp_path) as node:
        with Wire(node.port) as wire:
            topic = wire.create_topic()
            wire.produce(topic, batch(b"x"))
            before = names(node.data)
            refused(klamm("up", "--data", node.data, "--port", "0"), str(node.data))
            assert names(node.data) == before
            assert wire.produce(topic, batch(b"y")).base_offset == 1
        node.stop()


def test_a_file_written_for_kafka_starts_a_node(tmp_path):
    file, data = tmp_path / "server.properties", tmp_path / "data"
    port = server_properties(file, data)
    for _ in range(2):  # an empty folder is formatted, and found again
        process = subprocess.Popen(
            [*KLAMM, "server", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == f"Klamm is ready on 127.0.0.1:{port}\n"
            with Wire(port) as wire:
                reply = wire.call("metadata", 9, topics=[{"name": "made-on-demand"}], allow_auto_topic_creation=True)
                assert len(reply.topics[0].partitions) in (0, 2)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
        assert "num.network.threads" in err  # accepted, and named once as having no meaning here
        assert err.count("num.network.threads") == 1
    assert (data / "meta.properties").exists()

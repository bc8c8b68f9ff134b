"""`klamm up` and `klamm server` up to the door of the node; behind it the node's own tests begin."""

import os
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import KLAMM
from klamm.cli.main import cli
from klamm.net.free_ports import free_ports
from klamm.telemetry import configure

NODE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs={data}
"""


class FakeNode:
    """Stands where the node would be: remembers its configuration, says it is ready, ends."""

    def __init__(self) -> None:
        self.config = None
        self.code = 0
        self.error = None
        self.folder_was_there = None

    def run_node(self, config, *, on_ready, before_stop=None):
        self.config = config
        self.folder_was_there = os.path.isdir(config.log_dirs[0])
        if self.error is not None:
            raise self.error
        listener = config.broker_listeners[0]
        on_ready(f"{listener.host}:{listener.port or 54321}")
        return self.code


@pytest.fixture
def node(monkeypatch):
    fake = FakeNode()
    module = types.ModuleType("klamm.server.node")
    module.run_node = fake.run_node
    monkeypatch.setitem(sys.modules, "klamm.server.node", module)
    yield fake
    configure()


def run(*args: str):
    return CliRunner().invoke(cli, list(args), prog_name="klamm")


@pytest.fixture
def properties(tmp_path):
    path = tmp_path / "node.properties"
    path.write_text(NODE.format(data=tmp_path / "data"))
    return path


def test_up_prints_one_line_and_ends_with_0(node, tmp_path):
    result = run("up", "--data", str(tmp_path / "data"), "--override", "metrics.listeners=")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Klamm is ready on 127.0.0.1:9092\n", "")


def test_up_serves_metrics_on_the_usual_port_or_on_a_free_one(node, tmp_path, monkeypatch):
    port = free_ports("127.0.0.1", 1)[0]
    monkeypatch.setattr("klamm.cli.up.METRICS_PORT", port)
    with socket.create_server(("127.0.0.1", port)):
        taken = run("up", "--data", str(tmp_path / "data"))
    assert re.fullmatch(
        r"  metrics  http://127\.0\.0\.1:\d+/metrics  \(port \d+ is taken\)", taken.stdout.splitlines()[1]
    )
    free = run("up", "--data", str(tmp_path / "data"))
    assert re.fullmatch(r"  metrics  http://127\.0\.0\.1:\d+/metrics", free.stdout.splitlines()[1])


def test_up_serves_no_metrics_if_an_override_says_so(node, tmp_path):
    run("up", "--data", str(tmp_path / "data"), "--override", "metrics.listeners=")
    assert node.config.metrics_listeners == ()
    assert node.config.log_dirs == (str(tmp_path / "data"),)
    assert node.config.node_id == 1


def test_up_keeps_its_data_beside_the_caller(node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("up", "--port", "0")
    assert node.config.log_dirs == (str(tmp_path / ".klamm"),)
    assert node.config.broker_listeners[0].port == 0
    assert list(tmp_path.iterdir()) == []


def test_an_ephemeral_folder_is_gone_at_the_end(node):
    assert run("up", "--ephemeral").exit_code == 0
    assert node.folder_was_there
    assert not os.path.exists(node.config.log_dirs[0])


def test_an_ephemeral_folder_is_gone_after_a_failure_too(node):
    node.error = OSError("port 9092 on 127.0.0.1 is taken by another program; choose another with --port")
    result = run("up", "--ephemeral")
    assert result.exit_code == 1
    assert result.stderr == "klamm: port 9092 on 127.0.0.1 is taken by another program; choose another with --port\n"
    assert not os.path.exists(node.config.log_dirs[0])


def test_the_nodes_exit_code_is_the_commands(node, tmp_path):
    node.code = 1
    assert run("up", "--data", str(tmp_path / "data")).exit_code == 1


def test_other_machines_are_let_in_only_on_purpose(node, tmp_path):
    for host in ("0.0.0.0", "192.168.1.5", "::"):
        result = run("up", "--data", str(tmp_path / "data"), "--host", host)
        assert result.exit_code == 1
        assert "add --allow-insecure-bind if that is meant" in result.stderr
    assert node.config is None
    assert run("up", "--data", str(tmp_path / "d"), "--host", "0.0.0.0", "--allow-insecure-bind").exit_code == 0
    assert node.config.broker_listeners[0].host == "0.0.0.0"


def test_an_override_does_not_open_the_door_either(node, tmp_path):
    listeners = "listeners=PLAINTEXT://0.0.0.0:0,CONTROLLER://127.0.0.1:0"
    result = run("up", "--data", str(tmp_path / "data"), "--override", listeners)
    assert result.exit_code == 1
    assert "PLAINTEXT://0.0.0.0:0 opens the node to other machines" in result.stderr


def test_a_folder_of_other_things_is_left_alone(node, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    result = run("up", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "holds other files and no node's data" in result.stderr
    assert node.config is None
    (tmp_path / "empty" / "lost+found").mkdir(parents=True)
    assert run("up", "--data", str(tmp_path / "empty")).exit_code == 0


def test_up_takes_overrides(node, tmp_path):
    assert run("up", "--data", str(tmp_path / "d"), "--override", "num.partitions=4").exit_code == 0
    assert node.config.num_partitions == 4


def test_a_folder_that_is_a_file_is_refused_and_left_alone(node, tmp_path):
    path = tmp_path / "data"
    path.write_text("mine")
    result = run("up", "--data", str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"klamm: {path} is not a folder")
    assert len(result.stderr.splitlines()) == 1
    assert path.read_text() == "mine"
    assert run("up", "--data", str(path / "below")).exit_code == 1
    assert node.config is None


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    """Root may write where permissions say no, but not into the kernel's own folders."""
    folder = Path("/proc/klamm-data") if os.geteuid() == 0 else tmp_path / "locked" / "data"
    if os.geteuid() != 0:
        folder.parent.mkdir(mode=0o500)
    result = subprocess.run(
        [*KLAMM, "up", "--port", "0", "--data", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "cannot be written" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not folder.exists()


def test_a_folder_of_another_node_is_refused_and_left_alone(node, properties, tmp_path):
    assert run("storage", "format", "-t", "l6t1Q_H-TtyNbcQtxA6dGA", "-c", str(properties)).exit_code == 0
    before = (tmp_path / "data" / "meta.properties").read_text()
    result = run("server", str(properties), "--override", "node.id=2", "--override", "controller.quorum.voters=2@a:1")
    assert result.exit_code == 1
    assert "belongs to node 1, but node.id=2" in result.stderr
    assert (tmp_path / "data" / "meta.properties").read_text() == before


def test_server_runs_the_file_with_its_overrides(node, properties):
    result = run("server", str(properties), "--override", "num.partitions=3", "--override", "broker.rack=a")
    assert (result.exit_code, result.stdout) == (0, "Klamm is ready on localhost:9092\n")
    assert (node.config.num_partitions, node.config.rack) == (3, "a")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "num.partitons=3",
            "node.properties line 9: num.partitons is not a broker setting; did you mean num.partitions?",
        ),
        ("num.partitions=x", "node.properties line 9: num.partitions=x is not a whole number"),
        ("advertised.listeners=SSL://a:1", "which listeners does not have"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(node, properties, tmp_path, line, words):
    properties.write_text(properties.read_text() + "\n" + line + "\n")
    result = run("server", str(properties))
    assert result.exit_code == 1
    assert result.stderr.startswith("klamm: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert node.config is None
    assert not (tmp_path / "data").exists()


def test_a_missing_file_is_refused_in_one_sentence(node):
    result = run("server", "/nowhere/node.properties")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "klamm: cannot read /nowhere/node.properties: no such file or directory\n"


def test_a_bug_keeps_its_traceback(node, properties):
    node.error = ZeroDivisionError("bug")
    assert isinstance(run("server", str(properties)).exception, ZeroDivisionError)


def test_interpreted_kernels_are_told_in_one_line(node, tmp_path, monkeypatch):
    monkeypatch.setattr("klamm.records.kernels_compiled", lambda: False)
    result = run("up", "--data", str(tmp_path / "data"))
    assert result.stderr.startswith("klamm: The record kernels run interpreted")
    assert len(result.stderr.splitlines()) == 1


def test_a_server_is_opened_to_other_machines_only_on_purpose(node, tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\nlog.dirs={tmp_path / 'data'}\n"
    )
    result = run("server", str(file))
    assert result.exit_code == 1
    assert "klamm.insecure.listeners=PLAINTEXT if it is meant to be open" in result.stderr
    assert node.config is None
    assert run("server", str(file), "--override", "klamm.insecure.listeners=PLAINTEXT").exit_code == 0
    assert node.config.broker_listeners[0].host == ""


def test_nodes_of_an_open_cluster_have_permission_in_their_files(tmp_path, monkeypatch):
    from klamm.cli import up_cluster

    class Supervisor:
        def __init__(self, *_args, **_options):
            pass

        async def run(self):
            pass

    monkeypatch.setattr(up_cluster, "ClusterSupervisor", Supervisor)
    monkeypatch.setattr(up_cluster, "_refuse_taken_ports", lambda _planned: None)
    up_cluster.run_cluster(str(tmp_path), 2, host="0.0.0.0", port=0, overrides=(), log_level="error")
    for number in (1, 2):
        text = (tmp_path / f"node-{number}" / "server.properties").read_text()
        assert "klamm.insecure.listeners=PLAINTEXT,CONTROLLER" in text

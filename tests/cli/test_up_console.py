"""`klamm up` with its console: a process of its own that ends with the node."""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest
from click.testing import CliRunner

from harness import KLAMM
from klamm.cli import node_runner, up, up_console
from klamm.cli.child_service import ChildService
from klamm.cli.up_console import CONSOLE_PORT, ConsoleProcess, history_folder

WAIT_S = 90


def wait_until_closed(port):
    """Wait until nothing listens on a port."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.1)
    raise AssertionError(f"port {port} is still open")


def test_the_console_serves_and_ends_with_the_node(tmp_path):
    environment = {**os.environ, "KLAMM_CONSOLE": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [*KLAMM, "up", "--port", "0", "--data", str(tmp_path / "data"), "--override", "metrics.listeners="]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        try:
            # Programs read the first line: the console must not change it.
            assert re.fullmatch(r"Klamm is ready on 127\.0\.0\.1:\d+\n", node.stdout.readline())
            line = node.stdout.readline()
            match = re.fullmatch(r"  console  http://127\.0\.0\.1:(\d+)(?:  \(port 8080 is taken\))?\n", line)
            assert match, line
            port = int(match[1])
            assert (port == CONSOLE_PORT) == ("taken" not in line)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=WAIT_S) as response:
                assert b"<h1>Overview</h1>" in response.read()
            node.send_signal(signal.SIGTERM)
            output, errors = node.communicate(timeout=WAIT_S)
            assert (node.returncode, output, errors) == (0, "", "")
        finally:
            node.kill()
    wait_until_closed(port)
    assert not (tmp_path / "data" / "console.sqlite").exists()
    assert list((tmp_path / "state").rglob("console.sqlite"))


class StartedServices(ChildService):
    """Services whose registry serves; the test starts no process of it."""

    def arguments(self, bootstrap, descriptors):
        return ["registry", "-b", bootstrap, *(f"--listen-fd={descriptor}" for descriptor in descriptors)]


def test_the_console_uses_the_registry_of_the_same_command(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    services = StartedServices({"registry": 8081})
    console = ConsoleProcess("data", services)
    services.urls["registry"] = "http://127.0.0.1:8081"
    words = console.arguments("127.0.0.1:9092", [7])
    assert words[words.index("--registry") + 1] == "http://127.0.0.1:8081"
    assert words[words.index("-b") + 1] == "127.0.0.1:9092"
    assert words[words.index("--listen-fd") + 1] == "7"
    assert words[words.index("--data") + 1] == history_folder("data")


def test_samples_of_a_node_without_data_are_not_kept():
    words = ConsoleProcess(None).arguments("127.0.0.1:9092", [7])
    assert "--no-history" in words
    assert "--data" not in words
    assert "--registry" not in words


def test_samples_are_kept_by_the_folder_of_the_data(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    folder = history_folder("/data/a")
    assert folder.startswith("/state/klamm/up/")
    assert folder != history_folder("/data/b")


@pytest.fixture
def started(monkeypatch):
    """The services that `klamm up` would start, in place of a node that serves."""
    services = []

    def keep(*_, children=(), **__):
        services.extend(children)

    monkeypatch.setattr(up, "serve", keep)
    monkeypatch.setattr(node_runner, "serve", keep)
    monkeypatch.setenv("KLAMM_CONSOLE", "1")
    return services


def run_up(*words):
    result = CliRunner().invoke(up.up, ["--ephemeral", "--override", "metrics.listeners=", *words])
    assert result.exit_code == 0, result.output


def test_a_console_is_started(started):
    run_up()
    assert [type(service) for service in started] == [ConsoleProcess]


def test_no_console_where_it_is_not_wanted(started, monkeypatch):
    run_up("--no-console")
    monkeypatch.setenv("KLAMM_CONSOLE", "0")
    run_up()
    assert started == []


def test_no_console_where_it_is_not_installed(started, monkeypatch):
    monkeypatch.setattr(up_console, "_MODULES", ("klamm_absent",))
    run_up()
    assert started == []

"""`klamm up --registry --rest`: both services beside the node, from its ready line to its end."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

from harness import KLAMM
from harness.process import STOP_S
from klamm.cli import up_services
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.up_services import ServicesProcess
from klamm.net.free_ports import free_ports
from klamm.testing import unique


@pytest.mark.parametrize(
    ("services", "command", "listeners"),
    [
        ({"registry": True, "rest": True}, "services", ["--listen-fd", "5", "--rest-listen-fd", "6"]),
        ({"registry": True, "rest": False}, "registry", ["--listen-fd", "5"]),
        ({"registry": False, "rest": True}, "rest", ["--listen-fd", "5"]),
    ],
)
def test_one_process_for_one_or_both(services, command, listeners):
    process = ServicesProcess(**services, log_level="error")
    arguments = process.arguments("127.0.0.1:9092", [5, 6][: sum(services.values())])
    words = [command, "--host", "127.0.0.1", "-b", "127.0.0.1:9092", "--log-level", "error", *listeners]
    assert arguments == words
    process.settings_file = "/data/admin.properties"
    assert process.arguments("h:1", [5])[-2:] == ["--command-config", "/data/admin.properties"]


def test_missing_packages_are_named_before_the_node_starts(monkeypatch):
    monkeypatch.setattr(up_services, "_MODULES", ("no_such_module",))
    with pytest.raises(CommandRefusal, match=r"no_such_module is not installed: pip install 'klamm\[http,registry\]'"):
        ServicesProcess(registry=True, rest=False, log_level="error")


class UpProcess:
    """`klamm up` with services; its lines up to those of the services."""

    def __init__(self, *words: str, services: int) -> None:
        self.process = subprocess.Popen(
            [*KLAMM, "up", *words, "--override", "metrics.listeners="],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines = [self.process.stdout.readline() for _ in range(1 + services)]

    def url(self, name: str) -> str:
        match = re.search(rf"^  {name}  (http://127\.0\.0\.1:\d+)", "".join(self.lines), re.MULTILINE)
        if match is None:
            self.process.kill()
            raise AssertionError([*self.lines, self.process.stderr.read()])
        return match[1]

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def call(url: str, body=None, content_type: str = "application/vnd.kafka.avro.v2+json"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": content_type})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def produce_avro(rest: str, registry: str) -> None:
    """Send a record through the proxy, which registers its schema."""
    topic = unique()
    cluster = call(f"{rest}/v3/clusters")["data"][0]["cluster_id"]
    new = {"topic_name": topic, "partitions_count": 1}
    call(f"{rest}/v3/clusters/{cluster}/topics", new, "application/json")
    answer = call(f"{rest}/topics/{topic}", {"value_schema": '"string"', "records": [{"value": "tea"}]})
    assert answer["offsets"][0]["offset"] == 0
    assert call(f"{registry}/schemas/ids/{answer['value_schema_id']}")["schema"] == '"string"'


def is_served(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5):
        return True
    return False


def test_kill_9_of_the_node_ends_the_services(tmp_path):
    with UpProcess("--data", str(tmp_path / "data"), "--port", "0", "--rest", services=1) as up:
        rest = up.url("rest")
        assert is_served(rest)
        up.process.kill()
        deadline = time.monotonic() + STOP_S
        while is_served(rest):
            assert time.monotonic() < deadline, "the REST proxy outlives its node"
            time.sleep(0.05)


def test_both_serve_a_secure_node_as_its_admin_and_end_before_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))
    port = str(free_ports("127.0.0.1", 1)[0])
    words = ("--secure", "--data", str(tmp_path / "node"), "--port", port, "--registry", "--rest")
    with UpProcess(*words, "--log-level", "info", services=2) as up:
        assert up.lines[0].startswith("Klamm is ready on 127.0.0.1:")
        registry, rest = up.url("registry"), up.url("rest")
        produce_avro(rest, registry)
        up.process.send_signal(signal.SIGTERM)
        rest_of_output, log = up.process.communicate(timeout=STOP_S)
        assert (up.process.returncode, rest_of_output) == (0, ""), log
        assert "registry stopping" in log
        assert "Traceback" not in log
        assert "ended with" not in log
        assert not is_served(registry)
        assert not is_served(rest)

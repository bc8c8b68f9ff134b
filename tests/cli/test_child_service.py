"""A service beside the node of `klamm up`: its ports, its start and its end, with small programs in its place."""

import socket
import sys

import pytest

from klamm.cli import child_service
from klamm.cli.child_service import ChildService, listen_on_usual_or_free, local_bootstrap, stop_children
from klamm.net.free_ports import free_ports

JOIN_S = 60.0
ANSWER = """
import socket, sys
for descriptor in sys.argv[1:]:
    socket.socket(fileno=int(descriptor)).accept()[0].sendall(b"tea")
sys.stdin.buffer.read()
"""
"""Answers one connection on each socket, and ends with its standard input or by a signal."""


class SmallService(ChildService):
    """Keeps where the node is reached."""

    bootstrap = ""

    def arguments(self, bootstrap, descriptors):
        self.bootstrap = bootstrap
        return [str(descriptor) for descriptor in descriptors]


@pytest.fixture
def small(monkeypatch):
    """Makes services whose interpreter runs their program; they are killed at the end."""
    services = []
    popen = child_service.subprocess.Popen

    def make(program, **usual_ports):
        service = SmallService(usual_ports)

        def run(command, **options):
            words = command[command.index("klamm") + 1 : -1]
            assert command[-1] == "--until-eof"
            return popen([sys.executable, "-c", program, *words], **options)

        monkeypatch.setattr(child_service.subprocess, "Popen", run)
        services.append(service)
        return service

    yield make
    for service in services:
        service.kill()
        service.wait()


def receive(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), JOIN_S) as connection:
        return connection.recv(16)


def test_sockets_are_passed_on_and_taken_ports_are_named(small, capsys):
    taken, free = free_ports("127.0.0.1", 2)
    with socket.create_server(("127.0.0.1", taken)):
        service = small(ANSWER, registry=taken, rest=free)
        service.start("0.0.0.0:9092")
    assert service.bootstrap == "127.0.0.1:9092"
    assert service.urls["rest"] == f"http://127.0.0.1:{free}"
    registry = service.urls["registry"]
    assert capsys.readouterr().out.splitlines() == [
        f"  registry  {registry}  (port {taken} is taken)",
        f"  rest  http://127.0.0.1:{free}",
    ]
    assert receive(registry) == receive(service.urls["rest"]) == b"tea"
    stop_children([service])
    with pytest.raises(ConnectionRefusedError):
        receive(registry)


def test_a_service_ends_with_its_parent(small):
    service = small(ANSWER, rest=0)
    service.start("127.0.0.1:9092")
    assert receive(service.urls["rest"]) == b"tea"
    # What the system does when this process is killed.
    process = service._process
    process.stdin.close()
    assert process.wait(JOIN_S) == 0


def test_a_service_that_was_killed_is_started_again_on_its_ports(small, monkeypatch, capsys):
    monkeypatch.setattr(child_service, "RESTART_MIN_S", 0.01)
    service = small(ANSWER, rest=0)
    service.start("127.0.0.1:9092")
    assert receive(service.urls["rest"]) == b"tea"
    service._process.kill()
    # Waits in the queue of the socket until the next process accepts it.
    assert receive(service.urls["rest"]) == b"tea"
    assert "rest ended with -9; starting it again" in capsys.readouterr().err
    stop_children([service])
    with pytest.raises(ConnectionRefusedError):
        receive(service.urls["rest"])


def test_a_service_that_waits_to_be_started_again_stops_at_once(small, monkeypatch):
    monkeypatch.setattr(child_service, "RESTART_MIN_S", 1000.0)
    monkeypatch.setattr(child_service, "RESTART_MAX_S", 1000.0)
    monkeypatch.setattr(child_service, "STOP_S", JOIN_S)
    service = small("raise SystemExit(3)", rest=0)
    service.start("127.0.0.1:9092")
    process = service._process
    process.wait(JOIN_S)
    stop_children([service])
    assert service._process is process
    assert not service._watcher.is_alive()


def test_a_service_that_never_serves_is_given_up(small, monkeypatch, capsys):
    monkeypatch.setattr(child_service, "RESTART_MIN_S", 0.0)
    service = small("raise SystemExit(3)", registry=0, rest=0)
    service.start("127.0.0.1:9092")
    service._watcher.join(JOIN_S)
    errors = capsys.readouterr().err.splitlines()
    again = "klamm: registry and rest ended with 3; starting it again"
    assert errors == [
        *[again] * child_service.RESTARTS_MAX,
        "klamm: registry and rest ended with 3 and is not started again; Kafka clients are served without it",
    ]
    with pytest.raises(ConnectionRefusedError):
        receive(service.urls["rest"])
    stop_children([service])
    stop_children([service])
    assert capsys.readouterr().err == ""


def test_a_service_that_ignores_the_signal_is_killed(small, monkeypatch):
    monkeypatch.setattr(child_service, "STOP_S", 0.1)
    service = small("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ANSWER, rest=0)
    service.start("127.0.0.1:9092")
    assert receive(service.urls["rest"]) == b"tea"
    stop_children([service])
    assert service._process.returncode == -9


def test_a_service_that_cannot_start_leaves_the_node_alone(small, monkeypatch, capsys):
    service = small(ANSWER, rest=0)

    def fail(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(child_service.subprocess, "Popen", fail)
    service.start("127.0.0.1:9092")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "klamm: rest did not start: no more processes\n")
    assert service.urls == {}
    stop_children([service])


def test_services_that_were_not_started_stop():
    service = SmallService({"rest": 0})
    stop_children([service])
    service.kill()


def test_a_free_port_is_taken_in_place_of_a_used_one():
    with listen_on_usual_or_free(0) as first, listen_on_usual_or_free(first.getsockname()[1]) as second:
        assert first.getsockname() != second.getsockname()


@pytest.mark.parametrize(
    ("addresses", "bootstrap"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092"),
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        (":9092", "127.0.0.1:9092"),
        (":::9092", "[::1]:9092"),
        ("::1:9092", "[::1]:9092"),
        ("[::1]:9092", "[::1]:9092"),
        ("box.example:9092,0.0.0.0:9094", "box.example:9092,127.0.0.1:9094"),
    ],
)
def test_nodes_are_reached_on_this_machine(addresses, bootstrap):
    assert local_bootstrap(addresses) == bootstrap

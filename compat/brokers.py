"""Own a broker process for a test: Apache Kafka or Klamm, from one and the same properties file.

Both are started from the same properties (that Klamm takes Kafka's file unchanged is part of the test), listen on
127.0.0.1 alone, keep their data in a folder the caller gives, and die with the process that started them.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from compat import toolchain
from klamm.net.free_ports import free_ports

CLUSTER_ID = "a0xbFTQNQ6y3oXwBz9Rwdw"
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1


class BrokerFailed(Exception):
    """The process ended or stayed silent; carries the end of its log."""


def free_port() -> int:
    """A port nothing listens on, below the range outgoing connections use, so that it is still free after a restart."""
    return free_ports("127.0.0.1", 1)[0]


class Broker:
    """One node. `start`, `stop` (SIGTERM), `kill9`; ports and data stay the same over restarts."""

    kind = ""

    def __init__(
        self,
        folder: Path,
        *,
        advertised_port: int | None = None,
        heap_mb: int = 512,
        overrides: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.controller_port = free_port()
        self.advertised_port = advertised_port
        self.heap_mb = heap_mb
        self.overrides = overrides or {}
        """Settings over those all nodes have; an empty one is left out of the file."""
        self.format_flags: tuple[str, ...] = ()
        """What the folder is formatted with; any flag makes both kinds format by hand."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.advertised_port or self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.kind}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    def properties(self) -> dict[str, str]:
        advertised = self.advertised_port or self.port
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }

    def start(self) -> "Broker":
        """Spawn, and return when the broker answers a client."""
        self.spawn()
        self.wait_ready()
        return self

    def write_config(self) -> Path:
        """The properties file and, for a kind of broker that needs it, a formatted folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "node.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items() if value))
        self.prepare(config)
        return config

    def spawn(self) -> None:
        """Start the process and do not wait; for who measures the start itself, after `write_config`."""
        assert self.process is None, "the broker is running already"
        config = self.write_config()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment(),
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no Python locks taken
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not answers(self.port):
            if self.process is None or self.process.poll() is not None:
                raise BrokerFailed(f"{self.kind} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.kind} is not ready after {READY_TIMEOUT_S:.0f} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self) -> int:
        """SIGTERM, and the exit code of a clean stop."""
        assert self.process is not None, "the broker is not running"
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise BrokerFailed(f"{self.kind} did not stop on SIGTERM:\n{self.log_tail()}") from None
        self.process = None
        return code

    def kill9(self) -> None:
        assert self.process is not None, "the broker is not running"
        self.process.kill()
        self.process.wait()
        self.process = None

    def close(self) -> None:
        """Whatever the state, leave no process behind."""
        if self.process is not None:
            self.kill9()

    def successor(self, kind: "type[Broker]") -> "Broker":
        """Another broker for the same data folder, ports and properties, once this one is down."""
        assert self.process is None, "two brokers on one folder"
        heir = kind(self.folder, advertised_port=self.advertised_port, heap_mb=self.heap_mb, overrides=self.overrides)
        heir.port, heir.controller_port = self.port, self.controller_port
        return heir

    def log_tail(self, lines: int = 40) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    @property
    def is_formatted(self) -> bool:
        """Whether the one log dir, or one of several in it, has a cluster id."""
        return any(self.data.glob("meta.properties")) or any(self.data.glob("*/meta.properties"))

    def prepare(self, config: Path) -> None:
        """Format the data folder for a kind of broker that does not do it itself."""

    def command(self, config: Path) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


class ApacheKafka(Broker):
    """Apache Kafka from its jars: one combined node."""

    kind = "kafka"

    def prepare(self, config: Path) -> None:
        if self.is_formatted:
            return
        command = toolchain.java_command(heap_mb=128)
        command += ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config), *self.format_flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise BrokerFailed(f"kafka-storage format failed:\n{done.stdout}{done.stderr}")

    def command(self, config: Path) -> list[str]:
        java, *options = toolchain.java_command(heap_mb=self.heap_mb)
        # As Kafka's own start script gives them.
        collector = ["-server", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
        return [java, *collector, "-XX:+ExplicitGCInvokesConcurrent", *options, "kafka.Kafka", str(config)]


class Klamm(Broker):
    """Klamm from this tree, run by `klamm server` on the very file Kafka gets."""

    kind = "klamm"

    def prepare(self, config: Path) -> None:
        by_hand = self.format_flags or "," in self.properties()["controller.quorum.voters"]
        if not by_hand or self.is_formatted:
            return
        command = [*klamm_command(), "storage", "format", "-t", CLUSTER_ID, "-c", str(config), *self.format_flags]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False, env=self.environment()
        )
        if done.returncode != 0:
            raise BrokerFailed(f"klamm storage format failed:\n{done.stdout}{done.stderr}")

    def command(self, config: Path) -> list[str]:
        return [*klamm_command(), "server", str(config)]

    def environment(self) -> dict[str, str]:
        return klamm_environment()


def klamm_command() -> list[str]:
    script = Path(sys.executable).with_name("klamm")
    if script.exists():
        return [str(script)]
    return [sys.executable, "-c", "from klamm.cli.main import main; main()"]


def klamm_environment() -> dict[str, str]:
    source = str(toolchain.HERE.parent / "src")
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{inherited}" if inherited else source}


KINDS: dict[str, type[Broker]] = {"kafka": ApacheKafka, "klamm": Klamm}


def answers(port: int) -> bool:
    """Whether a broker on this port answers a client."""
    reply = api_versions(port)
    return reply is not None and struct.unpack_from(">ih", reply, 4) == (7, 0)


def api_versions(port: int) -> bytes | None:
    """The whole reply to ApiVersions v0, or None without one."""
    body = struct.pack(">hhih", 18, 0, 7, -1)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as link:
        link.sendall(struct.pack(">i", len(body)) + body)
        reply = b""
        while len(reply) < 10 or len(reply) < 4 + struct.unpack_from(">i", reply)[0]:
            more = link.recv(65536)
            if not more:
                return None
            reply += more
        return reply
    return None


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""Client libraries as programs: each has the same roles and flags, and prints a line of JSON for each event."""

import json
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compat import toolchain
from ecosystem import manifests
from ecosystem.processes import Process

HERE = Path(__file__).resolve().parent
GO = HERE / "go"
LIBRDKAFKA = HERE / "python" / "librdkafka" / "main.py"
CONSTRAINTS = HERE.parent / "constraints.txt"


@dataclass(frozen=True)
class Client:
    """A library, its version and the command that starts a role."""

    name: str
    version: str
    command: Callable[[], list[str]]
    is_idempotent: bool = True
    has_cooperative_groups: bool = True
    reports_assignments: bool = True

    def start(self, role: str, log: Path, **flags: object) -> Process:
        """Start a role; underscores of flags are dashes."""
        return Process([*self.command(), role, *_as_flags(flags)], log)

    def run(self, role: str, log: Path, *, timeout_s: float = 300.0, **flags: object) -> list[dict[str, Any]]:
        """Run a role to its end, and give its events."""
        with self.start(role, log, **flags) as program:
            code = program.wait(timeout_s)
            assert code == 0, f"{self.name} {role}: exit code {code}:\n{program.tail()}"
            return events(program.text)

    @property
    def parameter(self) -> Any:
        """For `pytest.mark.parametrize`: the test counts for this program in the table."""
        return pytest.param(self, id=self.name, marks=pytest.mark.program(self.name, self.version))


def go_program(name: str) -> Path:
    """A program of `go/<name>` as one binary."""
    folders = [GO / "roles", GO / name]
    sources = [source for folder in folders for source in sorted(folder.glob("*")) if source.is_file()]

    def build(folder: Path) -> None:
        for source in sources:
            target = folder / source.parent.name / source.name
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
        toolchain.run_build(["go", "build", "-mod=readonly", "-o", str(folder / "client"), "."], folder / name)

    return toolchain.cached(f"ecosystem-{name}", sources, build) / "client"


def go_client(name: str, folder: str, module: str, **abilities: bool) -> Client:
    """A client library of Go, by the module its manifest requires."""
    version = manifests.go_version(GO / folder / "go.mod", module)
    return Client(name, version, lambda: [str(go_program(folder))], **abilities)


FRANZ = go_client("franz-go", "franz", "github.com/twmb/franz-go")
SARAMA = go_client("sarama", "sarama", "github.com/IBM/sarama")
KAFKA_GO = go_client(
    "kafka-go",
    "kafkago",
    "github.com/segmentio/kafka-go",
    is_idempotent=False,
    has_cooperative_groups=False,
    reports_assignments=False,
)
CONFLUENT = Client(
    "librdkafka (confluent-kafka)",
    manifests.pip_version(CONSTRAINTS, "confluent-kafka"),
    lambda: [sys.executable, str(LIBRDKAFKA)],
)


def events(text: str, name: str | None = None) -> list[dict[str, Any]]:
    """The events a program has printed so far, or those with one name; a line being written is left out."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith('{"')]
    return [event for event in parsed if name is None or event["event"] == name]


def value(number: int, size: int = 20) -> bytes:
    """What the programs write as record `number`."""
    return f"{number:08d}.".encode().ljust(size, b"%c" % (97 + number % 26))


def checksum(number: int, size: int = 20) -> int:
    """What the programs report of record `number`."""
    return zlib.crc32(value(number, size))


def _as_flags(flags: dict[str, object]) -> list[str]:
    return [word for name, content in flags.items() for word in (f"-{name.replace('_', '-')}", str(content))]

"""Build the C loaders on demand and run them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from compat import toolchain
from compat.toolchain import ToolMissing

SOURCES = Path(__file__).resolve().parent / "loaders"


class LoadFailed(Exception):
    """A loader ended badly, or the broker refused part of its load."""


def librdkafka() -> str:
    """The library inside the confluent-kafka wheel."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise ToolMissing("the benchmark needs the confluent-kafka wheel: pip install 'klamm[bench]'")
    libraries = sorted((Path(spec.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))
    if not libraries:
        raise ToolMissing("this confluent-kafka wheel carries no librdkafka of its own")
    return str(libraries[0])


def program(name: str) -> Path:
    source = SOURCES / f"{name}.c"

    def build(folder: Path) -> None:
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(folder / name), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolMissing(f"gcc could not build {name}:\n{done.stderr}")

    return toolchain.cached(name, [source], build) / name


def raw(*arguments: object, timeout_s: float) -> dict[str, Any]:
    return _run([str(program("rawload")), *map(str, arguments)], timeout_s)


def exit_on_signal(*_: object) -> None:
    """A handler of SIGTERM."""
    sys.exit(143)


def coordinators(*arguments: object, timeout_s: float) -> dict[str, Any]:
    return _run([str(program("coordload")), *map(str, arguments)], timeout_s)


def rd(mode: str, *arguments: object, timeout_s: float, **settings: object) -> dict[str, Any]:
    """Run rdload; settings are librdkafka's, with dots written as underscores."""
    pairs = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return _run([str(program("rdload")), librdkafka(), mode, *map(str, arguments), *pairs], timeout_s)


def _run(command: list[str], timeout_s: float) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s + 60, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise LoadFailed(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["failed"]:
        raise LoadFailed(f"{Path(command[0]).name}: {result['failed']} failed, first error {result['error']}")
    return result

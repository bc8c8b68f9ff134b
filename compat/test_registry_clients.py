"""Clients of schema registries in other languages, unchanged, against `klamm registry`."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from compat.registry_programs import go_registry, java_registry, js_registry, python_registry, srclient
from klamm.testing import broker as run_broker
from klamm.testing import unique

READY = re.compile(r"Klamm registry is ready on (http://\S+),")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    errors: Path = tmp_path_factory.mktemp("registry") / "stderr"
    with run_broker() as broker, errors.open("w") as stderr:
        command = [sys.executable, "-m", "klamm", "registry", "-b", broker.bootstrap, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
            assert process.stdout is not None
            try:
                ready = READY.match(process.stdout.readline())
                assert ready, errors.read_text()
                yield ready[1]
            finally:
                process.terminate()


def run_client(command: list[str], url: str, name: str) -> dict[str, object]:
    ended = subprocess.run([*command, url, name], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, object] = json.loads(ended.stdout)
    return seen


def test_franz_go(registry: str) -> None:
    seen = run_client(go_registry(), registry, unique("go"))
    first, again, second = seen["ids"]  # type: ignore[misc]
    assert first == again != second
    assert json.loads(str(seen["text"]))["fields"][1]["name"] == "age"
    assert (seen["refused"], seen["compatible"], seen["found"], seen["level"]) == (40901, False, 1, "FULL")
    assert seen["versions"] == seen["deleted"] == seen["purged"] == [1, 2]
    assert seen["name"] == "Ada"
    assert seen["types"] == ["JSON", "PROTOBUF"]
    assert (seen["referrers"], seen["referenced"], len(seen["references"])) == (1, 42206, 1)  # type: ignore[arg-type]
    # A context counts ids of its own.
    subject = f":.{unique_of(seen['in_context'])}:s"
    assert (seen["context"], seen["in_context"]) == (1, [subject])
    assert subject in seen["subjects"]  # type: ignore[operator]
    file = FileDescriptorProto.FromString(base64.b64decode(str(seen["serialized"])))
    assert (file.message_type[0].name, list(file.dependency)) == ("Order", ["person.proto"])


def unique_of(subjects: Any) -> str:
    """The name of the context of the only subject."""
    [subject] = subjects
    return str(subject).split(":")[1].removeprefix(".")


def test_srclient(registry: str) -> None:
    name = unique("srclient")
    seen = run_client(srclient(), registry, name)
    first, again, second = seen["ids"]  # type: ignore[misc]
    assert first == again != second
    # srclient has codes and texts of the registry, and no more.
    assert (seen["refused"], seen["compatible"], seen["found"], seen["level"]) == (40901, False, 1, "FULL")
    assert (seen["value"], seen["json"], seen["missing"]) == ({"name": "Ada", "age": 36}, True, 40401)
    assert seen["order"] == [seen["order"][0]] * 2  # type: ignore[index]
    assert seen["references"] == [{"name": "person.proto", "subject": f"{name}-person", "version": 1}]
    assert (seen["type"], seen["versions"], seen["uses"]) == ("PROTOBUF", [1, 2], [{"subject": name, "version": 2}])


def test_confluent_kafka_python(registry: str) -> None:
    program = Path(__file__).parent / "python-registry" / "confluent.py"
    name = unique("confluent")
    seen = run_client([sys.executable, str(program)], registry, name)
    assert seen == {
        "avro": {"inner": {"x": 7}},
        "json": [{"name": "Ada"}, "refused"],
        "protobuf": ["Ada", 1, [f"{name}/person.proto"]],
    }


def test_javascript(registry: str) -> None:
    seen = run_client(js_registry(), registry, unique("js"))
    first, again, second = seen["ids"]  # type: ignore[misc]
    assert first == again != second
    assert (seen["refused"], seen["compatible"]) == (40901, False)
    assert (seen["id"], seen["value"]) == (second, {"name": "Ada", "age": 36})
    assert seen["versions"] == seen["deleted"] == [1, 2]
    assert seen["formats"] == {"json": {"name": "Ada"}, "refused": "refused", "person": "Ada"}
    assert seen["nested"] == {"inner": {"x": 7}}
    schema_id, subject, version = seen["context"]  # type: ignore[misc]
    assert (schema_id, version) == (1, 1)
    assert str(subject).startswith(":.js")


def test_java(registry: str) -> None:
    subject = unique("java")
    seen = run_client(java_registry(), registry, subject)
    first, again, second = seen["ids"]  # type: ignore[misc]
    assert first == again != second
    assert (seen["incompatible"], seen["compatible"], seen["referenced"], seen["gone"]) == (40901, False, 42206, 40401)
    assert seen["messages"]
    assert (seen["version"], seen["latest"], seen["level"]) == (2, 2, "FULL/FULL")
    assert seen["modes"] == [40409, "READONLY/READONLY", 42205]
    assert json.loads(str(seen["text"]))["fields"][1]["name"] == "age"
    assert json.loads(str(seen["resolved"]))["fields"][0]["type"]["name"] == "User"
    assert seen["subjects"] == [subject]
    assert seen["versions"] == seen["deleted"] == seen["purged"] == [1, 2]


def test_python_schema_registry_client(registry: str) -> None:
    seen = run_client(python_registry(), registry, unique("python"))
    first, again, second = seen["ids"]  # type: ignore[misc]
    assert first == again != second
    assert (seen["refused"], seen["compatible"], seen["level"]) == (409, False, "FULL")
    assert (seen["latest"], seen["found"], seen["same"], seen["listed"]) == (2, 1, True, True)
    assert seen["value"] == {"name": "Ada", "age": 36}
    assert (seen["versions"], seen["version_deleted"], seen["deleted"]) == ([1, 2], 1, [2])

"""What `klamm` and `klamm.client` offer, and that nothing is imported until it is used."""

import subprocess
import sys

import pytest

import klamm
import klamm.client
import klamm.testing
from klamm.client import errors

CLIENTS = {"Admin", "AsyncAdmin", "AsyncConsumer", "AsyncProducer", "Consumer", "Producer", "read_topic"}
VALUES = {
    "Delivery",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "RecordMetadata",
    "TopicPartition",
}


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_names_of_the_package():
    assert set(klamm.__all__) == CLIENTS | {"ConfigError", "KafkaError", "Record", "TopicPartition", "__version__"}
    assert set(klamm.__all__) | {"client", "pipeline", "testing"} == set(dir(klamm))


def test_the_names_of_the_client():
    kinds = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert set(errors.__all__) == kinds | {"ErrorCode"}
    assert set(klamm.client.__all__) == CLIENTS | VALUES | set(errors.__all__)
    assert set(dir(klamm.client)) == set(klamm.client.__all__)
    assert set(dir(klamm.testing)) == set(klamm.testing.__all__)


@pytest.mark.parametrize("module", [klamm, klamm.client, klamm.testing])
def test_every_name_is_there(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018 - looking at it is the test


def test_a_room_is_there_without_an_import_of_its_own():
    assert run("import klamm; print(klamm.testing.broker.__name__)") == "broker"
    assert run("import klamm; print(klamm.client.KafkaError is klamm.KafkaError)") == "True"
    assert run("from klamm import KafkaError, ConfigError; print(KafkaError.__name__)") == "KafkaError"
    assert run("from klamm.client import Delivery, ProducerFencedError; print(Delivery.__name__)") == "Delivery"


def test_importing_the_package_imports_nothing_else():
    loaded = "print(sorted(name for name in sys.modules if name.startswith('klamm')))"
    assert run(f"import klamm, sys; dir(klamm); {loaded}") == "['klamm']"
    assert run(f"import klamm.client, sys; dir(klamm.client); {loaded}") == "['klamm', 'klamm.client']"

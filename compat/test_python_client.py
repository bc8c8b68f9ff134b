"""Klamm's own client: its scenarios on the broker under test and on Apache Kafka; groups shared with Java's client."""

import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.certificates import Authority
from compat import toolchain
from compat.brokers import ApacheKafka, Broker, free_port
from compat.clients import JavaClient
from compat.conftest import QUICK_GROUPS
from compat.crowds import Crowd
from harness.client_stories import PATIENCE_S, STORIES, Story, read, reader
from harness.column_stories import COLUMNS
from harness.group_stories import GROUPS
from klamm.client import Admin, Producer
from klamm.client.errors import DisconnectedError
from klamm.client.producer.core.partitioners import by_murmur2

KEYS = 100_000
PARTITIONS = 13
SEED = 20_261_116
EVERY = STORIES | COLUMNS | GROUPS


@dataclass
class Beside:
    """Apache Kafka beside the broker under test, on a plain port and on one that speaks TLS."""

    node: ApacheKafka
    tls_port: int
    authority: Authority


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    folder = tmp_path_factory.mktemp("beside")
    authority = Authority(folder)
    server = authority.issue("broker", "127.0.0.1")
    store = folder / "broker.pem"
    store.write_text(Path(server.key).read_text() + Path(server.certificate).read_text())
    port = free_port()
    node = ApacheKafka(folder / "node")
    plain = node.properties()
    node.overrides = QUICK_GROUPS | {
        "group.consumer.assignment.interval.ms": "0",
        "listeners": f"{plain['listeners']},SSL://127.0.0.1:{port}",
        "advertised.listeners": f"{plain['advertised.listeners']},SSL://127.0.0.1:{port}",
        "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},SSL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.path,
        "ssl.client.auth": "required",
    }
    try:
        node.start()
        yield Beside(node, port, authority)
    finally:
        node.close()


@pytest.mark.parametrize("story", EVERY.values(), ids=EVERY.keys())
def test_story(broker: Broker, story: Story) -> None:
    story(broker.bootstrap)


@pytest.mark.parametrize("story", EVERY.values(), ids=EVERY.keys())
def test_story_told_to_apache_kafka(kafka: Beside, story: Story) -> None:
    """The very same: what only Klamm can do, or only Klamm lets pass, is a bug of the client."""
    story(kafka.node.bootstrap)


def test_apache_kafka_is_reached_by_tls(kafka: Beside) -> None:
    """Both sides show certificates; what Kafka does not know, it does not let in."""
    client = kafka.authority.issue("client")
    address = f"127.0.0.1:{kafka.tls_port}"
    believing = {
        "security_protocol": "SSL",
        "ssl_ca_location": kafka.authority.path,
        "socket_connection_setup_timeout_ms": 60_000,  # Java's first handshake takes a while on a busy machine
    }
    known = {"ssl_certificate_location": client.certificate, "ssl_key_location": client.key}
    values = [bytes([number % 251]) * (number * 5000) for number in range(100)]
    with Admin(bootstrap_servers=address, **believing, **known) as admin:
        admin.create_topic("tls", 1)
    with Producer(bootstrap_servers=address, **believing, **known) as producer:
        for value in values:
            producer.send("tls", value)
    with reader(address, **believing, **known) as consumer:
        consumer.assign([("tls", 0)])
        assert [record.value for record in read(consumer, len(values))] == values
    with pytest.raises(DisconnectedError, match="cannot connect to"):
        Admin(bootstrap_servers=address, **believing)
    with pytest.raises(DisconnectedError, match="cannot connect to"):
        Admin(bootstrap_servers=address)


def test_a_key_goes_where_java_sends_it():
    chance = random.Random(SEED)
    keys = [chance.randbytes(chance.randrange(0, 40)) for _ in range(KEYS)]
    command = [*toolchain.java_command(heap_mb=128, classes=True), "Partitions", str(PARTITIONS)]
    lines = "".join(f"{key.hex()}\n" for key in keys)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True)
    assert [by_murmur2(key, PARTITIONS) for key in keys] == [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("way", ["range", "roundrobin", "sticky", "cooperative-sticky", "consumer-uniform"])
@pytest.mark.parametrize("first", ["ours", "java"])
def test_a_group_of_ours_and_javas(broker: Broker, java: JavaClient, topic: str, way: str, first: str):
    crowd = Crowd(broker, java, topic, way, 6)
    modern = way.startswith("consumer")
    settings = (
        {"group_protocol": "consumer"}
        if modern
        else {
            "partition_assignment_strategy": way,
            "session_timeout_ms": 6000,
            "heartbeat_interval_ms": 300,
        }
    )
    ours = reader(broker.bootstrap, group_id=crowd.group, **settings)
    seen: set[tuple[int, int]] = set()

    def shares(mine: int, javas: int) -> None:
        """Poll until both hold as many partitions as they should, for a while."""
        deadline, since = time.monotonic() + PATIENCE_S, None
        while since is None or time.monotonic() - since < 1.0:
            assert time.monotonic() < deadline, (way, ours.assignment(), crowd.owned_partitions())
            if ours.subscription():
                seen.update((record.partition, record.offset) for record in ours.poll(0.1))
            crowd.refresh()
            held = [member.owned for member in crowd.present]
            right = len(ours.assignment()) == mine and sum(map(len, held)) == javas
            right = right and not {partition.partition for partition in ours.assignment()} & set().union(*held)
            since = (since or time.monotonic()) if right else None

    try:
        if first == "ours":
            ours.subscribe([topic])
            shares(6, 0)
            crowd.join(java)
        else:
            crowd.join(java)
            shares(0, 6)
            ours.subscribe([topic])
        shares(3, 3)
        crowd.write()
        deadline = time.monotonic() + PATIENCE_S
        while not crowd.written <= seen | set().union(*(member.seen for member in crowd.members.values())):
            assert time.monotonic() < deadline, "every record is read by one of them"
            shares(3, 3)
        crowd.leave(*crowd.present)
        shares(6, 0)
    finally:
        ours.close()
        crowd.close()

"""Third-party clients log in: librdkafka, aiokafka and kafka-python on every mechanism of a listener."""

import asyncio
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from client.certificates import Authority
from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice, secret=1";'
PASSWORD = "alice, secret=1"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class Listener(NamedTuple):
    """Where clients connect, and the authority that they trust."""

    bootstrap: str
    authority: str | None = None

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.authority else "SASL_PLAINTEXT"


@pytest.fixture(scope="module")
def listeners(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    files = authority.issue("broker", "127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,SECURE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"sasl.jaas.config={JAAS}",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={keystore}",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        with Admin(bootstrap_servers=f"127.0.0.1:{running.port}") as admin:
            for mechanism in ScramMechanism:
                admin.alter_user_scram_credentials({("alice", mechanism): PASSWORD})
        ports = {name: address[1] for name, address in running.node.addresses.items()}
        yield {
            "SASL_PLAINTEXT": Listener(f"127.0.0.1:{ports['CLIENTS']}"),
            "SASL_SSL": Listener(f"127.0.0.1:{ports['SECURE']}", authority.path),
        }


def rdkafka(listener: Listener, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap.servers": listener.bootstrap,
        "security.protocol": listener.protocol,
        **({"ssl.ca.location": listener.authority} if listener.authority else {}),
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }
    topic = unique()
    errors = []
    producer = Producer({**settings, "error_cb": errors.append, "message.timeout.ms": 10_000})
    producer.produce(topic, b"value")
    left = producer.flush(15 if password == PASSWORD else 2)
    if any("uthenticat" in str(error) for error in errors):
        raise PermissionError
    assert left == 0, errors
    consumer = Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return consumer.poll(30).value()
    finally:
        consumer.close()


def python(listener: Listener, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap_servers": listener.bootstrap,
        "security_protocol": listener.protocol,
        **({"ssl_cafile": listener.authority} if listener.authority else {}),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
        "bootstrap_timeout_ms": 5000,
    }
    topic = unique()
    try:
        producer = KafkaProducer(**settings)
        producer.send(topic, b"value").get(15)
        producer.close()
    except KafkaError as error:
        raise PermissionError from error
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    try:
        return next(consumer).value
    finally:
        consumer.close()


def aio(listener: Listener, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap_servers": listener.bootstrap,
        "security_protocol": listener.protocol,
        **({"ssl_context": ssl.create_default_context(cafile=listener.authority)} if listener.authority else {}),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }

    async def main() -> bytes:
        topic = unique()
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
        except Exception as error:
            raise PermissionError from error
        else:
            await producer.send_and_wait(topic, b"value")
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                return (await consumer.getone()).value
        finally:
            await consumer.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_client_logs_in(listeners, client, mechanism, protocol):
    assert client(listeners[protocol], mechanism, PASSWORD) == b"value"


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_wrong_password_is_refused(listeners, client, mechanism, protocol):
    with pytest.raises(PermissionError):
        client(listeners[protocol], mechanism, "wrong")


def test_a_client_without_a_login_gets_nothing(listeners):
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": listeners["SASL_PLAINTEXT"].bootstrap}).list_topics(timeout=2)

"""Third-party clients log in: librdkafka, aiokafka and kafka-python on every mechanism of a listener."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice, secret=1";'
PASSWORD = "alice, secret=1"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"listener.name.clients.plain.sasl.jaas.config={JAAS}",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        with Admin(bootstrap_servers=f"127.0.0.1:{running.port}") as admin:
            for mechanism in ScramMechanism:
                admin.alter_user_scram_credentials({("alice", mechanism): PASSWORD})
        yield f"127.0.0.1:{running.node.addresses['CLIENTS'][1]}"


def rdkafka(bootstrap: str, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
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


def python(bootstrap: str, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
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


def aio(bootstrap: str, mechanism: str, password: str) -> bytes:
    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
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


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_client_logs_in(bootstrap, client, mechanism):
    assert client(bootstrap, mechanism, PASSWORD) == b"value"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_wrong_password_is_refused(bootstrap, client, mechanism):
    with pytest.raises(PermissionError):
        client(bootstrap, mechanism, "wrong")


def test_a_client_without_a_login_gets_nothing(bootstrap):
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=2)

"""Third-party clients log in with bearer tokens: librdkafka, aiokafka and kafka-python."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from harness.identity_provider import IdentityProvider
from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.server.login.bearer_settings import ALLOWED_URLS


@pytest.fixture(scope="module")
def provider():
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(provider, tmp_path_factory):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"{ALLOWED_URLS}={provider.keys_url}",
        f"sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        yield f"127.0.0.1:{running.node.addresses['TOKENS'][1]}"


def rdkafka_settings(bootstrap: str) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"}


def use_rdkafka(settings: dict[str, object]) -> bytes:
    topic, errors = unique(), []
    producer = Producer({**settings, "error_cb": errors.append, "message.timeout.ms": 20_000})
    producer.produce(topic, b"value")
    deadline = time.monotonic() + 20
    while len(producer) and time.monotonic() < deadline:
        producer.poll(0.1)
        if any("uthenticat" in str(error) for error in errors):
            raise PermissionError
    assert not len(producer), errors
    consumer = Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return consumer.poll(30).value()
    finally:
        consumer.close()


def rdkafka(bootstrap: str, issue) -> bytes:
    def refresh(_config: str) -> tuple[str, float]:
        return issue(), time.time() + 3600

    return use_rdkafka({**rdkafka_settings(bootstrap), "oauth_cb": refresh})


def python(bootstrap: str, issue) -> bytes:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return issue()

    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
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


def aio(bootstrap: str, issue) -> bytes:
    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return issue()

    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
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


@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_client_logs_in_with_a_token(bootstrap, provider, client):
    assert client(bootstrap, lambda: provider.issue("alice")) == b"value"


@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_an_expired_token_is_refused(bootstrap, provider, client):
    with pytest.raises(PermissionError):
        client(bootstrap, lambda: provider.issue("alice", -60))


def test_librdkafka_requests_tokens_itself(bootstrap, provider):
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "alice-secret",
        "sasl.oauthbearer.scope": "orders",
    }
    before = provider.tokens_issued
    assert use_rdkafka({**rdkafka_settings(bootstrap), **oidc}) == b"value"
    assert provider.tokens_issued > before

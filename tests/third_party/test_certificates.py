"""Third-party clients over TLS (librdkafka, aiokafka, kafka-python): client certificates, and tokens over SASL_SSL.

The node has ACLs, so that what a certificate or a token names is what decides.
"""

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from client.certificates import Authority
from harness.identity_provider import IdentityProvider
from harness.inprocess import NodeThread
from harness.wire import Wire, unique
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER
from klamm.server.login.bearer_settings import ALLOWED_URLS

ALLOWED, OTHER = "alice", "bob"
TOPIC = "guarded"


class Node:
    """A running node, its authority and the identity provider that it believes."""

    def __init__(self, running: NodeThread, authority: Authority, provider: IdentityProvider) -> None:
        self._running = running
        self.authority = authority
        self.provider = provider
        self.certificates = {user: authority.issue(user) for user in (ALLOWED, OTHER)}

    def bootstrap(self, listener: str) -> str:
        return f"127.0.0.1:{self._running.node.addresses[listener][1]}"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    files = authority.issue("broker", "127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    with IdentityProvider() as provider:
        overrides = (
            "listeners=PLAINTEXT://127.0.0.1:0,MUTUAL://127.0.0.1:0,TOKENS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,MUTUAL:SSL,TOKENS:SASL_SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={keystore}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={authority.path}",
            "listener.name.mutual.ssl.client.auth=required",
            "ssl.principal.mapping.rules=RULE:^CN=([a-z]+).*$/$1/",
            "sasl.enabled.mechanisms=OAUTHBEARER",
            f"{ALLOWED_URLS}={provider.keys_url}",
            f"sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
            f"authorizer.class.name={STANDARD_AUTHORIZER}",
            "super.users=User:ANONYMOUS",
        )
        with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
            with Wire(running.port) as wire:
                wire.create_topic(TOPIC)
                allow(wire, ALLOWED)
            yield Node(running, authority, provider)


def allow(wire: Wire, user: str) -> None:
    """Let a user read and write the topic, in any group."""
    entry = {
        "resource_pattern_type": 3,
        "principal": f"User:{user}",
        "host": "*",
        "permission_type": 3,
    }
    creations = [
        {**entry, "resource_type": 2, "resource_name": TOPIC, "operation": 3},
        {**entry, "resource_type": 2, "resource_name": TOPIC, "operation": 4},
        {**entry, "resource_type": 3, "resource_name": "*", "operation": 3},
        {**entry, "resource_type": 4, "resource_name": "kafka-cluster", "operation": 12},
    ]
    reply = wire.call("create_acls", 3, creations=creations)
    assert not any(result.error_code for result in reply.results), reply


def rdkafka(node: Node, login: str, user: str) -> bytes:
    if login == "certificate":
        files = node.certificates[user]
        settings = {
            "bootstrap.servers": node.bootstrap("MUTUAL"),
            "security.protocol": "SSL",
            "ssl.certificate.location": str(files.certificate),
            "ssl.key.location": str(files.key),
        }
    else:
        settings = {
            "bootstrap.servers": node.bootstrap("TOKENS"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: (node.provider.issue(user), time.time() + 3600),
        }
    settings["ssl.ca.location"] = str(node.authority.path)
    value, failures = unique("value").encode(), []
    producer = Producer({**settings, "message.timeout.ms": 20_000})
    producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    if failures:
        raise PermissionError(str(failures))
    consumer = Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None and message.value() == value:
                return b"value"
    finally:
        consumer.close()
    raise TimeoutError


def python(node: Node, login: str, user: str) -> bytes:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return node.provider.issue(user)

    settings: dict[str, Any] = {"ssl_cafile": str(node.authority.path), "bootstrap_timeout_ms": 15_000}
    if login == "certificate":
        files = node.certificates[user]
        settings |= {
            "bootstrap_servers": node.bootstrap("MUTUAL"),
            "security_protocol": "SSL",
            "ssl_certfile": str(files.certificate),
            "ssl_keyfile": str(files.key),
        }
    else:
        settings |= {
            "bootstrap_servers": node.bootstrap("TOKENS"),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Tokens(),
        }
    value = unique("value").encode()
    try:
        producer = KafkaProducer(**settings, max_block_ms=15_000)
        producer.send(TOPIC, value).get(20)
        producer.close()
    except KafkaError as error:
        raise PermissionError from error
    consumer = KafkaConsumer(TOPIC, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    try:
        return next(b"value" for record in consumer if record.value == value)
    finally:
        consumer.close()


def aio(node: Node, login: str, user: str) -> bytes:
    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return node.provider.issue(user)

    context = ssl.create_default_context(cafile=str(node.authority.path))
    settings: dict[str, Any] = {"ssl_context": context}
    if login == "certificate":
        files = node.certificates[user]
        context.load_cert_chain(files.certificate, files.key)
        settings |= {"bootstrap_servers": node.bootstrap("MUTUAL"), "security_protocol": "SSL"}
    else:
        settings |= {
            "bootstrap_servers": node.bootstrap("TOKENS"),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Tokens(),
        }
    value = unique("value").encode()

    async def main() -> bytes:
        async with AIOKafkaProducer(**settings) as producer:
            try:
                await asyncio.wait_for(producer.send_and_wait(TOPIC, value), 20)
            except AioKafkaError as error:
                raise PermissionError from error
        async with AIOKafkaConsumer(TOPIC, **settings, auto_offset_reset="earliest") as consumer, asyncio.timeout(30):
            async for record in consumer:
                if record.value == value:
                    return b"value"
        raise TimeoutError

    return asyncio.run(main())


@pytest.mark.parametrize("login", ["certificate", "token over TLS"])
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_a_client_acts_as_the_user_that_it_proves_to_be(node, client, login):
    assert client(node, login, ALLOWED) == b"value"


@pytest.mark.parametrize("login", ["certificate", "token over TLS"])
@pytest.mark.parametrize("client", [rdkafka, aio, python])
def test_another_user_is_refused_by_the_acls(node, client, login):
    with pytest.raises(PermissionError):
        client(node, login, OTHER)

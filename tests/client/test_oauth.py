"""The Python client, commands and nodes log in with bearer tokens, and get new ones before the old expire."""

import asyncio
import time

import pytest

from harness.identity_provider import IdentityProvider, SigningKey
from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.client import Admin, AsyncProducer, AuthenticationError, Consumer, Producer
from klamm.client.blocking_cluster import BlockingCluster
from klamm.net.outbound import OutboundSecurity, connect_securely
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.boot.listener_security import read_own_credentials
from klamm.server.login.bearer_settings import ALLOWED_URLS


@pytest.fixture(scope="module")
def provider():
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module")
def node(provider, tmp_path_factory):
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"{ALLOWED_URLS}={provider.keys_url}",
        f"sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        deadline = time.monotonic() + 30
        while not running.run(lambda started: next(iter(started._security._key_stores.values())).keys.keys):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield running


def at(node, **settings: object) -> dict[str, object]:
    return {
        "bootstrap.servers": f"127.0.0.1:{node.node.addresses['TOKENS'][1]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def round_trip(settings: dict[str, object]) -> None:
    topic = unique()
    with Producer(settings) as producer:
        producer.send(topic, b"value").result(30)
    with Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        assert next(iter(consumer)).value == b"value"
    with BlockingCluster(str(settings["bootstrap.servers"]), settings=settings) as cluster:
        assert cluster.broker_ids == [1]


class Provider:
    """As aiokafka and kafka-python have it."""

    def __init__(self, provider: IdentityProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        return self._provider.issue("alice")


def test_tokens_of_a_function_and_of_an_object(node, provider):
    round_trip(at(node, sasl_oauth_token_provider=lambda: provider.issue("alice")))
    round_trip(at(node, sasl_oauth_token_provider=Provider(provider)))


def test_client_credentials(node, provider):
    names = {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": "alice",
        "sasl.oauthbearer.client.credentials.client.secret": "alice-secret",
    }
    before = provider.tokens_issued
    round_trip({**at(node), **names})
    # One for each of three clients, however many connections they have.
    assert provider.tokens_issued == before + 3


def assertion_settings(provider: IdentityProvider, folder, subject: str) -> dict[str, str]:
    """Settings of a client that has a private key in place of a secret."""
    key = SigningKey(subject, "RS256")
    provider.client_keys[subject] = key.public_pem
    (folder / "key.pem").write_bytes(key.private_pem())
    return {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
        "sasl.oauthbearer.assertion.private.key.file": str(folder / "key.pem"),
        "sasl.oauthbearer.assertion.claim.iss": subject,
        "sasl.oauthbearer.assertion.claim.sub": subject,
        "sasl.oauthbearer.assertion.claim.aud": provider.token_url,
    }


def test_assertions(node, provider, tmp_path):
    round_trip({**at(node), **assertion_settings(provider, tmp_path, "alice")})


def test_a_refused_token_and_a_refused_client(node, provider):
    settings = at(node, sasl_oauth_token_provider=lambda: provider.issue("alice", -60))
    with pytest.raises(AuthenticationError, match=r'refuses the login as .*: \{"status":"invalid_token"\}'):
        Admin(settings)
    with pytest.raises(AuthenticationError, match="invalid_token"):
        BlockingCluster(str(settings["bootstrap.servers"]), settings=settings)
    names = {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "guessed",
    }
    with pytest.raises(AuthenticationError, match=r"no token to log in with: .* answers 401") as caught:
        Admin({**at(node), **names})
    assert "guessed" not in str(caught.value)


def test_tokens_are_replaced_on_the_open_connection(node, provider):
    issued = []

    def issue() -> str:
        issued.append(provider.issue("alice", 3))
        return issued[-1]

    async def main() -> None:
        async with AsyncProducer(at(node, sasl_oauth_token_provider=issue)) as producer:
            topic = unique()
            await producer.send(topic, b"first")
            connections = set(producer.cluster._connections.values())
            # Until the first token has expired and a third one is in use.
            deadline = asyncio.get_running_loop().time() + 60
            while len(issued) < 3:
                assert asyncio.get_running_loop().time() < deadline
                await producer.send(topic, b"value")
                await asyncio.sleep(0.02)
            assert connections & set(producer.cluster._connections.values())

    asyncio.run(main())


@pytest.mark.parametrize("grant", ["client credentials", "assertion"])
def test_a_node_logs_in_at_another(node, provider, tmp_path, grant):
    names = {
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": "node",
        "sasl.oauthbearer.client.credentials.client.secret": "node-secret",
    }
    if grant == "assertion":
        names = assertion_settings(provider, tmp_path, "node")
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol=OAUTHBEARER",
        "sasl.mechanism.controller.protocol=OAUTHBEARER",
        f"{ALLOWED_URLS}={provider.keys_url},{provider.token_url}",
        f"sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
        *(f"{name}={value}" for name, value in names.items()),
    )
    config = parse_config(embedded_properties("data", 0), overrides)
    credentials = read_own_credentials(config, "CONTROLLER", "sasl.mechanism.controller.protocol")
    host, port = node.node.addresses["TOKENS"]

    async def main() -> int:
        loop = asyncio.get_running_loop()
        security = OutboundSecurity(None, credentials)
        _, lifetime_ms = await connect_securely(loop, asyncio.Protocol, host, port, security, client_id="node")
        principals = node.run(lambda started: {str(channel.principal) for channel in started.net._channels})
        assert "User:node" in principals
        return lifetime_ms

    assert 0 < asyncio.run(main()) <= 3_600_000


def test_a_nodes_token_url_must_be_listed(provider):
    overrides = (
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        "sasl.mechanism.controller.protocol=OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url=file:///keys",
        f"sasl.oauthbearer.token.endpoint.url={provider.token_url}",
    )
    with pytest.raises(ValueError, match=r"token\.endpoint\.url=http.* is not in org\.apache"):
        parse_config(embedded_properties("data", 0), overrides)

"""Java's clients and tools log in with bearer tokens, which they request from an identity provider (KIP-768)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.clients import JavaClient
from compat.scripts import MAINS
from compat.test_login import CLIENTS, log_in, use_tools
from harness.identity_provider import IdentityProvider
from harness.process import KlammProcess
from harness.wire import unique
from klamm.net.free_ports import free_ports
from klamm.server.login.bearer_settings import ALLOWED_URLS

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
CLASSES = "org.apache.kafka.common.security.oauthbearer"
UNSECURED = f"{CLASSES}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


class Listeners:
    """A node with a listener for signed tokens and one for unsecured tokens."""

    def __init__(self, folder: Path, provider: IdentityProvider) -> None:
        self.folder = folder
        plaintext, signed, unsecured = free_ports("127.0.0.1", 3)
        self.signed, self.unsecured = f"127.0.0.1:{signed}", f"127.0.0.1:{unsecured}"
        self.node = KlammProcess(
            folder / "node",
            overrides={
                "listeners": (
                    f"PLAINTEXT://127.0.0.1:{plaintext},SIGNED://127.0.0.1:{signed},ANY://127.0.0.1:{unsecured},"
                    "CONTROLLER://127.0.0.1:0"
                ),
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,SIGNED:SASL_PLAINTEXT,ANY:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                ),
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                ALLOWED_URLS: provider.keys_url,
                "listener.name.signed.sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
                "listener.name.any.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
            },
        )
        self.node.port = plaintext

    def settings(self, jaas: str, **values: str) -> str:
        """A file of client settings."""
        path = self.folder / f"{unique('client')}.properties"
        named = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": jaas,
            **{name.replace("_", "."): value for name, value in values.items()},
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
        return str(path)


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[Listeners]:
    made = Listeners(tmp_path_factory.mktemp("tokens"), provider)
    with made.node:
        yield made


def test_java_writes_unsecured_tokens(java: JavaClient, listeners: Listeners) -> None:
    # Three seconds: the producer, which takes five, renews its login with a new token.
    options = 'unsecuredLoginStringClaim_sub="alice" unsecuredLoginLifetimeSeconds="3"'
    use_tools(java, listeners.unsecured, listeners.settings(f"{MODULE} {options};"))


def test_a_signed_listener_refuses_unsecured_tokens(java: JavaClient, listeners: Listeners) -> None:
    settings = listeners.settings(f'{MODULE} unsecuredLoginStringClaim_sub="alice";')
    done = java.tool(
        MAINS["kafka-topics"], "--bootstrap-server", listeners.signed, "--list", "--command-config", settings
    )
    assert done.exit == 1
    assert '{"status":"invalid_token"}' in done.text


class TokenClient(JavaClient):
    """Java's clients connect only to identity providers that a property of the JVM lists."""

    allowed = ""

    def command(self) -> list[str]:
        program, *options = super().command()
        return [program, f"-D{ALLOWED_URLS}={self.allowed}", *options]


@pytest.fixture(scope="module")
def token_java(provider: IdentityProvider) -> Iterator[TokenClient]:
    TokenClient.allowed = provider.token_url
    client = TokenClient()
    yield client
    client.close()


@pytest.mark.parametrize("form", ["JAAS", "settings"])
def test_java_requests_tokens(
    token_java: TokenClient, listeners: Listeners, provider: IdentityProvider, form: str
) -> None:
    provider.lifetime_s = 5
    options = ' clientId="alice" clientSecret="alice-secret"' if form == "JAAS" else ""
    names = {
        "sasl_oauthbearer_client_credentials_client_id": "alice",
        "sasl_oauthbearer_client_credentials_client_secret": "alice-secret",
    }
    settings = listeners.settings(
        f"{MODULE}{options};",
        sasl_oauthbearer_token_endpoint_url=provider.token_url,
        sasl_login_callback_handler_class=f"{CLASSES}.OAuthBearerLoginCallbackHandler",
        **(names if form == "settings" else {}),
    )
    before = provider.tokens_issued
    use_tools(token_java, listeners.signed, settings)
    assert provider.tokens_issued > before


@pytest.mark.parametrize("client", CLIENTS)
def test_other_clients_log_in_with_a_token(listeners: Listeners, provider: IdentityProvider, client: str) -> None:
    order = {"bootstrap": listeners.signed, "mechanism": "OAUTHBEARER"}
    assert log_in(client, **order, token=provider.issue("alice", 3600)) == {"read": 20}
    answer = log_in(client, **order, token=provider.issue("alice", -60))
    assert answer.get("error")
    assert not answer.get("read")

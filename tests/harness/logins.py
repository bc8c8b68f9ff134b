"""A node with a listener for every way to log in, and the settings of clients for each of them."""

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.certificates import Authority
from harness.identity_provider import IdentityProvider
from harness.inprocess import NodeThread
from klamm.client import Admin
from klamm.client.admin.acl_types import ScramMechanism
from klamm.server.login.bearer_settings import ALLOWED_URLS

LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate", "delegation token")
_MODULES = "org.apache.kafka.common.security"
_USER, _PASSWORD = "alice", "alice-secret"
_PLAIN_USERS = f"{_MODULES}.plain.PlainLoginModule required user_{_USER}={_PASSWORD};"


class SecuredListeners:
    """A running node: CLIENTS takes passwords and tokens over TLS, MUTUAL takes certificates."""

    def __init__(self, running: NodeThread, authority: Authority, provider: IdentityProvider) -> None:
        self._running = running
        self._authority = authority
        self.provider = provider
        self._certificate = authority.issue(_USER)
        self._token: tuple[str, str] | None = None

    def settings(self, login: str) -> dict[str, str]:
        """The settings of a client, bootstrap.servers among them."""
        if login == "certificate":
            return {
                **self._at("MUTUAL", "SSL"),
                "ssl.certificate.location": str(self._certificate.certificate),
                "ssl.key.location": str(self._certificate.key),
            }
        if login == "OAUTHBEARER":
            return {
                **self._at("CLIENTS", "SASL_SSL"),
                "sasl.mechanism": login,
                "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
                "sasl.oauthbearer.client.credentials.client.id": _USER,
                "sasl.oauthbearer.client.credentials.client.secret": _PASSWORD,
            }
        if login == "delegation token":
            token_id, hmac = self._make_token()
            jaas = f'{_MODULES}.scram.ScramLoginModule required username="{token_id}" password="{hmac}" tokenauth=true;'
            return {**self._at("CLIENTS", "SASL_SSL"), "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
        return {
            **self._at("CLIENTS", "SASL_SSL"),
            "sasl.mechanism": login,
            "sasl.username": _USER,
            "sasl.password": _PASSWORD,
        }

    def _at(self, listener: str, protocol: str) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self._running.node.addresses[listener][1]}",
            "security.protocol": protocol,
            "ssl.ca.location": str(self._authority.path),
        }

    def _make_token(self) -> tuple[str, str]:
        if self._token is None:
            with Admin(self.settings("PLAIN")) as admin:
                token = admin.create_delegation_token()
            self._token = token.token_id, base64.b64encode(token.hmac).decode()
        return self._token


@contextmanager
def running_listeners(folder: Path) -> Iterator[SecuredListeners]:
    """Run a node until the block ends."""
    authority = Authority(folder)
    files = authority.issue("broker", "127.0.0.1")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(files.key).read_text() + Path(files.certificate).read_text())
    with IdentityProvider() as provider:
        overrides = (
            "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,MUTUAL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={keystore}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={authority.path}",
            "listener.name.mutual.ssl.client.auth=required",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"listener.name.clients.plain.sasl.jaas.config={_PLAIN_USERS}",
            f"{ALLOWED_URLS}={provider.keys_url}",
            f"sasl.oauthbearer.jwks.endpoint.url={provider.keys_url}",
            "delegation.token.secret.key=master",
        )
        with NodeThread(folder / "node", *overrides) as running:
            listeners = SecuredListeners(running, authority, provider)
            with Admin(listeners.settings("PLAIN")) as admin:
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                    # One request each: a user may be in a request once.
                    admin.alter_user_scram_credentials({(_USER, mechanism): _PASSWORD})
            _await_keys(running)
            yield listeners


def _await_keys(running: NodeThread) -> None:
    deadline = time.monotonic() + 30
    while not running.run(_has_keys):
        assert time.monotonic() < deadline, "the node has not fetched the keys of the identity provider"
        time.sleep(0.01)


def _has_keys(node) -> bool:
    return all(store.keys.keys for store in node._security._key_stores.values())

"""The users of a secured cluster: how they log in, and what its nodes are formatted with."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any

from klamm.net.outbound import OutboundSecurity
from klamm.protocol.messages.metadata_records import UserScramCredentialRecord
from klamm.security import login as client_login
from klamm.security.core.scram import ITERATIONS_MIN, SCRAM_SHA_256, ScramKeys, keys_from_salted
from klamm.security.core.secret import Secret
from klamm.security.login import ClientCredentials
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER
from klamm.server.login import security as server_login
from simulation.tls import client_context, tls_settings

NODE = "node"
ADMIN = "admin"
LOAD = "load"
"""The user of all clients whose requests are never denied."""
GUESTS = ("guest-0", "guest-1")
"""Users whose rights and passwords change."""
MECHANISM = SCRAM_SHA_256
LISTENER = "SASL"

_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def secured_settings(roles: str, *, tls: bool) -> dict[str, str]:
    """The settings of a node with an authorizer, all of whose listeners require logins, and TLS if need be.

    Nodes log in with PLAIN: the credentials of SCRAM are in the log that the quorum's listener serves.
    """
    module = f'{_PLAIN_MODULE} required username="{NODE}" password="{NODE}" user_{NODE}="{NODE}";'
    protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    settings = {
        "listener.security.protocol.map": f"{LISTENER}:{protocol},CONTROLLER:{protocol}",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": module,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{NODE};User:{ADMIN}",
    }
    if "broker" in roles:
        settings |= {
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl.sasl.enabled.mechanisms": f"PLAIN,{MECHANISM.name}",
            "listener.name.sasl.plain.sasl.jaas.config": module,
        }
    return settings | (tls_settings() if tls else {})


def first_password(user: str) -> str:
    """The password that a cluster is formatted with."""
    return f"{user}-secret"


@lru_cache(maxsize=4096)
def salt_password(password: str, salt: bytes) -> bytes:
    """What AlterUserScramCredentials sends of a password; remembered, because it takes milliseconds."""
    return MECHANISM.salt_password(password.encode(), salt, ITERATIONS_MIN)


def make_keys(password: str, salt: bytes) -> ScramKeys:
    """The credential of a password."""
    return keys_from_salted(MECHANISM, salt_password(password, salt), salt, ITERATIONS_MIN)


def first_credentials() -> list[UserScramCredentialRecord]:
    """The records of `klamm storage format --add-scram`."""
    records = []
    for user in (ADMIN, LOAD, *GUESTS):
        keys = make_keys(first_password(user), user.encode().ljust(16))
        records.append(
            UserScramCredentialRecord(
                name=user,
                mechanism=MECHANISM.number,
                salt=keys.salt,
                stored_key=keys.stored_key,
                server_key=keys.server_key,
                iterations=keys.iterations,
            )
        )
    return records


def login_as(user: str, password: str, *, tls: bool) -> OutboundSecurity:
    """How a client connects."""
    credentials = ClientCredentials(MECHANISM.name, user, Secret(password))
    return OutboundSecurity(client_context if tls else None, credentials)


class _SeededSecrets:
    """`secrets` by a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def token_bytes(self, count: int) -> bytes:
        """Bytes."""
        return self._random.randbytes(count)

    def token_urlsafe(self, count: int) -> str:
        """Text, always of the same length."""
        return self._random.randbytes(count).hex()


@contextmanager
def seeded_secrets(random: Random) -> Iterator[None]:
    """Let nonces come from a seed.

    Elsewhere they come from the operating system whatever the environment of a node, since a nonce that can be guessed
    can be replayed.
    """
    modules: list[Any] = [client_login, server_login]
    before = [module.secrets for module in modules]
    for module in modules:
        module.secrets = _SeededSecrets(random)
    try:
        yield
    finally:
        for module, secrets in zip(modules, before, strict=True):
            module.secrets = secrets

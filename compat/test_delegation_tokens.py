"""Delegation tokens by Kafka's own tool and by ours, and Java's clients that log in with a token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.clients import JavaClient
from compat.scripts import MAINS, run_klamm
from compat.test_login import PLAIN, SCRAM, log_in, use_tools
from harness.process import KlammProcess
from harness.wire import unique
from klamm.net.free_ports import free_ports

TOOL = "kafka-delegation-tokens"


class Listener:
    """A node with a listener for users, and for tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        plaintext, clients = free_ports("127.0.0.1", 2)
        self.bootstrap = f"127.0.0.1:{clients}"
        self.node = KlammProcess(
            folder / "node",
            overrides={
                "listeners": (
                    f"PLAINTEXT://127.0.0.1:{plaintext},CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:0"
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
                "delegation.token.secret.key": "the key of all nodes",
            },
        )
        self.node.port = plaintext

    def settings(self, mechanism: str, jaas: str) -> str:
        """A file of client settings."""
        path = self.folder / f"{unique('client')}.properties"
        named = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
        path.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
        return str(path)


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    made = Listener(tmp_path_factory.mktemp("tokens"))
    with made.node:
        yield made


@pytest.fixture(scope="module")
def where(listener: Listener) -> tuple[str, ...]:
    settings = listener.settings("PLAIN", f'{PLAIN} username="alice" password="alice-secret";')
    return ("--bootstrap-server", listener.bootstrap, "--command-config", settings)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_logs_in_with_a_token(
    java: JavaClient, listener: Listener, where: tuple[str, ...], mechanism: str
) -> None:
    done = java.tool(MAINS[TOOL], *where, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    assert done.exit == 0, done.text
    token_id, password, owner = done.out.splitlines()[-1].split()[:3]
    assert owner == "User:alice"
    jaas = f'{SCRAM} username="{token_id}" password="{password}" tokenauth="true";'
    use_tools(java, listener.bootstrap, listener.settings(mechanism, jaas))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_franz_go_logs_in_with_a_token(listener: Listener, where: tuple[str, ...], mechanism: str) -> None:
    done = run_klamm(TOOL, *where, "--create", "--max-life-time-period", "-1")
    token_id, password = done.out.splitlines()[-1].split()[:2]
    order = {"bootstrap": listener.bootstrap, "mechanism": mechanism, "user": token_id, "password": password}
    assert log_in("franz-go", **order, delegation_token=True) == {"read": 20}


def test_both_tools_print_the_same(java: JavaClient, where: tuple[str, ...]) -> None:
    done = run_klamm(TOOL, *where, "--create", "--max-life-time-period", "1000000", "--renewer-principal", "User:bob")
    assert done.exit == 0, done.text
    password = done.out.splitlines()[-1].split()[1]
    # Kafka's tool without --owner-principal sends an empty list, which brokers answer with no token, against its help.
    for arguments in (
        ("--describe", "--owner-principal", "User:alice"),
        ("--describe", "--owner-principal", "User:unknown"),
        ("--renew", "--hmac", password, "--renew-time-period", "1000000"),
        ("--expire", "--hmac", password, "--expiry-time-period", "-1"),
    ):
        ours, theirs = run_klamm(TOOL, *where, *arguments), java.tool(MAINS[TOOL], *where, *arguments)
        if arguments[0] != "--expire":
            assert ours.out == theirs.out
            assert (ours.exit, theirs.exit) == (0, 0)
    # The second of two that expire the same token.
    assert theirs.exit == 1
    assert "DelegationTokenNotFoundException" in theirs.err
    again = run_klamm(TOOL, *where, "--expire", "--hmac", password, "--expiry-time-period", "-1")
    assert again.exit == 1
    # The texts of errors are the client's own.
    assert again.err.partition(":")[0] == theirs.err.partition(":")[0]

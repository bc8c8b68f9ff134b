"""`klamm up --secure`: a node with TLS, passwords and rights, and the context with which commands reach it.

One folder has everything: `certs/`, `server.properties` with the passwords of the node, `admin.properties` for clients,
and `data/`. The first start makes it, later ones use it as it is. The files are readable for their owner only.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

import click

from klamm.cli.command_errors import CommandRefusal

FOLDER: Final = ".klamm-secure"
CONTEXT: Final = "secure"
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
_SERVER: Final = "server.properties"
_CLIENT: Final = "admin.properties"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def prepare(folder: str, *, host: str, port: int) -> str:
    """Make certificates, users and settings unless they are there; returns the path of server.properties."""
    folder = os.path.abspath(folder)
    path = os.path.join(folder, _SERVER)
    if os.path.exists(path):
        return path
    if os.path.isdir(folder) and os.listdir(folder):
        raise CommandRefusal(f"{folder} holds other files and no secure node; choose an empty folder with --data")
    if not port:
        raise CommandRefusal("--secure writes the port into the context; choose one with --port")
    # Last: a start that is interrupted before it begins anew.
    passwords = {user: secrets.token_urlsafe(24) for user in (ADMIN, "broker", "controller")}
    _make_certificates(os.path.join(folder, "certs"), host)
    properties = _properties(folder, host, port, passwords)
    _format(properties, passwords)
    _write_private(os.path.join(folder, _CLIENT), _client_settings(folder, passwords[ADMIN]))
    _write_private(path, properties)
    return path


def save_context(folder: str, *, host: str, port: int) -> None:
    """Store the context of the node and make it the current one."""
    from klamm.cli.client_settings import read_properties
    from klamm.cli.context_file import Context, load, save

    settings = read_properties(os.path.join(folder, _CLIENT))
    contexts = load()
    contexts.contexts[CONTEXT] = Context(f"{_bracketed(host)}:{port}", settings=settings)
    contexts.current = CONTEXT
    save(contexts)
    click.echo(
        f"The context {CONTEXT!r} is in use: commands log in as {ADMIN}. Settings for other clients are in"
        f" {os.path.join(folder, _CLIENT)}.",
        err=True,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _make_certificates(folder: str, host: str) -> None:
    from klamm.cli.certs import issue, make_authority

    make_authority(folder)
    issue(folder, "node", tuple(dict.fromkeys((host, "localhost", "127.0.0.1"))))


def _properties(folder: str, host: str, port: int, passwords: dict[str, str]) -> dict[str, str]:
    controller = passwords["controller"]
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        # No other node connects to it: any free port will do.
        "controller.quorum.voters": "1@127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://{_bracketed(host)}:{port},CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "CLIENTS",
        "log.dirs": os.path.join(folder, "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.path.join(folder, "certs", "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": os.path.join(folder, "certs", "ca.pem"),
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.clients.{MECHANISM.lower()}.sasl.jaas.config": (
            f'{_SCRAM} username="broker" password="{passwords["broker"]}";'
        ),
        # SCRAM credentials are in the log that the controller serves, so its own listener cannot use them.
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{_PLAIN} username="controller" password="{controller}" user_controller="{controller}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:broker;User:controller",
    }


def _client_settings(folder: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": ADMIN,
        "sasl.password": password,
        "ssl.ca.location": os.path.join(folder, "certs", "ca.pem"),
    }


def _format(properties: dict[str, str], passwords: dict[str, str]) -> None:
    from klamm.model.ids import uuid_to_str
    from klamm.model.properties import format_properties
    from klamm.server.boot.config import parse_config
    from klamm.server.boot.first_records import parse_scram_credential
    from klamm.server.boot.format import format_folders, random_uuid

    config = parse_config(format_properties(properties), source="the settings of --secure")
    records = [
        parse_scram_credential(f'{MECHANISM}=[name={user},password="{passwords[user]}"]') for user in (ADMIN, "broker")
    ]
    format_folders(config, uuid_to_str(random_uuid()), first_records=records, ignore_formatted=True)


def _write_private(path: str, values: dict[str, str]) -> None:
    from klamm.model.properties import format_properties

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(format_properties(values))

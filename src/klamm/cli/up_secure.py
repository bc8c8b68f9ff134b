"""`klamm up --secure`: a node with TLS, passwords and rights, and the context with which commands reach it.

One folder has everything: `certs/`, `server.properties` with the passwords of the node, `admin.properties` for clients,
and `data/`. The first start makes it, later ones use it as it is; `--port` then applies to one run. The files are
readable for their owner only. A first start that fails or is interrupted leaves a marker, by which the next one knows
that it may remove what is there and begin anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Final

import click

from klamm.cli.command_errors import CommandRefusal, explain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.cli.context_file import Context

FOLDER: Final = ".klamm-secure"
CONTEXT: Final = "secure"
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
_HOST: Final = "127.0.0.1"
_PORT: Final = 9092
_LISTENER: Final = "CLIENTS"
_TRUST: Final = "ssl.ca.location"
_SERVER: Final = "server.properties"
_CLIENT: Final = "admin.properties"
_CERTIFICATES: Final = "certs"
_DATA: Final = "data"
_UNFINISHED: Final = ".unfinished"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def prepare(folder: str, *, host: str | None, port: int | None) -> str:
    """Make certificates, users and settings unless they are there; returns the path of server.properties.

    `host` and `port` are None where the command line has none.
    """
    if port == 0:
        raise CommandRefusal("--secure writes the port into the context; choose one with --port")
    folder = os.path.abspath(folder)
    path = os.path.join(folder, _SERVER)
    if os.path.exists(path):
        return path
    with _mark_unfinished(folder):
        if not os.path.exists(path):  # another start may have made it until now
            _make_node(folder, host or _HOST, port or _PORT)
    return path


@contextlib.contextmanager
def _mark_unfinished(folder: str) -> Iterator[None]:
    """Mark a folder as one that holds nothing but an unfinished node, until it is finished."""
    entries = os.listdir(folder) if os.path.isdir(folder) else []
    if entries and _UNFINISHED not in entries:
        raise CommandRefusal(f"{folder} holds other files and no secure node; choose an empty folder with --data")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    marker = os.path.join(folder, _UNFINISHED)
    with open(marker, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandRefusal(f"another start is making the node in {folder}; wait for it") from None
        yield
        with contextlib.suppress(FileNotFoundError):
            os.unlink(marker)


def _make_node(folder: str, host: str, port: int) -> None:
    # All of it anew: data that is formatted already has passwords that are in no file.
    for part in (os.path.join(folder, name) for name in (_CERTIFICATES, _DATA)):
        if os.path.isdir(part):
            shutil.rmtree(part)
    passwords = {user: secrets.token_urlsafe(24) for user in (ADMIN, "broker", "controller")}
    _make_certificates(os.path.join(folder, _CERTIFICATES), host)
    properties = _properties(folder, host, port, passwords)
    _format(properties, passwords)
    _write_private(os.path.join(folder, _CLIENT), _client_settings(folder, passwords[ADMIN]))
    # Last, and complete or not at all: later starts take a folder that has it for a finished node.
    new = os.path.join(folder, f"{_SERVER}.new")
    _write_private(new, properties)
    os.replace(new, os.path.join(folder, _SERVER))


def client_file(folder: str) -> str:
    """Return the path of the client settings of the admin."""
    return os.path.join(os.path.abspath(folder), _CLIENT)


def override_listeners(path: str, *, host: str | None, port: int | None) -> tuple[str, ...]:
    """Return the override with which a later start listens where its options say; none where that is as stored."""
    from klamm.cli.client_settings import read_properties

    listeners = read_properties(path)["listeners"].split(",")
    index = next((i for i, text in enumerate(listeners) if text.strip().startswith(f"{_LISTENER}://")), None)
    if index is None:
        if host is None and port is None:
            return ()
        raise CommandRefusal(
            f"{path} has no listener {_LISTENER}; change its listeners there, without --host and --port"
        )
    stored_host, _, stored_port = listeners[index].strip().removeprefix(f"{_LISTENER}://").rpartition(":")
    # Clients compare the host with the names of the certificate, which is issued once.
    if host is not None and _format_host(host) != stored_host:
        raise CommandRefusal(
            f"the node of {os.path.dirname(path)} has a certificate for {stored_host}, not for {host};"
            " leave --host out, or make another node with --data"
        )
    if port is None or str(port) == stored_port:
        return ()
    listeners[index] = f"{_LISTENER}://{stored_host}:{port}"
    return (f"listeners={','.join(listeners)}",)


def save_context(folder: str, *, host: str, port: int) -> None:
    """Store the context of the node and make it the current one."""
    from klamm.cli.client_settings import read_properties
    from klamm.cli.context_file import Context, load, save

    client = os.path.join(folder, _CLIENT)
    settings = read_properties(client)
    contexts = load()
    name = choose_name(contexts.contexts, settings[_TRUST])
    previous = contexts.contexts.get(name)
    contexts.contexts[name] = Context(
        f"{_format_host(host)}:{port}", protected=previous is not None and previous.protected, settings=settings
    )
    contexts.current = name
    try:
        save(contexts)
    except OSError as error:
        # The node serves already, and clients can use the file.
        click.echo(f"klamm: the context cannot be saved: {explain(error)}; use {client}", err=True)
        return
    other = "" if name == CONTEXT else f" ({CONTEXT!r} belongs to another cluster)"
    click.echo(
        f"The context {name!r} is in use{other}: commands log in as {ADMIN}."
        f" Settings for other clients are in {client}.",
        err=True,
    )


def choose_name(contexts: Mapping[str, Context], authority: str) -> str:
    """Return the name of the context that trusts this authority, or else a free one: `secure`, `secure-2`, ..."""
    names = itertools.chain((CONTEXT,), (f"{CONTEXT}-{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in contexts or contexts[name].settings.get(_TRUST) == authority)


def _format_host(host: str) -> str:
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
        "listeners": f"{_LISTENER}://{_format_host(host)}:{port},CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": _LISTENER,
        "log.dirs": os.path.join(folder, _DATA),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.path.join(folder, _CERTIFICATES, "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": os.path.join(folder, _CERTIFICATES, "ca.pem"),
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
        _TRUST: os.path.join(folder, _CERTIFICATES, "ca.pem"),
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

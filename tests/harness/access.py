"""A node with an authorizer in the test's process, connections with chosen principals, and ACLs without a log.

PLAINTEXT connections are User:ANONYMOUS, which is a super user here and prepares what a test needs.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.ids import Uuid
from klamm.security.core.acl import AccessControlEntry, EntryFilter
from klamm.security.core.principal import parse_principal
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER
from klamm.server.node import KlammNode

TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TRANSACTIONAL_ID_DENIED = 29, 30, 31, 53
DENIALS = {TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TRANSACTIONAL_ID_DENIED}

Grant = tuple[AclResourceType, str, AclOperation]


def secured_node(folder: Path, *overrides: str) -> NodeThread:
    """A node with an authorizer, whose only super user is User:ANONYMOUS."""
    return NodeThread(folder, f"authorizer.class.name={STANDARD_AUTHORIZER}", "super.users=User:ANONYMOUS", *overrides)


def connect_as(node: NodeThread, principal: str, *, port: int | None = None) -> Wire:
    """A connection that the node takes for one of `principal`."""
    wire = Wire(port or node.port)
    # Answered, so that the node has accepted it.
    wire.call("api_versions", 0)
    node.run(_set_principal, wire.sock.getsockname()[1], principal)
    return wire


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL_LISTENER = (
    "listeners=PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms=PLAIN",
    f'listener.name.sasl.plain.sasl.jaas.config={PLAIN_MODULE} required user_alice="one" user_bob="two";',
)
"""Overrides for a listener on which alice and bob log in."""


def log_in(node: NodeThread, user: str, password: str) -> Wire:
    """A connection to the listener of SASL_LISTENER, logged in with PLAIN."""
    wire = Wire(node.node.addresses["SASL"][1])
    assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    reply = wire.call("sasl_authenticate", 1, auth_bytes=f"\0{user}\0{password}".encode())
    assert reply.error_code == 0, reply
    return wire


def _set_principal(node: KlammNode, peer_port: int, principal: str) -> None:
    channel = next(channel for channel in node.net._channels if channel.peer_address[1] == peer_port)
    channel.principal = parse_principal(principal)


def set_entries(node: NodeThread, entries: Iterable[AccessControlEntry]) -> None:
    """Make these the ACLs of the node, without its log."""
    node.run(_set_entries, list(entries))


def _set_entries(node: KlammNode, entries: list[AccessControlEntry]) -> None:
    access = node.services.access
    assert access is not None
    changed: dict[Uuid, AccessControlEntry | None] = dict.fromkeys(access.authorizer._entries)
    changed.update({Uuid(number.to_bytes(16)): entry for number, entry in zip(itertools.count(1), entries)})
    access.authorizer.update(changed)
    access._forget_prefixes()
    assert len(access.authorizer.find(EntryFilter())) == len(set(entries))


def allow(principal: str, grants: Iterable[Grant]) -> list[AccessControlEntry]:
    """Entries that allow a principal operations on resources, by name."""
    return [
        AccessControlEntry(resource_type, name, PatternType.LITERAL, principal, "*", operation, AclPermission.ALLOW)
        for resource_type, name, operation in grants
    ]


def collect_codes(reply: Any) -> list[int]:
    """Every error code of a reply, at whatever depth."""
    codes: list[int] = []
    if isinstance(reply, tuple | list):
        for item in reply:
            codes += collect_codes(item)
    elif hasattr(reply, "__dataclass_fields__"):
        for name in reply.__dataclass_fields__:
            value = getattr(reply, name)
            if name.endswith("error_code"):
                codes.append(int(value))
            else:
                codes += collect_codes(value)
    return codes

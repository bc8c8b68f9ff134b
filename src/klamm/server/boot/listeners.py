"""Listeners in Kafka's form, NAME://host:port, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ConfigError

# Kafka accepts an empty host, for all interfaces, and IPv6 in brackets.
_LISTENER: Final = re.compile(r"([A-Za-z0-9_-]+)://(\[[0-9a-fA-F:.%]*\]|[^\[\]:/@\s]*):(-?[0-9]+)")

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address. An empty host listens on every interface; port 0 takes a free one."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host in ("localhost", "127.0.0.1", "::1"):
            return True
        import ipaddress  # noqa: PLC0415 - rarely needed, and a start is short

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class VoterAddress:
    """A member of the metadata quorum and the address of its controller listener."""

    node_id: int
    host: str
    port: int


def parse_voter_address(text: str) -> VoterAddress:
    """Parse an entry of controller.quorum.voters, id@host:port, whose form was checked before."""
    node_id, _, address = text.partition("@")
    host, _, port = address.rpartition(":")
    return VoterAddress(int(node_id), host.strip("[]"), int(port))


def parse_listeners(setting: str, texts: Iterable[str], protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """Parse the listeners of a config; `protocols` has the security protocol of each name."""
    listeners: dict[str, Listener] = {}
    for text in texts:
        listener = _parse_listener(setting, text, protocols)
        if listener.name in listeners:
            raise ConfigError(f"{setting} has two listeners called {listener.name}; give each a name of its own")
        listeners[listener.name] = listener
    return tuple(listeners.values())


def check_ports(listeners: Iterable[Listener]) -> None:
    """Raise ConfigError for two listeners on one port, unless one is IPv4 and the other IPv6 or the port is 0."""
    by_port: dict[int, Listener] = {}
    for listener in listeners:
        other = by_port.get(listener.port)
        if other is not None and listener.port and (":" in other.host) == (":" in listener.host):
            raise ConfigError(
                f"listeners {other} and {listener} share port {listener.port}; write another port for one of them"
            )
        by_port[listener.port] = listener


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse listener.security.protocol.map into the protocol of each listener name."""
    protocols: dict[str, str] = {}
    for entry in filter(None, re.split(r"\s*,\s*", text.strip())):
        name, colon, protocol = entry.rpartition(":")
        if not colon or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map has {entry!r};"
                f" write NAME:PROTOCOL with one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        if name.upper() in protocols:
            raise ConfigError(f"listener.security.protocol.map names {name.upper()} twice; keep one of the entries")
        protocols[name.upper()] = protocol
    return protocols


def parse_metrics_listeners(setting: str, texts: Iterable[str]) -> tuple[Listener, ...]:
    """Parse addresses of HTTP listeners: host:port, or HTTP://host:port as `listeners` has them."""
    listeners = []
    for text in texts:
        match = _LISTENER.fullmatch(text.strip() if "://" in text else f"HTTP://{text.strip()}")
        if match is None or match.group(1).upper() != "HTTP" or not match.group(2):
            raise ConfigError(f"{setting} has {text!r}; write host:port, e.g. 127.0.0.1:9404")
        port = int(match.group(3))
        if not 0 <= port <= 65535:
            raise ConfigError(f"{setting} has port {port} in {text!r}; write a port from 0 to 65535")
        listeners.append(Listener("HTTP", match.group(2).strip("[]"), port))
    check_ports(listeners)
    return tuple(listeners)


def _parse_listener(setting: str, text: str, protocols: Mapping[str, str]) -> Listener:
    match = _LISTENER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{setting} has {text!r}; write NAME://host:port, e.g. PLAINTEXT://localhost:9092")
    name, host, port = match.group(1).upper(), match.group(2).strip("[]"), int(match.group(3))
    if not 0 <= port <= 65535:
        raise ConfigError(f"{setting} has port {port} in {text!r}; write a port from 0 to 65535")
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{setting} has listener {name}, whose security protocol is unknown;"
            f" write listener.security.protocol.map={name}:PLAINTEXT,... (the map has {', '.join(protocols)})"
        )
    return Listener(name, host, port, protocol)

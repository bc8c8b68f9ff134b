"""The limits of connections: from the settings of the node, and from the dynamic ones whenever they change."""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.config import SettingValue
from klamm.model.config_resources import ResourceType
from klamm.model.config_rules import parse_overrides
from klamm.model.errors import ConfigError
from klamm.net import NetServer
from klamm.net.core.connection_quotas import ConnectionLimits
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.telemetry.log import get_logger

log = get_logger("net")

MAX_CONNECTIONS = "max.connections"
CREATION_RATE = "max.connection.creation.rate"


def read_connection_limits(values: Mapping[str, SettingValue], listeners: Sequence[str]) -> ConnectionLimits:
    """Return the limits; overrides of host names have the names for keys (`resolve_overrides`)."""

    def integer(name: str) -> int:
        value = values.get(name)
        value = BROKER_CONFIGS.default(name) if value is None else value
        assert isinstance(value, int)
        return value

    def of_listeners(name: str) -> dict[str, int]:
        keys = {listener: f"listener.name.{listener.lower()}.{name}" for listener in listeners}
        return {listener: value for listener, key in keys.items() if isinstance(value := values.get(key), int)}

    return ConnectionLimits(
        connections=integer(MAX_CONNECTIONS),
        connections_per_ip=integer("max.connections.per.ip"),
        per_ip_overrides=parse_overrides(str(values.get("max.connections.per.ip.overrides") or "")),
        creation_rate=integer(CREATION_RATE),
        listener_connections=of_listeners(MAX_CONNECTIONS),
        listener_creation_rates=of_listeners(CREATION_RATE),
    )


def has_names(overrides: Mapping[str, int]) -> bool:
    """Whether some overrides are of host names, which have to be resolved."""
    return not all(map(_is_address, overrides))


def resolve_overrides(overrides: Mapping[str, int]) -> dict[str, int]:
    """Return the overrides by address; ConfigError for a host that has none. May block."""
    resolved: dict[str, int] = {}
    for host, limit in overrides.items():
        if _is_address(host):
            resolved[host] = limit
            continue
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigError(
                f"max.connections.per.ip.overrides names host {host}, which has no address: {error.strerror}"
            ) from None
        resolved.update((str(address[0]), limit) for *_, address in entries)
    return resolved


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class ConnectionLimitsPublisher:
    """Applies changed limits to the sockets of this node."""

    def __init__(self, node_id: int, settings: BrokerSettings, net: NetServer, listeners: Sequence[str]) -> None:
        self._resources = (str(node_id), "")
        self._settings = settings
        self._net = net
        self._listeners = listeners
        self._limits = net.config.limits
        self._resolving: asyncio.Task[None] | None = None

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the limits of the image if a broker config has changed."""
        if not any(
            resource.type == ResourceType.BROKER and resource.name in self._resources
            for resource in delta.configs_changed
        ):
            return
        limits = read_connection_limits(self._settings.values(image), self._listeners)
        if limits == self._limits:
            return
        self._limits = limits
        if has_names(limits.per_ip_overrides):
            # In a thread: a name server may take seconds.
            self._resolving = asyncio.get_running_loop().create_task(self._resolve(limits), name="resolve overrides")
        else:
            self._net.set_limits(limits)

    async def _resolve(self, limits: ConnectionLimits) -> None:
        overrides: Mapping[str, int] = {}
        try:
            overrides = await asyncio.to_thread(resolve_overrides, limits.per_ip_overrides)
        except ConfigError as error:
            log.warning("connection limits of single addresses ignored", reason=error)
        # Another change may have come meanwhile.
        if limits is self._limits:
            self._net.set_limits(replace(limits, per_ip_overrides=overrides))

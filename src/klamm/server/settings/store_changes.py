"""Key and trust stores of listeners that change while the node runs (KIP-226).

A change is checked by the broker that it concerns before the controller stores it: files are read, subject and names of
the certificate compared. It is applied when it is committed. New handshakes then use it; one that cannot be used any
more leaves the last good store in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.model.broker_configs import is_store_setting, read_broker_values
from klamm.model.config_resources import ResourceType
from klamm.model.errors import ConfigError
from klamm.server.boot.listener_security import read_tls, uses_tls
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.metadata.delta import MetadataDelta
    from klamm.metadata.image import MetadataImage
    from klamm.security.tls import TlsSettings
    from klamm.server.boot.config import NodeConfig
    from klamm.server.login.security import NodeSecurity

log = get_logger("login")


class StoreChanges:
    """The stores of this node's listeners, as its dynamic configs have them."""

    def __init__(self, config: NodeConfig, security: NodeSecurity) -> None:
        self._config = config
        self._security = security

    def check(self, current: Mapping[str, str], changed: Mapping[str, str | None]) -> None:
        """Raise ConfigError for changes that this node cannot apply; None returns a config to the file's value."""
        texts = {name: text for name, text in {**current, **changed}.items() if text is not None}
        listeners = self._listeners_of(changed)
        for name in listeners:
            if not self._security.stores(name):
                raise ConfigError(f"listener {name} has no TLS; write its stores in the properties file and restart")
        for name, settings in self._read(texts, listeners).items():
            for store in self._security.stores(name):
                store.check(settings)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the stores of the image if a config of this broker has changed."""
        own = str(self._config.node_id)
        if not any(resource.type == ResourceType.BROKER and resource.name == own for resource in delta.configs_changed):
            return
        texts = image.broker_configs(self._config.node_id)
        listeners = [name for name in self._config.security_protocols if self._security.stores(name)]
        for listener in listeners:
            try:
                for settings in self._read(texts, [listener]).values():
                    for store in self._security.stores(listener):
                        store.change(settings)
                    log.info("certificate changed", listener=listener)
            except ConfigError as error:
                log.warning("certificate not changed", listener=listener, reason=error)
        # The same path again asks for its file to be read again.
        self._security.reload_changed()

    def _listeners_of(self, changed: Mapping[str, str | None]) -> list[str]:
        prefixes = {f"listener.name.{name.lower()}.": name for name in self._config.security_protocols}
        names = []
        for setting in filter(is_store_setting, changed):
            prefix = setting[: setting.index(".", len("listener.name.")) + 1]
            if prefix not in prefixes:
                raise ConfigError(f"{setting} is a setting of a listener that is in no listener map")
            names.append(prefixes[prefix])
        return list(dict.fromkeys(names))

    def _read(self, texts: Mapping[str, str], listeners: list[str]) -> dict[str, TlsSettings]:
        """Return the settings of those listeners whose stores differ from the present ones."""
        dynamic = read_broker_values({name: text for name, text in texts.items() if is_store_setting(name)})
        config = self._config.with_values(dynamic)
        changed: dict[str, TlsSettings] = {}
        for name in listeners:
            protocol = config.security_protocols[name]
            if not uses_tls(protocol):
                continue
            try:
                settings = read_tls(config, name, protocol)
            except ConfigError as error:
                raise ConfigError(f"listener {name}: {error}") from None
            # An unchanged path with a broken file behind it is no error, as in Kafka: the last good one stays.
            if any(store.settings != settings for store in self._security.stores(name)):
                changed[name] = settings
        return changed

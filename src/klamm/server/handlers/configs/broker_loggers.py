"""The loggers of this broker as configs of type BROKER_LOGGER: one, `root`, with the level of all log lines.

The broker changes a level itself, without the controller, and a restart resets it, as in Kafka.
"""

from typing import Final

from klamm.model.config import ConfigType
from klamm.model.config_describe import DescribedConfig
from klamm.model.config_sources import ConfigSource
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.incremental_alter_configs import AlterConfigsResource
from klamm.telemetry.log import Level, configure, get_logger

ROOT: Final = "root"
SET, DELETE = 0, 1
_LEVELS: Final = {
    "DEBUG": Level.DEBUG,
    "ERROR": Level.ERROR,
    "FATAL": Level.ERROR,
    "INFO": Level.INFO,
    "TRACE": Level.DEBUG,
    "WARN": Level.WARNING,
}
"""Kafka's names; FATAL and TRACE, which Klamm does not have, are taken for the nearest level."""
_NAMES: Final = {Level.DEBUG: "DEBUG", Level.INFO: "INFO", Level.WARNING: "WARN", Level.ERROR: "ERROR"}


def check_owner(name: str, node_id: int) -> None:
    """Raise KlammError unless the resource names this broker."""
    # Kafka's text, which its tools print.
    if name != str(node_id):
        raise KlammError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name or 'nothing'}"
        )


def describe() -> list[DescribedConfig]:
    """Return the root logger with its level."""
    log = get_logger(ROOT)
    name = next((name for level, name in _NAMES.items() if log.enabled(level)), "FATAL")
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    doc = "From which level on lines are written."
    return [DescribedConfig(ROOT, name, source, (), ConfigType.STRING, doc, read_only=False, sensitive=False)]


def alter(resource: AlterConfigsResource, node_id: int, *, validate_only: bool) -> None:
    """Set the level; an invalid change raises KlammError before anything is changed."""
    check_owner(resource.resource_name, node_id)
    level: Level | None = None
    for config in resource.configs:
        if config.name != ROOT:
            raise KlammError(ErrorCode.INVALID_CONFIG, f"Logger {config.name} does not exist! There is {ROOT}.")
        if config.config_operation == DELETE:
            raise KlammError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        if config.config_operation != SET:
            raise KlammError(ErrorCode.INVALID_REQUEST, "A log level can only be set, not appended or subtracted")
        if config.value not in _LEVELS:
            raise KlammError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {config.name} to {config.value} as it is not a supported log level."
                f" Valid log levels are {', '.join(_LEVELS)}",
            )
        # Applied below, once all entries are valid.
        level = _LEVELS[config.value]
    if level is not None and not validate_only:
        configure(level)

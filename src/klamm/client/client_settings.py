"""The settings of one client: validated, with defaults, and checked against each other."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from klamm.client.config import (
    ADMIN_CONFIGS,
    CONSUMER_CONFIGS,
    LIST,
    OBJECT,
    PRODUCER_CONFIGS,
    ClientConfigDef,
    similarity,
)
from klamm.client.unsupported_settings import is_unset, refusal
from klamm.model.config import MAX_LONG, Required
from klamm.model.errors import ConfigError

_log = logging.getLogger(__name__)

_logged: Final[set[str]] = set()
"""Ignored settings that were logged: once per process, however many clients it has."""


class ClientSettings(Mapping[str, Any]):
    """The validated settings of one client, defaults included."""

    def __init__(
        self, definition: ClientConfigDef, given: Mapping[str, Any] | None, keywords: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(given, Mapping | None):
            raise TypeError(f'settings are a mapping, e.g. {{"bootstrap.servers": "localhost:9092"}}, not {given!r}')
        self.by_name: dict[str, Any] = {}
        self.given: set[str] = set()
        for name, value in (given or {}).items():
            self._set(definition, name, value)
        for keyword, value in (keywords or {}).items():
            name = keyword.replace("_", ".")
            before = self.by_name.get(name)
            self._set(definition, name, value)
            if before is not None and self.by_name[name] != before:
                raise ConfigError(f"{name} is given twice with different values, as {name} and as {keyword}: keep one")
        for key in definition:
            if key.name not in self.by_name:
                if isinstance(key.default, Required):
                    raise ConfigError(f"{key.name} is missing: write host:port, e.g. localhost:9092")
                self.by_name[key.name] = key.default
        callback = self.by_name["statistics.callback"]
        _require(callback is None or callable(callback), f"statistics.callback={callback!r} is no function")

    def _set(self, definition: ClientConfigDef, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"{name!r} is no name of a setting: names are text, e.g. bootstrap.servers")
        # A file of settings for Java often lists defaults, such as sasl.jaas.config=: those change nothing.
        if name not in definition and refusal(name) is not None and is_unset(value):
            return
        key = definition.key(name)
        if value is None:
            return
        if name in definition.ignored and name not in _logged and not is_unset(value):
            _logged.add(name)
            _log.warning("%s has no effect here: %s", name, definition.ignored[name])
        if key.type is OBJECT:
            parsed = value
        elif key.type is LIST and isinstance(value, Iterable) and not isinstance(value, str):
            # `name`: assignor objects of other clients have one.
            parsed = key.parse(",".join(str(getattr(item, "name", item)) for item in value))
        elif isinstance(value, bool):  # before int, of which bool is a subclass
            parsed = key.parse("true" if value else "false")
        elif isinstance(value, str | int | float):
            parsed = key.parse(str(value))
        else:
            raise ConfigError(f"{name}={value!r} is a {type(value).__name__}; write a number or text")
        self.by_name[name] = parsed
        self.given.add(name)

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def seconds(self, name: str) -> float:
        """A setting in milliseconds, in seconds."""
        return float(self.by_name[name]) / 1000

    def number(self, name: str) -> int:
        """A whole number."""
        return int(self.by_name[name])

    def text(self, name: str) -> str:
        """A text; empty when it has no value."""
        return str(self.by_name[name] or "")


def producer_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read a producer's settings and check those that depend on each other."""
    settings = ClientSettings(PRODUCER_CONFIGS, given, keywords)
    values = settings.by_name
    values["acks"] = -1 if values["acks"] in ("all", "-1") else int(values["acks"])
    if values["transactional.id"] is not None and "enable.idempotence" in settings.given:
        _require(values["enable.idempotence"], "transactional.id needs enable.idempotence=true")
    if values["enable.idempotence"]:
        clashes = []
        if values["acks"] != -1:
            clashes.append(("acks", "acks=all"))
        if values["max.in.flight.requests.per.connection"] > 5:
            clashes.append(
                ("max.in.flight.requests.per.connection", "max.in.flight.requests.per.connection of at most 5")
            )
        if values["retries"] == 0:
            clashes.append(("retries", "retries above 0"))
        explicit = "enable.idempotence" in settings.given or values["transactional.id"] is not None
        if clashes and explicit:
            raise ConfigError(f"enable.idempotence=true needs {clashes[0][1]}")
        if clashes:  # as in Java: the default of enable.idempotence yields to an explicit acks=1 (KIP-679)
            values["enable.idempotence"] = False
    if values["delivery.timeout.ms"] < min(values["linger.ms"] + values["request.timeout.ms"], MAX_LONG):
        if "delivery.timeout.ms" in settings.given:
            raise ConfigError(
                f"delivery.timeout.ms={values['delivery.timeout.ms']} is less than linger.ms + request.timeout.ms "
                f"({values['linger.ms'] + values['request.timeout.ms']}): no request could be answered in time"
            )
        # A default yields to an explicit linger.ms or request.timeout.ms, as in Java.
        values["delivery.timeout.ms"] = values["linger.ms"] + values["request.timeout.ms"]
    return settings


def consumer_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read a consumer's settings and check those that depend on each other."""
    settings = ClientSettings(CONSUMER_CONFIGS, given, keywords)
    values = settings.by_name
    values["group.protocol"] = values["group.protocol"].lower()
    _require(
        values["on.error"] in ("raise", "skip") or callable(values["on.error"]),
        f"on.error={values['on.error']!r} is not known: write raise, skip, or give a function of the error",
    )
    if values["group.id"] is None:
        if values["enable.auto.commit"] and "enable.auto.commit" in settings.given:
            raise ConfigError("enable.auto.commit=true needs a group.id")
        values["enable.auto.commit"] = False
        _require(
            values["group.instance.id"] is None, "group.instance.id needs a group.id: it names a member of a group"
        )
    if values["group.protocol"] == "classic":
        _check_assignors(values["partition.assignment.strategy"])
        _require(
            values["heartbeat.interval.ms"] < values["session.timeout.ms"],
            "heartbeat.interval.ms must be less than session.timeout.ms; a third of it is usual",
        )
        _require("group.remote.assignor" not in settings.given, "group.remote.assignor needs group.protocol=consumer")
    else:
        # KIP-848 makes these settings of the group (group.consumer.*); Java refuses them too.
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            _require(name not in settings.given, f"{name} is a setting of the broker with group.protocol=consumer")
    return settings


def admin_settings(given: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Read an admin's settings."""
    return ClientSettings(ADMIN_CONFIGS, given, keywords)


def _check_assignors(names: Iterable[str]) -> None:
    """Raise at construction what would otherwise be raised by the first poll."""
    from klamm.client.consumer.core.assignors import ASSIGNORS, assignors  # noqa: PLC0415 - it imports this module

    for name in names:
        try:
            assignors((name,))
        except ConfigError as error:
            near = max(ASSIGNORS, key=functools.partial(similarity, name.lower()))
            hint = f"; did you mean {near}?" if similarity(name.lower(), near) >= 0.6 else ""
            raise ConfigError(f"{error}{hint}") from None


def _require(fine: bool, complaint: str) -> None:
    if not fine:
        raise ConfigError(complaint)

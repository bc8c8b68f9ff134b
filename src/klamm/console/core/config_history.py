"""What this console changed in a topic's settings, from its audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from klamm.console.core.config_rows import format_setting


class AuditedChange(Protocol):
    """The fields of an audit entry that are used here."""

    @property
    def time_ms(self) -> int:
        """When."""

    @property
    def person(self) -> str:
        """Who."""

    @property
    def action(self) -> str:
        """What."""

    @property
    def resource(self) -> str:
        """The topic."""

    @property
    def outcome(self) -> str:
        """done, refused or failed."""

    @property
    def detail(self) -> Mapping[str, Any]:
        """Setting and value."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One setting that was changed; None is the cluster's value, empty unknown."""

    time_ms: int
    person: str
    setting: str
    before: str | None
    after: str | None


def list_config_changes(entries: Iterable[AuditedChange], topic: str) -> list[ConfigChange]:
    """Return the changes of a topic's settings, the newest first."""
    changes = []
    for entry in entries:
        if entry.resource != topic or entry.outcome != "done":
            continue
        if entry.action == "change setting" and isinstance(entry.detail.get("setting"), str):
            changes.append(_make_change(entry, entry.detail["setting"], entry.detail.get("before", "")))
        elif entry.action == "create topic" and isinstance(entry.detail.get("configs"), Mapping):
            changes += [
                ConfigChange(entry.time_ms, entry.person, str(name), None, format_setting(str(name), str(value)))
                for name, value in entry.detail["configs"].items()
            ]
    return sorted(changes, key=_time, reverse=True)


def _make_change(entry: AuditedChange, setting: str, before: Any) -> ConfigChange:
    after = entry.detail.get("value")
    return ConfigChange(
        entry.time_ms,
        entry.person,
        setting,
        None if before is None else format_setting(setting, str(before)),
        None if after is None else format_setting(setting, str(after)),
    )


def _time(change: ConfigChange) -> int:
    return change.time_ms

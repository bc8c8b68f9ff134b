"""What a change of a broker setting does: the value of each broker before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from klamm.client.admin.config_types import ConfigEntry
from klamm.console.core.config_rows import format_setting
from klamm.model.config_sources import ConfigSource

_HIDDEN: Final = "••••••"
_OWN: Final = ConfigSource.DYNAMIC_BROKER_CONFIG
_OF_ALL: Final = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One broker: its value now and then, with units; `after` is None where it is not known."""

    broker: int
    before: str
    source: str
    after: str | None
    note: str = ""

    @property
    def changes(self) -> bool:
        """Whether the value is another one then."""
        return self.before != self.after


def plan_setting(
    entries: Mapping[int, ConfigEntry | None], broker: int | None, value: str | None
) -> list[SettingChange]:
    """Return what happens on each broker; `broker` None sets the value of all, `value` None takes a value back."""
    plan = []
    taken_back = {_OWN, _OF_ALL} if broker is None else {_OWN}
    for number, entry in sorted(entries.items()):
        if broker is not None and number != broker:
            continue
        if entry is None:
            plan.append(SettingChange(number, "", "", None, "the broker does not know this setting"))
            continue
        before = _show(entry, entry.value or "")
        source = entry.source.name.removesuffix("_CONFIG").replace("_", " ").lower()
        if broker is None and entry.source is _OWN:
            plan.append(SettingChange(number, before, source, before, "has a value of its own, which stays"))
            continue
        after = value if value is not None else _find_inherited(entry, taken_back)
        plan.append(SettingChange(number, before, source, None if after is None else _show(entry, after)))
    return plan


def read_own_value(entries: Iterable[ConfigEntry | None], broker: int | None) -> str | None:
    """Return the value that is set for the broker, or for all; None without one, empty where it is secret."""
    source = _OF_ALL if broker is None else _OWN
    for entry in entries:
        for synonym in entry.synonyms if entry is not None else ():
            if entry is not None and synonym.source is source:
                return "" if entry.sensitive else synonym.value
    return None


def _find_inherited(entry: ConfigEntry, left_out: set[ConfigSource]) -> str | None:
    """The value without those that are taken back; None where the broker does not tell."""
    return next((synonym.value or "" for synonym in entry.synonyms if synonym.source not in left_out), None)


def _show(entry: ConfigEntry, value: str) -> str:
    return _HIDDEN if entry.sensitive else format_setting(entry.name, value)

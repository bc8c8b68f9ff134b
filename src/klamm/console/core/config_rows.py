"""Settings as rows: value, where it comes from, what it would be without, what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from klamm.client.admin.config_types import ConfigEntry
from klamm.model.config_sources import ConfigSource
from klamm.model.units import format_duration, format_size

_OWN: Final = frozenset({ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG})
_HIDDEN: Final = "••••••"


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One setting."""

    name: str
    value: str
    shown: str
    """With units: 604800000 is 7d."""
    source: str
    is_own: bool
    """Whether it is set on this topic or broker itself, and can be reset."""
    default: str
    """The value without its own, with units; empty when it is the same or unknown."""
    read_only: bool
    sensitive: bool
    documentation: str


def list_config_rows(entries: Mapping[str, ConfigEntry]) -> list[ConfigRow]:
    """Return all settings, by name."""
    return sorted((make_config_row(entry) for entry in entries.values()), key=attrgetter("name"))


def make_config_row(entry: ConfigEntry) -> ConfigRow:
    """Return one setting."""
    value = _HIDDEN if entry.sensitive else entry.value or ""
    is_own = entry.source in _OWN
    inherited = next((synonym.value for synonym in entry.synonyms if synonym.source not in _OWN), None)
    default = "" if not is_own or entry.sensitive or inherited is None else format_setting(entry.name, inherited)
    return ConfigRow(
        entry.name,
        value,
        value if entry.sensitive else format_setting(entry.name, value),
        entry.source.name.removesuffix("_CONFIG").replace("_", " ").lower(),
        is_own,
        default,
        entry.read_only,
        entry.sensitive,
        entry.documentation or "",
    )


def format_setting(name: str, value: str) -> str:
    """Return a value as people read it: `7d (604800000)`."""
    if not value.removeprefix("-").isdecimal() or len(value) > 20:
        return value
    number = int(value)
    if name.endswith(".ms"):
        return f"{format_duration(number)} ({value})"
    if name.endswith(".bytes") and abs(number) >= 1024:
        return f"{format_size(number)} ({value})"
    return value

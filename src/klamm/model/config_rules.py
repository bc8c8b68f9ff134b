"""Rules for the values of settings, with the error text for an invalid value.

A rule returns a complaint ("write at least 1") or an empty text. A rule checks one value; relations between settings
are checked by the modules that use both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from klamm.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigRule:
    """A check and its error text; `text` describes the valid values in the reference pages."""

    text: str
    complaint: Callable[[Any], str]


def at_least(low: float) -> ConfigRule:
    """A number no smaller than `low`."""

    # None is a setting without default that is not set.
    def complaint(value: Any) -> str:
        return f"write at least {low}" if value is not None and value < low else ""

    return ConfigRule(f"at least {low}", complaint)


def between(low: float, high: float) -> ConfigRule:
    """A number from `low` to `high`, both allowed."""

    def complaint(value: Any) -> str:
        outside = value is not None and (value < low or value > high)
        return f"write a number from {low} to {high}" if outside else ""

    return ConfigRule(f"{low} to {high}", complaint)


def between_or(low: int, high: int, other: int) -> ConfigRule:
    """A number from `low` to `high`, or the one special value."""

    def complaint(value: Any) -> str:
        return "" if value == other or low <= value <= high else f"write a number from {low} to {high}, or {other}"

    return ConfigRule(f"{low} to {high}, or {other}", complaint)


def one_of(*allowed: str, any_case: bool = False) -> ConfigRule:
    """One of the allowed words."""
    words = {word.lower() for word in allowed} if any_case else set(allowed)

    def complaint(value: Any) -> str:
        is_allowed = value is not None and (value.lower() if any_case else value) in words
        return "" if is_allowed else f"write one of {', '.join(allowed)}"

    return ConfigRule(", ".join(allowed), complaint)


def list_of(*allowed: str, empty: bool = True) -> ConfigRule:
    """A list without empty items, of the allowed words if there are any."""

    def complaint(value: Any) -> str:
        if value is None:
            return ""
        if not value and not empty:
            return "write at least one value"
        # As Kafka since KIP-1161: a trailing comma would be an empty name.
        if "" in value:
            return "a value between two commas is missing"
        if allowed and not set(value) <= set(allowed):
            return f"write one or more of {', '.join(allowed)}, separated by commas"
        return ""

    return ConfigRule(
        ("any of " + ", ".join(allowed)) if allowed else ("a list" if empty else "a non-empty list"), complaint
    )


def not_empty() -> ConfigRule:
    """Any text but the empty one; the setting may be left out."""

    def complaint(value: Any) -> str:
        return "write a value or leave the setting out" if value == "" else ""

    return ConfigRule("not empty", complaint)


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


def throttled_replicas() -> ConfigRule:
    """`*`, or a list of partition:broker pairs."""

    def complaint(value: Any) -> str:
        fine = value == ("*",) or all(_REPLICA.fullmatch(item) for item in value)
        return "" if fine else "write * or a list like 0:1,1:2 of partition:broker pairs"

    return ConfigRule("* or partition:broker,...", complaint)


# An IPv6 address stands in brackets, since it contains colons.
_VOTER = re.compile(r"[0-9]+@(\[[^\]]+\]|[^:@\s]+):[0-9]+")
_ADDRESS = re.compile(r"(\[[^\]]+\]|[^\[\]@\s]+):[0-9]+")


def voters() -> ConfigRule:
    """Quorum voters as id@host:port."""

    def complaint(value: Any) -> str:
        return "" if all(_VOTER.fullmatch(item) for item in value) else "write id@host:port,... e.g. 1@localhost:9093"

    return ConfigRule("id@host:port,...", complaint)


def addresses() -> ConfigRule:
    """Addresses as host:port."""

    def complaint(value: Any) -> str:
        return "" if all(_ADDRESS.fullmatch(item) for item in value) else "write host:port,... e.g. localhost:9093"

    return ConfigRule("host:port,...", complaint)


_OVERRIDE = re.compile(r"(?P<host>[^\s,]+):(?P<limit>[0-9]{1,10})")


def check_overrides(text: str) -> None:
    """Raise ConfigError for limits of hosts that cannot be read; Kafka checks them apart from their definition."""
    if text and not all(_OVERRIDE.fullmatch(item.strip()) for item in text.split(",")):
        raise ConfigError(
            f"max.connections.per.ip.overrides={text}: write host:number,... e.g. 192.0.2.1:100,localhost:1000"
        )


def parse_overrides(text: str) -> dict[str, int]:
    """Return the limits of a checked text, by host."""
    # The last colon ends the host: an IPv6 address has colons of its own.
    matches = (_OVERRIDE.fullmatch(item.strip()) for item in text.split(","))
    return {match["host"]: int(match["limit"]) for match in matches if match is not None}

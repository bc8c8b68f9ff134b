"""Settings as people write them: `retention=7d`, `cleanup=compact`, `segment.bytes=64MiB`. Pure.

A short name stands for the one setting of Kafka it can mean; units are turned into the milliseconds or bytes of
the wire, and back for display.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click

from klamm.model.units import format_duration, format_size, parse_duration_ms, parse_size_bytes

_SHORT = {
    "cleanup": "cleanup.policy",
    "compression": "compression.type",
    "min.isr": "min.insync.replicas",
    "max.message": "max.message.bytes",
    "delete.retention": "delete.retention.ms",
}
_BOTH = ("retention", "local.retention", "segment", "log.retention", "log.local.retention")
"""Limited by time or by size: the unit decides which setting is meant."""


def parse_setting(text: str) -> tuple[str, str]:
    """KEY=VALUE as (Kafka's name, Kafka's value)."""
    written, equals, value = text.partition("=")
    written, value = written.strip(), value.strip()
    if not equals or not written:
        raise click.UsageError(f"{text!r} is no setting: write KEY=VALUE")
    if written in _BOTH:
        return _by_unit(written, value)
    name = _SHORT.get(written, written)
    return name, to_broker(name, value)


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Several of them; the last of one name wins."""
    return dict(parse_setting(text) for text in texts)


def setting_name(written: str) -> str:
    """Kafka's name for a setting to unset; an ambiguous one means the time."""
    return f"{written}.ms" if written in _BOTH else _SHORT.get(written, written)


def true_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The setting that is meant among `known`; KlammError suggests the nearest when there is none.

    The broker's default of a topic setting has another name (retention.ms is log.retention.ms there).
    """
    from klamm.model.errors import ErrorCode, KlammError
    from klamm.model.topic_configs import TOPIC_SYNONYMS

    names = set(known)
    # Settings of one listener carry its name, so brokers do not list them.
    if name in names or (kind == "broker" and name.startswith("listener.name.")):
        return name
    if kind == "broker" and name in TOPIC_SYNONYMS:
        return TOPIC_SYNONYMS[name][0]
    near = difflib.get_close_matches(name.lower().replace("_", "."), sorted(names), 1)
    hint = f"did you mean {near[0]}?" if near else f"`klamm config ls {kind} NAME --all` lists those there are"
    raise KlammError(ErrorCode.INVALID_CONFIG, f"{name} is not a {kind} setting; {hint}")


def to_broker(name: str, value: str) -> str:
    """A value with its units turned into numbers; what has no unit is left as it is."""
    try:
        if name.endswith(".ms"):
            return str(parse_duration_ms(value))
        if name.endswith(".bytes"):
            return str(parse_size_bytes(value))
    except ValueError as error:
        # -2 and the like have meanings of their own in some settings; the broker validates them.
        if value.lstrip("-").isdecimal():
            return value
        raise click.UsageError(f"{name}: {error}") from None
    return value


def to_person(name: str, value: str | None) -> str | None:
    """A value as a person reads it: `7d` for 604800000."""
    if value is None or not value.lstrip("-").isdecimal():
        return value
    if name.endswith(".ms"):
        return format_duration(int(value))
    if name.endswith(".bytes"):
        return format_size(int(value))
    return value


def _by_unit(written: str, value: str) -> tuple[str, str]:
    # A bare number has no unit: 7 could be milliseconds or bytes, and a wrong guess deletes data.
    if value.isdecimal() or value == "-1":
        raise click.UsageError(f"{written}={value}: write a unit ({written}=7d, {written}=10GiB), or {written}.ms=...")
    try:
        # Time first: in retention=5m the unit is minutes.
        return f"{written}.ms", str(parse_duration_ms(value))
    except ValueError:
        pass
    try:
        return f"{written}.bytes", str(parse_size_bytes(value))
    except ValueError:
        raise click.UsageError(f"{written}={value}: write a time such as 7d or a size such as 10GiB") from None

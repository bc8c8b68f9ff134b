"""Records as `produce -i jsonl` reads them: what `consume -o jsonl` writes, or values as they are. Pure."""

from __future__ import annotations

import difflib
import json
from typing import Any, Final

import click

from klamm.cli.record_format import from_shown

Draft = dict[str, Any]
"""key, value, partition, timestamp, headers: what `Producer.send` takes; and `where` it was read, for errors."""
FIELDS: Final = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})
"""The fields of a record in `consume -o jsonl`; its topic and offset are ignored when it is written elsewhere."""


def from_json(line: bytes, where: str) -> Draft:
    """One line of `-i jsonl`.

    An object with `value` is a record, and has no other fields than a record has. An object without `value` and `key`,
    and whatever is no object, is a value itself. Anything in between is an error.
    """
    try:
        given = json.loads(line)
        if not isinstance(given, dict) or not (
            # Objects that share no field with a record are values: plain JSON lines are the usual input.
            "value" in given or "key" in given or (given and given.keys() <= FIELDS)
        ):
            return {"value": line}
        if not given.keys() <= FIELDS:
            raise ValueError(_unknown_field(given))
        if "value" not in given:
            raise ValueError(f'it has {", ".join(map(repr, given))}, but no "value"; write "value": null for none')
        return {
            "key": from_shown(given.get("key")),
            "value": from_shown(given["value"]),
            "headers": _headers(given.get("headers")) or None,
            "timestamp": _whole_number(given, "timestamp"),
            "partition": _whole_number(given, "partition"),
            "where": where,
        }
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"{where}this is no JSON record: {error}") from None


def _unknown_field(given: dict[str, Any]) -> str:
    name = next(name for name in given if name not in FIELDS)
    near = difflib.get_close_matches(name, FIELDS - given.keys(), 1)
    meant = f"did you mean {near[0]!r}? An" if near else "an"
    return (
        f"a record has no field {name!r}; {meant}"
        ' object that is a value itself is written as {"value": ...}, or sent as it is by -i lines'
    )


def _whole_number(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    # -1 is what a broker returns for a record without a timestamp; the producer sets its own then.
    if value is None or (name == "timestamp" and value == -1):
        return None
    # bool is a subclass of int, and true would become partition 1.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        unit = " of milliseconds since 1970" if name == "timestamp" else ""
        raise ValueError(f"{name} is {value!r}; write a number{unit}")
    return value


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    """From an object, or from a list of pairs where a name is there twice."""
    if not isinstance(given, dict | list | None):
        raise TypeError(f'headers are {given!r}; write an object, {{"name": "value"}}')
    pairs = given.items() if isinstance(given, dict) else given or ()
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(f"a header is {pair!r}; write [name, value]")
    return [(name, from_shown(value)) for name, value in pairs]

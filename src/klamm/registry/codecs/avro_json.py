"""Avro values as JSON, in two forms. Pure.

    tagged   Avro's own JSON encoding: {"string": "x"} for a value of a union; logical types as the numbers and bytes
             below them. What REST proxies and Avro's tools exchange.
    plain    without the names of branches; dates and times in ISO 8601, decimals and UUIDs as text. For people, and
             for filters on fields.

In both, bytes are text of one character (U+0000 to U+00FF) for each byte.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any

_NAMED = ("record", "error", "enum", "fixed")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def without_logical_types(node: Any) -> Any:
    """Return a schema (parsed JSON) whose logical types are the types below them."""
    if isinstance(node, list):
        return [without_logical_types(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        # A default is data: it may be an object with a key of that name.
        name: part if name == "default" else without_logical_types(part)
        for name, part in node.items()
        if name != "logicalType"
    }


def branch_name(node: Any) -> str:
    """Return the name of a type as a branch of a union."""
    if isinstance(node, str):
        return node
    kind = str(node["type"])
    return str(node["name"]) if kind in _NAMED else kind


# Values to JSON


def show(value: Any, node: Any, named: Mapping[str, Any], *, tagged: bool) -> Any:
    """Return the JSON of a value that fastavro decoded with the names of branches (`return_named_type`)."""
    if isinstance(node, list):
        return _show_union(value, node, named, tagged=tagged)
    if isinstance(node, str):
        return show(value, named[node], named, tagged=tagged) if node in named else _show_scalar(value)
    kind = node["type"]
    if kind in ("record", "error"):
        return {f["name"]: show(value[f["name"]], f["type"], named, tagged=tagged) for f in node["fields"]}
    if kind == "array":
        return [show(item, node["items"], named, tagged=tagged) for item in value]
    if kind == "map":
        return {key: show(item, node["values"], named, tagged=tagged) for key, item in value.items()}
    return _show_scalar(value)


def _show_union(value: Any, node: list[Any], named: Mapping[str, Any], *, tagged: bool) -> Any:
    if value is None:
        return None
    branches = [branch for branch in node if branch != "null"]
    if isinstance(value, tuple):
        name, value = value
        branch = next(branch for branch in branches if branch_name(branch) == name)
    else:
        branch = next((branch for branch in branches if _is_of(value, branch, named)), branches[0])
    shown = show(value, branch, named, tagged=tagged)
    return {branch_name(branch): shown} if tagged else shown


def _show_scalar(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    return value


_CLASSES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes,),
    "fixed": (bytes,),
    "string": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}
_LOGICAL_CLASSES: dict[str, tuple[type, ...]] = {
    "date": (dt.date,),
    "uuid": (uuid.UUID,),
    "decimal": (decimal.Decimal,),
    "time-millis": (dt.time,),
    "time-micros": (dt.time,),
    "timestamp-millis": (dt.datetime,),
    "timestamp-micros": (dt.datetime,),
    "local-timestamp-millis": (dt.datetime,),
    "local-timestamp-micros": (dt.datetime,),
}


def _is_of(value: Any, node: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(node, str) and node in named:
        node = named[node]
    kind, logical = (node, None) if isinstance(node, str) else (node["type"], node.get("logicalType"))
    classes = _LOGICAL_CLASSES.get(logical or "") or _CLASSES.get(kind, (object,))
    # Not isinstance: True is an int, and a datetime a date.
    return type(value) in classes


# JSON to values


def parse(value: Any, node: Any, named: Mapping[str, Any], at: str = "value") -> Any:
    """Return what fastavro encodes, from either form of JSON; ValueError names the field that does not fit."""
    if isinstance(node, list):
        return _parse_union(value, node, named, at)
    if isinstance(node, str):
        return parse(value, named[node], named, at) if node in named else _parse_primitive(value, node, at)
    kind = node["type"]
    if kind in ("record", "error"):
        return _parse_record(value, node, named, at)
    if kind == "array":
        _expect(isinstance(value, list), value, "a list", at)
        return [parse(item, node["items"], named, f"{at}[{index}]") for index, item in enumerate(value)]
    if kind == "map":
        _expect(isinstance(value, dict), value, "an object", at)
        return {key: parse(item, node["values"], named, f"{at}.{key}") for key, item in value.items()}
    if kind == "enum":
        _expect(value in node["symbols"], value, f"one of {', '.join(node['symbols'])}", at)
        return value
    logical = _PARSERS.get(node.get("logicalType") or "")
    if logical is not None and isinstance(value, str):
        try:
            return logical(value)
        except (ValueError, ArithmeticError):
            _expect(False, value, f"a {node['logicalType']}", at)
    if node.get("logicalType") == "decimal" and type(value) in (int, float):
        # By its text: 0.1 as a float has more digits than any scale.
        return decimal.Decimal(str(value))
    if kind == "fixed":
        return _parse_primitive(value, "bytes", at)
    return parse(value, kind, named, at)


def _parse_record(value: Any, node: Any, named: Mapping[str, Any], at: str) -> dict[str, Any]:
    _expect(isinstance(value, dict), value, "an object", at)
    fields = {field["name"]: field for field in node["fields"]}
    for name in value:
        _expect(name in fields, name, f"a field of {node['name']}", at)
    parsed = {}
    for name, field in fields.items():
        if name not in value and "default" not in field:
            raise ValueError(f"{at} has no field {name}")
        # A default is JSON of the same form; fastavro would write that of bytes as it is.
        item = value[name] if name in value else field["default"]
        parsed[name] = parse(item, field["type"], named, f"{at}.{name}")
    return parsed


def _parse_union(value: Any, node: list[Any], named: Mapping[str, Any], at: str) -> Any:
    if value is None and "null" in node:
        return None
    branches = {branch_name(branch): branch for branch in node if branch != "null"}
    if isinstance(value, dict) and len(value) == 1:
        (name,) = value
        if name in branches:
            return (name, parse(value[name], branches[name], named, at))
    reasons = []
    for name, branch in branches.items():
        try:
            # The name of the branch tells fastavro which one it is: it would guess again otherwise.
            return (name, parse(value, branch, named, at))
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons) or f"{at} is {value!r}, expected null")


def _parse_primitive(value: Any, kind: str, at: str) -> Any:
    if kind == "null":
        _expect(value is None, value, "null", at)
    elif kind == "boolean":
        _expect(isinstance(value, bool), value, "true or false", at)
    elif kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        _expect(type(value) is int and -(1 << bits) <= value < 1 << bits, value, f"an {kind}", at)
    elif kind in ("float", "double"):
        if isinstance(value, str) and value in _NUMBERS:
            return _NUMBERS[value]
        _expect(type(value) in (int, float), value, "a number", at)
        return float(value)
    elif kind == "string":
        _expect(isinstance(value, str), value, "text", at)
    else:
        _expect(isinstance(value, str) and all(ord(character) < 256 for character in value), value, "bytes", at)
        return value.encode("latin-1")
    return value


def _expect(fits: bool, value: Any, expected: str, at: str) -> None:
    if not fits:
        raise ValueError(f"{at} is {value!r:.80}, expected {expected}")


_PARSERS: dict[str, Callable[[str], Any]] = {
    "date": dt.date.fromisoformat,
    "time-millis": dt.time.fromisoformat,
    "time-micros": dt.time.fromisoformat,
    "timestamp-millis": dt.datetime.fromisoformat,
    "timestamp-micros": dt.datetime.fromisoformat,
    "local-timestamp-millis": dt.datetime.fromisoformat,
    "local-timestamp-micros": dt.datetime.fromisoformat,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}

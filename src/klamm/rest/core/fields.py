"""Typed fields of JSON bodies; a field of another type is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition
from klamm.rest.core.record_stream import parse_json
from klamm.rest.core.refusals import bad_request, invalid_field

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
_MISSING: Final = object()
# Made once: `json.dumps` with arguments makes an encoder for every record.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse_body(body: bytes) -> Any:
    """Parse the JSON of a body; 400 when it is none."""
    try:
        return parse_json(body.decode())
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body that is a JSON object; an empty one without a body."""
    value = parse_body(body) if body else {}
    if not isinstance(value, dict):
        raise bad_request("the body is not a JSON object")
    return value


def dump_json(value: Any) -> bytes:
    """Return JSON without blanks; HttpRefusal for a number that JSON does not have."""
    try:
        text = _ENCODER.encode(value)
    except ValueError as error:
        raise bad_request(str(error)) from None
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can escape and UTF-8 cannot encode.
        return json.dumps(value, separators=(",", ":")).encode()


def text_of(fields: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return a text; the default, if there is one, when it is absent or null."""
    value = fields.get(name)
    if value is None and default is not _MISSING:
        return default
    if not isinstance(value, str):
        raise invalid_field(f"{name} may not be empty" if value is None else f"{name} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_field(f"{name} has half of a surrogate pair") from None
    return value


def number_of(
    fields: Mapping[str, Any], name: str, default: Any = _MISSING, *, least: int = 0, most: int = INT32_MAX
) -> Any:
    """Return a whole number, also of a text with digits, as old clients send them."""
    value = fields.get(name)
    if value is None and default is not _MISSING:
        return default
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_field(f"{name} may not be null" if value is None else f"{name} is not a number")
    if not least <= value <= most:
        raise invalid_field(f"{name} must be between {least} and {most}")
    return value


def flag_of(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean, also of the texts true and false."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise invalid_field(f"{name} is not a boolean")
    return value


def objects_of(fields: Mapping[str, Any], name: str, *, most: int | None = None) -> list[dict[str, Any]]:
    """Return an array of objects, which may be empty."""
    value = fields.get(name)
    if value is None:
        raise invalid_field(f"{name} may not be null")
    if not isinstance(value, list):
        raise bad_request(f"{name} is not an array")
    if most is not None and len(value) > most:
        raise invalid_field(f"{name} has more than {most} elements")
    for element in value:
        if not isinstance(element, dict):
            raise bad_request(f"{name} has an element that is not an object")
    return value


def refuse_unknown(fields: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a misspelled field, whose value would be lost without a word."""
    unknown = set(fields).difference(known)
    if unknown:
        raise invalid_field(f"Unrecognized field: {min(unknown)}")


def partition_of(fields: Mapping[str, Any]) -> TopicPartition:
    """Return the topic and partition of an element."""
    return TopicPartition(text_of(fields, "topic"), number_of(fields, "partition"))


def number_in_path(text: str, refusal: HttpRefusal) -> int:
    """Return a number of a path; `refusal` when it is none, as no resource has that name."""
    if not text.isascii() or not text.isdecimal() or int(text[:12]) > INT32_MAX:
        raise refusal
    return int(text)

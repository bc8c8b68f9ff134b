"""Keys and values between JSON and bytes, for the formats that need no schema."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from klamm.rest.core.fields import dump_json
from klamm.rest.core.media_types import EmbeddedFormat
from klamm.rest.core.record_stream import parse_json
from klamm.rest.core.refusals import bad_request, conversion_failed


def encode_plain(embedded: EmbeddedFormat, value: Any) -> bytes | None:
    """Return the bytes of a key or value; None, which is no key or a tombstone, of null."""
    if value is None:
        return None
    if embedded is EmbeddedFormat.JSON:
        return dump_json(value)
    if not isinstance(value, str):
        text = dump_json(value).decode()
        kind = "base64 string" if embedded is EmbeddedFormat.BINARY else "string"
        raise bad_request(f"data={text[:80]} is not a {kind}.")
    if embedded is EmbeddedFormat.STRING:
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise bad_request("data has half of a surrogate pair, which UTF-8 cannot encode.") from None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"data={value[:80]} is not a base64 string.") from None


def print_plain(embedded: EmbeddedFormat, data: bytes | None) -> str:
    """Return the JSON text of a key or value."""
    if data is None:
        return "null"
    if embedded is EmbeddedFormat.BINARY:
        return f'"{base64.b64encode(data).decode()}"'
    if embedded is EmbeddedFormat.STRING:
        return dump_json(data.decode("utf-8", "replace")).decode()
    try:
        text = data.decode()
        parse_json(text)
    except ValueError as error:
        raise conversion_failed(f"the record is not JSON: {error}") from None
    # As it was written: parsing and printing would change the digits of large numbers.
    return text

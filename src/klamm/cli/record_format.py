r"""Formats of one record: kcat's `-f '%t %p %o %k %v\n'`, or a row for `-o`. Pure.

%t topic   %p partition   %o offset   %k key   %v or %s value   %h headers   %T timestamp (ms)   %d time (ISO)
%K bytes of the key, -1 for none   %S bytes of the value, -1 for none   %% a percent sign
\n \t \r \0 \\ \xNN as in C
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from klamm.client.filter.record_view import RecordLike
from klamm.model.units import format_time

FormatPiece = bytes | Callable[[RecordLike], bytes]
DECODINGS: Final = ("text", "json", "hex", "base64")


class Decodings(NamedTuple):
    """What keys and values are shown as."""

    key: str = "text"
    value: str = "text"


_TEXT: Final = Decodings()
_TOKEN = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "%": b"%"}


def _bytes(value: Any) -> bytes:
    return b"" if value is None else value if isinstance(value, bytes) else bytes(value)


def _size(value: Any) -> bytes:
    # kcat prints -1 for null, as distinct from an empty key or value.
    return b"-1" if value is None else str(len(value)).encode()


def _headers(record: RecordLike) -> bytes:
    return b",".join(name.encode() + b"=" + _bytes(value) for name, value in record.headers or ())


def _topic(record: RecordLike) -> bytes:
    return record.topic.encode()


def _partition(record: RecordLike) -> bytes:
    return str(record.partition).encode()


def _offset(record: RecordLike) -> bytes:
    return str(record.offset).encode()


def _key(record: RecordLike) -> bytes:
    return _bytes(record.key)


def _value(record: RecordLike) -> bytes:
    return _bytes(record.value)


def _timestamp(record: RecordLike) -> bytes:
    return str(record.timestamp).encode()


def _date(record: RecordLike) -> bytes:
    return format_time(record.timestamp).encode()


def _key_size(record: RecordLike) -> bytes:
    return _size(record.key)


def _value_size(record: RecordLike) -> bytes:
    return _size(record.value)


_FIELDS: Final[dict[str, Callable[[RecordLike], bytes]]] = {
    "t": _topic,
    "p": _partition,
    "o": _offset,
    "k": _key,
    "v": _value,
    "s": _value,  # kcat has both letters
    "h": _headers,
    "T": _timestamp,
    "d": _date,
    "K": _key_size,
    "S": _value_size,
}


def unescape(text: str) -> bytes:
    r"""Text with `\n`, `\t`, `\xNN` turned into what they mean."""
    pieces = _pieces(text, percent=False)
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


def compile_format(text: str) -> Callable[[RecordLike], bytes]:
    """A function from a record to the bytes to write; ValueError for an unknown letter."""
    pieces = _pieces(text, percent=True)

    def format_record(record: RecordLike) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return format_record


def _pieces(text: str, *, percent: bool) -> Sequence[FormatPiece]:
    pieces: list[FormatPiece] = []
    position = 0
    for match in _TOKEN.finditer(text):
        pieces.append(text[position : match.start()].encode())
        position = match.end()
        letter, code, escape = match.groups()
        if code is not None:
            pieces.append(bytes([int(code, 16)]))
        elif escape is not None:
            # An unknown escape stays as it is, as in a shell: Windows paths and regular expressions survive.
            pieces.append(_ESCAPES.get(escape, b"\\" + escape.encode()))
        elif not percent or letter == "%":
            pieces.append(match[0].encode() if not percent else b"%")
        elif letter in _FIELDS:
            pieces.append(_FIELDS[letter])
        else:
            known = " ".join(f"%{field}" for field in _FIELDS)
            raise ValueError(f"%{letter} is not known in a format; write {known} or %%")
    pieces.append(text[position:].encode())
    return [piece for piece in pieces if piece != b""]


def record_row(record: RecordLike, decode: Decodings = _TEXT) -> dict[str, Any]:
    """A record for `-o`: what is no text becomes {"base64": ...}, which `klamm produce --input jsonl` reads back."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": format_data(record.key, decode.key),
        "value": format_data(record.value, decode.value),
        "headers": _header_row(record.headers or ()),
    }


def _header_row(headers: Sequence[tuple[str, Any]]) -> Any:
    """Headers as an object; as pairs when a name occurs twice, so that none is lost."""
    named = {name: format_data(value, "text") for name, value in headers}
    return named if len(named) == len(headers) else [[name, format_data(value, "text")] for name, value in headers]


def format_data(data: Any, decode: str) -> Any:
    """Bytes in the requested form."""
    if data is None:
        return None
    raw = bytes(data)
    if decode == "hex":
        return raw.hex()
    if decode == "base64":
        return base64.b64encode(raw).decode()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
    if decode == "json":
        try:
            return json.loads(text)
        # Deeply nested JSON exceeds the recursion limit of the parser.
        except (ValueError, RecursionError):
            return text
    return text


def from_shown(value: Any) -> bytes | None:
    """The bytes of what `shown` made, or of any JSON value a person writes: text stays text, the rest becomes JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    # An object with other keys beside it is a JSON value of its own.
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

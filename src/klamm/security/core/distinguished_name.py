"""The subject of a certificate as RFC 2253 text, as Java writes it: ACLs and mapping rules are compared with it.

The other fields that a node reads of its own certificate are here, too: alternative names and validity.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 has names for; all others are written as numbers and hexadecimal values."""

_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "latin-1", 0x1E: "utf-16-be"}
"""Codecs of ASN.1's text types, by tag."""

_ESCAPED: Final = frozenset(',+"\\<>;=#')
"""Those of RFC 2253, and two that Java escapes, too, wherever they stand."""

_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_UTC_TIME: Final = 0x17
_ALTERNATIVE_NAMES: Final = b"\x55\x1d\x11"


def subject_name(certificate: bytes) -> str:
    """Return the subject of a certificate in DER form; ValueError if it cannot be read."""
    try:
        subject = next(_fields_from_subject(certificate))[1]
        names = [
            "+".join(_format_attribute(part) for _, part, _ in _children(name)) for _, name, _ in _children(subject)
        ]
    except (IndexError, StopIteration, UnicodeDecodeError):
        raise ValueError("the certificate has no readable subject") from None
    # RFC 2253 writes the last one first.
    return ",".join(reversed(names))


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """Return the encoded alternative names of a certificate, to compare them with those of another."""
    try:
        extensions = next(
            (content for tag, content, _ in _fields_from_subject(certificate) if tag == _EXTENSIONS), None
        )
        for _, extension, _ in _children(_content(extensions)) if extensions else ():
            (_, number, _), *_, (_, value, _) = _children(extension)
            if number == _ALTERNATIVE_NAMES:
                return frozenset(encoding for _, _, encoding in _children(_content(value)))
    except (IndexError, StopIteration, ValueError):
        raise ValueError("the certificate has no readable extensions") from None
    return frozenset()


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Return the first and the last moment at which a certificate is valid; ValueError if they cannot be read."""
    try:
        begin, end = (
            _read_time(tag, content) for tag, content, _ in _children(next(_fields_from_validity(certificate))[1])
        )
    except (IndexError, StopIteration, ValueError):
        raise ValueError("the certificate has no readable validity") from None
    return begin, end


def _read_time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280: two digits from 50 on are of the last century; strptime's %y has another limit.
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _fields_from_subject(certificate: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    fields = _fields_from_validity(certificate)
    next(fields)
    return fields


def _fields_from_validity(certificate: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    fields = _children(_content(_content(certificate)))
    # The version, which is left out of certificates of version 1, or the serial number.
    if next(fields)[0] == _VERSION:
        next(fields)
    for _ in ("signature", "issuer"):
        next(fields)
    return fields


def _content(data: bytes) -> bytes:
    return next(_children(data))[1]


def _children(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, content and whole encoding of every value in `data`."""
    position = 0
    while position < len(data):
        start = position
        tag, length = data[position], data[position + 1]
        position += 2
        # DER's long form: the low bits say how many bytes of length follow.
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count])
            position += count
        if position + length > len(data):
            raise IndexError("a value is longer than what holds it")
        yield tag, data[position : position + length], data[start : position + length]
        position += length


def _format_attribute(attribute: bytes) -> str:
    (_, number, _), (tag, value, encoding) = _children(attribute)
    keyword = _KEYWORDS.get(_format_number(number))
    codec = _TEXTS.get(tag)
    # RFC 2253, 2.4: a value that is not a known text is its encoding in hexadecimal.
    if keyword is None or codec is None:
        return f"{keyword or _format_number(number)}=#{encoding.hex()}"
    return f"{keyword}={_escape(value.decode(codec))}"


def _format_number(data: bytes) -> str:
    """Write an object identifier with dots."""
    parts, part = [], 0
    for byte in data:
        part = part << 7 | byte & 0x7F
        if not byte & 0x80:
            parts.append(part)
            part = 0
    # The first byte holds two numbers, 40 * first + second; only below 2 is the second less than 40.
    first = min(parts[0] // 40, 2)
    return ".".join(map(str, (first, parts[0] - 40 * first, *parts[1:])))


def _escape(text: str) -> str:
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" ")) if inner else len(text)
    after = len(text) - len(inner) - before
    escaped = "".join("\\" + character if character in _ESCAPED else character for character in inner)
    return "\\ " * before + escaped + "\\ " * after

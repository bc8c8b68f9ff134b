"""Java's .properties format, used by Kafka's configuration files and meta.properties.

`parse_properties` keeps the line of every entry, so that an error can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from klamm.model.errors import ConfigError

_BLANKS = " \t\f"
_NEWLINE = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}


@dataclass(frozen=True, slots=True)
class Property:
    """One entry and the line it begins on, counted from 1."""

    line: int
    key: str
    value: str


def parse_properties(text: str) -> list[Property]:
    """Every entry in order; a key that occurs twice is returned twice, and the last one holds."""
    return [_split(line, content) for line, content in _logical_lines(text)]


def format_properties(values: Mapping[str, str]) -> str:
    """Text that `parse_properties` and Java parse into the same values."""
    return "".join(f"{_escape(key, ' =:#!')}={_escape(value, '')}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blanks, those that end in a lone backslash joined to the next."""
    pending = ""
    begun = 0
    for number, raw in enumerate(_NEWLINE.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if not begun:
            if not line or line[0] in "#!":
                continue
            begun = number
        # An even number of backslashes is escaped backslashes, not a continuation.
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pending += line[:-1] if continues else line
        if not continues:
            if pending:
                yield begun, pending
            pending, begun = "", 0
    if begun and pending:
        yield begun, pending


def _split(line: int, content: str) -> Property:
    end = 0
    # The key ends at the first separator that is not escaped; blanks alone separate too ("key value").
    while end < len(content) and content[end] not in "=:" + _BLANKS:
        end += 2 if content[end] == "\\" else 1
    rest = content[end:].lstrip(_BLANKS)
    if rest and rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANKS)
    return Property(line, _unescape(content[:end], line), _unescape(rest, line))


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replace_escape(match: re.Match[str]) -> str:
        escape = match.group(1)
        if not escape:  # a backslash at the end of the text
            return ""
        if escape[0] != "u":
            return _ESCAPES.get(escape, escape)
        if len(escape) != 5:
            raise ConfigError(f"line {line}: \\u must be followed by four hexadecimal digits")
        return chr(int(escape[1:], 16))

    unescaped = re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", replace_escape, text, flags=re.DOTALL)
    # Characters beyond 16 bits are two escapes in a row, whose surrogates become one character here.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, also: str) -> str:
    written = "".join(_WRITTEN.get(c) or ("\\" + c if c in also else _ascii(c)) for c in text)
    # A leading blank would be taken for part of the separator.
    return "\\" + written if written.startswith(" ") else written


def _ascii(character: str) -> str:
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

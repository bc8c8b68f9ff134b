"""Text cut into words, strings, numbers and signs, each with its place; comments are skipped.

Spark's lexical rules where they matter: 'single' and "double" quoted strings (both literals, with backslash escapes and
doubled quotes), `back-quoted` names, `--` and nested `/* */` comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.problems import ParseError

WORD: Final = "word"
NAME: Final = "name"
STRING: Final = "string"
NUMBER: Final = "number"
SIGN: Final = "sign"

_NEXT: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<line>--[^\n]*)
    | (?P<block>/\*)
    | (?P<string>[rR]?'|[rR]?")
    | (?P<name>`)
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[a-zA-Z]*)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=>|<>|!=|<=|>=|\|\||->|=>|==|::|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text; `value` is what it stands for (a string without its quotes), `text` what was written."""

    kind: str
    text: str
    value: str
    start: int
    end: int

    def says(self, *words: str) -> bool:
        """Whether this is one of these keywords (in capitals) or signs; quoted names never are."""
        return (self.kind == WORD and self.text.upper() in words) or (self.kind == SIGN and self.text in words)


def tokenize(text: str) -> list[Token]:
    """All tokens of a text; Refused at a quote or comment that does not end."""
    found: list[Token] = []
    place = 0
    while place < len(text):
        match = _NEXT.match(text, place)
        assert match is not None, "the last alternative takes any character"
        kind, end = str(match.lastgroup), match.end()
        if kind == "block":
            end = _comment_end(text, place)
        elif kind == "string":
            value, end = _string(text, place, match.end())
            found.append(Token(STRING, text[place:end], value, place, end))
        elif kind == "name":
            value, end = _quoted_name(text, place)
            found.append(Token(NAME, text[place:end], value, place, end))
        elif kind not in ("space", "line"):
            found.append(Token(kind, match[0], match[0], place, end))
        place = end
    return found


def _comment_end(text: str, start: int) -> int:
    depth, place = 0, start
    while True:
        match = re.compile(r"/\*|\*/").search(text, place)
        if match is None:
            raise ParseError(start, "this comment does not end: */ is missing")
        depth += 1 if match[0] == "/*" else -1
        place = match.end()
        if not depth:
            return place


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def _string(text: str, start: int, place: int) -> tuple[str, int]:
    quote, raw = text[place - 1], text[start] in "rR"
    value: list[str] = []
    while place < len(text):
        each = text[place]
        if each == quote:
            if text[place + 1 : place + 2] != quote or raw:
                return "".join(value), place + 1
            place += 1
        elif each == "\\" and not raw and place + 1 < len(text):
            place += 1
            each = _ESCAPES.get(text[place], text[place])
        value.append(each)
        place += 1
    raise ParseError(start, f"this string does not end: {quote} is missing")


def _quoted_name(text: str, start: int) -> tuple[str, int]:
    place = start + 1
    while True:
        end = text.find("`", place)
        if end < 0:
            raise ParseError(start, "this name does not end: ` is missing")
        if text[end + 1 : end + 2] != "`":
            return text[start + 1 : end].replace("``", "`"), end + 1
        place = end + 2

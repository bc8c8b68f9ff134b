"""Splits text into words, strings, numbers and signs, each with its position; comments are skipped.

Spark's lexical rules where they matter: 'single' and "double" quoted strings (both literals, with backslash escapes and
doubled quotes), `back-quoted` names, `--` and nested `/* */` comments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.problems import ParseError

WORD: Final = "word"
NAME: Final = "name"
STRING: Final = "string"
NUMBER: Final = "number"
SIGN: Final = "sign"

# A number takes the letters after it, as in 10L and 1.5BD. Signs of several characters come before single ones.
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
    """A token; `text` is as written, `value` what it means (a string without its quotes)."""

    kind: str
    text: str
    value: str
    start: int
    end: int

    def matches(self, *words: str) -> bool:
        """Whether this is one of these keywords (in capitals) or signs; a quoted name is neither."""
        return (self.kind == WORD and self.text.upper() in words) or (self.kind == SIGN and self.text in words)


def tokenize(text: str) -> list[Token]:
    """Return all tokens of a text; ParseError at a quote or comment that does not end."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _NEXT.match(text, position)
        assert match is not None, "the last alternative takes any character"
        kind, end = str(match.lastgroup), match.end()
        if kind == "block":
            end = _comment_end(text, position)
        elif kind == "string":
            value, end = _string(text, position, match.end())
            tokens.append(Token(STRING, text[position:end], value, position, end))
        elif kind == "name":
            value, end = _quoted_name(text, position)
            tokens.append(Token(NAME, text[position:end], value, position, end))
        elif kind not in ("space", "line"):
            tokens.append(Token(kind, match[0], match[0], position, end))
        position = end
    return tokens


def nesting_depths(tokens: Sequence[Token]) -> list[int]:
    """Return how many parentheses each token is in; a parenthesis itself counts as outside."""
    depth, depths = 0, []
    for token in tokens:
        if token.matches(")"):
            depth -= 1
        depths.append(depth)
        if token.matches("("):
            depth += 1
    return depths


def closing_index(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the parenthesis that closes the one at `start`; of the last token when none does."""
    depth = 0
    for index in range(start, len(tokens)):
        if tokens[index].matches("("):
            depth += 1
        elif tokens[index].matches(")"):
            depth -= 1
            if not depth:
                return index
    return len(tokens) - 1


def _comment_end(text: str, start: int) -> int:
    # Spark nests block comments; a search for the first */ would end too early.
    depth, position = 0, start
    while True:
        match = re.compile(r"/\*|\*/").search(text, position)
        if match is None:
            raise ParseError(start, "this comment does not end: */ is missing")
        depth += 1 if match[0] == "/*" else -1
        position = match.end()
        if not depth:
            return position


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def _string(text: str, start: int, position: int) -> tuple[str, int]:
    quote, raw = text[position - 1], text[start] in "rR"
    value: list[str] = []
    while position < len(text):
        character = text[position]
        if character == quote:
            # A doubled quote is a quote, except in a raw string.
            if text[position + 1 : position + 2] != quote or raw:
                return "".join(value), position + 1
            position += 1
        elif character == "\\" and not raw and position + 1 < len(text):
            position += 1
            character = _ESCAPES.get(text[position], text[position])
        value.append(character)
        position += 1
    raise ParseError(start, f"this string does not end: {quote} is missing")


def _quoted_name(text: str, start: int) -> tuple[str, int]:
    position = start + 1
    while True:
        end = text.find("`", position)
        if end < 0:
            raise ParseError(start, "this name does not end: ` is missing")
        if text[end + 1 : end + 2] != "`":
            return text[start + 1 : end].replace("``", "`"), end + 1
        position = end + 2

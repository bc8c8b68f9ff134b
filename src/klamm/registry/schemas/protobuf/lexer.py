"""The tokens of .proto text: names, numbers, strings and symbols, with their places; comments are dropped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from klamm.registry.schemas.parsed import InvalidSchemaError

_TOKEN = re.compile(
    r"""
    (?P<space>[\s\uFEFF]+|//[^\n]*|/\*.*?\*/)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?|[0-9]+(?:[eE][+-]?[0-9]+[fF]?|[fF]))
  | (?P<integer>0[xX][0-9a-fA-F]+|[0-9]+)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<symbol>[{}()\[\]<>;,=.:+/-])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


@dataclass(slots=True)
class ProtoToken:
    """A word of the text."""

    kind: str
    text: str
    offset: int


class TokenStream:
    """The tokens in order, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._source = text
        self._tokens = split_tokens(text)
        self._next = 0

    @property
    def current(self) -> ProtoToken:
        """The token that is read next."""
        return self._tokens[self._next]

    def peek(self) -> ProtoToken:
        """Return the token after the current one."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def advance(self) -> ProtoToken:
        """Return the current token and go on."""
        token = self.current
        if token.kind != "end":
            self._next += 1
        return token

    def at(self, text: str) -> bool:
        """Whether the current token is this symbol or name."""
        return self.current.text == text and self.current.kind in ("symbol", "name")

    def accept(self, text: str) -> bool:
        """Skip the current token if it is this symbol or name."""
        if not self.at(text):
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        """Skip this symbol or name, or refuse the text."""
        if not self.accept(text):
            self.refuse(f"expected {text!r}")

    def name(self, what: str) -> str:
        """Return a name; keywords are names, too."""
        if self.current.kind != "name":
            self.refuse(f"expected {what}")
        return self.advance().text

    def string(self, what: str) -> bytes:
        """Return the bytes of a string; strings that follow each other are one."""
        if self.current.kind != "string":
            self.refuse(f"expected {what}")
        parts = []
        while self.current.kind == "string":
            parts.append(self._unescape(self.advance().text[1:-1]))
        return b"".join(parts)

    def text_string(self, what: str) -> str:
        """Return a string that has to be UTF-8."""
        content = self.string(what)
        try:
            return content.decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} is no UTF-8")

    def integer(self, what: str) -> int:
        """Return a number without a sign."""
        if self.current.kind != "integer":
            self.refuse(f"expected {what}")
        text = self.advance().text
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        try:
            return int(text, 8 if len(text) > 1 and text.startswith("0") else 10)
        except ValueError:
            self.refuse(f"{text} is no number")

    def _unescape(self, text: str) -> bytes:
        return _ESCAPE.sub(self._replace_escape, text.encode())

    def _replace_escape(self, match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, character = match.groups()
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            try:
                return chr(int(short or long, 16)).encode()
            except (ValueError, UnicodeEncodeError):
                self.refuse("a string has an escape that is no character")
        if character not in _ESCAPED:
            self.refuse(f"a string has the unknown escape \\{character.decode(errors='replace')}")
        return _ESCAPED[character]

    def refuse(self, message: str) -> NoReturn:
        """Refuse the text at the current token."""
        token = self.current
        seen = "the end" if token.kind == "end" else repr(token.text)
        raise InvalidSchemaError(f"{_place(self._source, token.offset)}: {message}, not {seen}")


def split_tokens(text: str) -> list[ProtoToken]:
    """Return the tokens of a text, the end as the last one."""
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidSchemaError(f"{_place(text, position)}: unexpected character {text[position]!r}")
        position = match.end()
        if match.lastgroup != "space":
            tokens.append(ProtoToken(match.lastgroup or "", match.group(), match.start()))
    tokens.append(ProtoToken("end", "", len(text)))
    return tokens


def _place(text: str, offset: int) -> str:
    line = text.count("\n", 0, offset) + 1
    return f"line {line}, column {offset - text.rfind(chr(10), 0, offset)}"

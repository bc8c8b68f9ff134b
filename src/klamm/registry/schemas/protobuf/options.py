"""Options as they are written; `linker` interprets them."""

from __future__ import annotations

from typing import Any

from klamm.registry.schemas.protobuf.lexer import TokenStream
from klamm.registry.schemas.protobuf.literals import read_float

DEPTH_MAX = 32
"""Messages in messages, and braces in options; protoc has the same limit."""


def parse_dotted(tokens: TokenStream, what: str) -> str:
    """Return names joined by dots."""
    parts = [tokens.name(what)]
    while tokens.accept("."):
        parts.append(tokens.name(what))
    return ".".join(parts)


def parse_option(tokens: TokenStream, option: Any) -> None:
    """Parse `name = value` into an option."""
    while True:
        if tokens.accept("("):
            prefix = "." if tokens.accept(".") else ""
            option.name.add(name_part=prefix + parse_dotted(tokens, "an extension"), is_extension=True)
            tokens.expect(")")
        else:
            option.name.add(name_part=tokens.name("an option"), is_extension=False)
        if not tokens.accept("."):
            break
    tokens.expect("=")
    _parse_value(tokens, option)


def _parse_value(tokens: TokenStream, option: Any) -> None:
    if tokens.at("{"):
        option.aggregate_value = _collect_aggregate(tokens)
        return
    if tokens.current.kind == "string":
        option.string_value = tokens.string("a value")
        return
    negative = tokens.accept("-")
    if tokens.current.kind == "integer":
        number = tokens.integer("a value")
        if number > (1 << 64) - 1 or (negative and number > 1 << 63):
            tokens.refuse(f"{number} is no 64-bit number, expected another one")
        if negative:
            option.negative_int_value = -number
        else:
            option.positive_int_value = number
    elif tokens.current.kind == "float":
        value = read_float(tokens.advance().text)
        option.double_value = -value if negative else value
    elif negative:
        if tokens.current.text not in ("inf", "nan"):
            tokens.refuse("expected a number")
        option.double_value = -float(tokens.advance().text)
    else:
        option.identifier_value = tokens.name("a value")


def _collect_aggregate(tokens: TokenStream) -> str:
    """Return the text between braces; it is in the text format and parsed when the option is interpreted."""
    tokens.expect("{")
    depth = 1
    words: list[str] = []
    while True:
        if tokens.current.kind == "end":
            tokens.refuse("expected '}'")
        text = tokens.advance().text
        depth += (text == "{") - (text == "}")
        if depth == 0:
            return " ".join(words)
        if depth > DEPTH_MAX:
            tokens.refuse("an option is nested too deeply, expected '}'")
        words.append(text)

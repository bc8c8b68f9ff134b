"""Column types: Spark's names, checked here so that a misspelt one is found without Spark."""

from __future__ import annotations

from typing import Any, Final

from klamm.pipeline.sql.core.problems import ParseError, suggest
from klamm.pipeline.sql.core.tokens import NAME, NUMBER, WORD, Token

SIMPLE: Final = frozenset(
    [
        "BOOLEAN",
        "TINYINT",
        "BYTE",
        "SMALLINT",
        "SHORT",
        "INT",
        "INTEGER",
        "BIGINT",
        "LONG",
        "FLOAT",
        "REAL",
        "DOUBLE",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "TIMESTAMP_LTZ",
        "STRING",
        "BINARY",
        "DECIMAL",
        "DEC",
        "NUMERIC",
        "CHAR",
        "VARCHAR",
        "VARIANT",
    ]
)
_SIZED: Final = {"DECIMAL": 2, "DEC": 2, "NUMERIC": 2, "CHAR": 1, "VARCHAR": 1}
_NESTED: Final = ("ARRAY", "MAP", "STRUCT")
TIMES: Final = ("TIMESTAMP", "TIMESTAMP_LTZ")
WHOLE: Final = ("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "DECIMAL", "DEC", "NUMERIC")
_DEEPEST: Final = 32


def parse_type(tokens: list[Token], place: int, end_offset: int, depth: int = 0) -> tuple[str, int]:
    """The type that begins at `place`, in one spelling, and the place behind it."""
    if place >= len(tokens) or tokens[place].kind != WORD:
        where = tokens[place].start if place < len(tokens) else end_offset
        raise ParseError(where, "a type belongs here, e.g. STRING, BIGINT, DECIMAL(12,2) or TIMESTAMP")
    token = tokens[place]
    word = token.text.upper()
    if depth > _DEEPEST:
        raise ParseError(token.start, f"types can be nested {_DEEPEST} deep")
    if word in SIMPLE:
        return _sized(word, tokens, place + 1)
    if word not in _NESTED:
        raise ParseError(token.start, f"{token.text} is no type{suggest(word, (*SIMPLE, *_NESTED))}")
    place = _expect(tokens, place + 1, "<", end_offset)
    parts: list[str] = []
    while True:
        if word == "STRUCT":
            if place >= len(tokens) or tokens[place].kind not in (WORD, NAME):
                raise ParseError(_offset(tokens, place, end_offset), "a field's name belongs here")
            field = tokens[place].value
            place += 1
            if place < len(tokens) and tokens[place].says(":"):
                place += 1
            inner, place = parse_type(tokens, place, end_offset, depth + 1)
            parts.append(f"{quote_name(field)}: {inner}")
        else:
            inner, place = parse_type(tokens, place, end_offset, depth + 1)
            parts.append(inner)
        if place < len(tokens) and tokens[place].says(","):
            place += 1
            continue
        break
    place = _close(tokens, place, end_offset)
    count = {"ARRAY": 1, "MAP": 2}.get(word)
    if count is not None and len(parts) != count:
        raise ParseError(token.start, f"{word} takes {count} type{'s' if count > 1 else ''}, not {len(parts)}")
    return f"{word}<{', '.join(parts)}>", place


def _sized(word: str, tokens: list[Token], place: int) -> tuple[str, int]:
    if word not in _SIZED or place >= len(tokens) or not tokens[place].says("("):
        return word, place
    numbers: list[str] = []
    opening = tokens[place]
    place += 1
    while place < len(tokens) and tokens[place].kind == NUMBER:
        numbers.append(tokens[place].text)
        place += 1
        if place < len(tokens) and tokens[place].says(","):
            place += 1
    if not numbers or len(numbers) > _SIZED[word] or place >= len(tokens) or not tokens[place].says(")"):
        example = "(12,2)" if _SIZED[word] == 2 else "(20)"
        raise ParseError(opening.start, f"{word} takes its size so: {word}{example}")
    return f"{word}({','.join(numbers)})", place + 1


def _close(tokens: list[Token], place: int, end_offset: int) -> int:
    return _expect(tokens, place, ">", end_offset)


def _expect(tokens: list[Token], place: int, sign: str, end_offset: int) -> int:
    if place >= len(tokens) or not tokens[place].says(sign):
        raise ParseError(_offset(tokens, place, end_offset), f"{sign} belongs here")
    return place + 1


def _offset(tokens: list[Token], place: int, end_offset: int) -> int:
    return tokens[place].start if place < len(tokens) else end_offset


def quote_name(name: str) -> str:
    """A name as Spark always reads it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


_FROM_ARROW: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
    "date32[day]": "DATE",
    "null": "STRING",
}


def from_arrow(kind: Any) -> str:
    """A type of Arrow in the spelling of declarations."""
    text = str(kind)
    if text in _FROM_ARROW:
        return _FROM_ARROW[text]
    if text.startswith("timestamp["):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if text.startswith("decimal"):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if text.startswith("struct<"):
        return f"STRUCT<{', '.join(f'{quote_name(each.name)}: {from_arrow(each.type)}' for each in kind)}>"
    if text.startswith("map<"):
        return f"MAP<{from_arrow(kind.key_type)}, {from_arrow(kind.item_type)}>"
    if text.startswith(("list<", "large_list<")):
        return f"ARRAY<{from_arrow(kind.value_type)}>"
    raise ValueError(f"no column has the type {text}")

"""Column types by Spark's names, parsed here so that a misspelt one is reported without Spark."""

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
_DEPTH_MAX: Final = 32


def parse_type(tokens: list[Token], index: int, end_offset: int, depth: int = 0) -> tuple[str, int]:
    """Parse the type that begins at token `index`; return its canonical spelling and the index behind it."""
    if index >= len(tokens) or tokens[index].kind != WORD:
        offset = tokens[index].start if index < len(tokens) else end_offset
        raise ParseError(offset, "expected a type, e.g. STRING, BIGINT, DECIMAL(12,2) or TIMESTAMP")
    token = tokens[index]
    word = token.text.upper()
    # Recursion is bounded: the text is not trusted.
    if depth > _DEPTH_MAX:
        raise ParseError(token.start, f"types can be nested {_DEPTH_MAX} deep")
    if word in SIMPLE:
        return _parse_size(word, tokens, index + 1)
    if word not in _NESTED:
        raise ParseError(token.start, f"{token.text} is not a type{suggest(word, (*SIMPLE, *_NESTED))}")
    index = _expect(tokens, index + 1, "<", end_offset)
    parts: list[str] = []
    while True:
        if word == "STRUCT":
            if index >= len(tokens) or tokens[index].kind not in (WORD, NAME):
                raise ParseError(_offset(tokens, index, end_offset), "expected a field's name")
            field = tokens[index].value
            index += 1
            if index < len(tokens) and tokens[index].matches(":"):
                index += 1
            inner, index = parse_type(tokens, index, end_offset, depth + 1)
            parts.append(f"{quote_name(field)}: {inner}")
        else:
            inner, index = parse_type(tokens, index, end_offset, depth + 1)
            parts.append(inner)
        if index < len(tokens) and tokens[index].matches(","):
            index += 1
            continue
        break
    index = _close(tokens, index, end_offset)
    count = {"ARRAY": 1, "MAP": 2}.get(word)
    if count is not None and len(parts) != count:
        raise ParseError(token.start, f"{word} takes {count} type{'s' if count > 1 else ''}, not {len(parts)}")
    return f"{word}<{', '.join(parts)}>", index


def _parse_size(word: str, tokens: list[Token], index: int) -> tuple[str, int]:
    if word not in _SIZED or index >= len(tokens) or not tokens[index].matches("("):
        return word, index
    numbers: list[str] = []
    opening = tokens[index]
    index += 1
    while index < len(tokens) and tokens[index].kind == NUMBER:
        numbers.append(tokens[index].text)
        index += 1
        if index < len(tokens) and tokens[index].matches(","):
            index += 1
    if not numbers or len(numbers) > _SIZED[word] or index >= len(tokens) or not tokens[index].matches(")"):
        example = "(12,2)" if _SIZED[word] == 2 else "(20)"
        raise ParseError(opening.start, f"{word} takes a size: {word}{example}")
    return f"{word}({','.join(numbers)})", index + 1


def _close(tokens: list[Token], index: int, end_offset: int) -> int:
    # The tokenizer does not join >>, so nested types close one by one.
    return _expect(tokens, index, ">", end_offset)


def _expect(tokens: list[Token], index: int, sign: str, end_offset: int) -> int:
    if index >= len(tokens) or not tokens[index].matches(sign):
        raise ParseError(_offset(tokens, index, end_offset), f"expected {sign}")
    return index + 1


def _offset(tokens: list[Token], index: int, end_offset: int) -> int:
    return tokens[index].start if index < len(tokens) else end_offset


def quote_name(name: str) -> str:
    """Return a name in back-quotes, which Spark accepts with any characters."""
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
    # A field that is always null: declarations have no type for it.
    "null": "STRING",
}


def from_arrow(kind: Any) -> str:
    """Return an Arrow type in the spelling of declarations."""
    text = str(kind)
    if text in _FROM_ARROW:
        return _FROM_ARROW[text]
    if text.startswith("timestamp["):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if text.startswith("decimal"):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if text.startswith("struct<"):
        return f"STRUCT<{', '.join(f'{quote_name(field.name)}: {from_arrow(field.type)}' for field in kind)}>"
    if text.startswith("map<"):
        return f"MAP<{from_arrow(kind.key_type)}, {from_arrow(kind.item_type)}>"
    if text.startswith(("list<", "large_list<")):
        return f"ARRAY<{from_arrow(kind.value_type)}>"
    raise ValueError(f"no column has the type {text}")

"""Declared column types as a tree, with the name that each has in DuckDB.

A declaration spells types as Spark does (`column_types` has checked them): `DECIMAL(12,2)`, `ARRAY<STRING>`,
``STRUCT<`a`: INT>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.core.tokens import NUMBER, Token, tokenize

_SYNONYMS: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "CHAR": "STRING",
    "VARCHAR": "STRING",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DUCKDB: Final = {
    "INT": "INTEGER",
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_NTZ": "TIMESTAMP",
    "VARIANT": "JSON",
}
DECIMAL_DEFAULT: Final = (10, 0)
"""Precision and scale of a DECIMAL without size, as in Spark."""
INTEGER_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type; `parts` are those of an ARRAY (one), a MAP (key and value) or a STRUCT (by `names`)."""

    name: str
    size: tuple[int, int] = (0, 0)
    parts: tuple[FieldType, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def nested(self) -> bool:
        """Whether it has parts."""
        return bool(self.parts)

    @property
    def duckdb(self) -> str:
        """The name of this type in DuckDB."""
        if self.name == "DECIMAL":
            return f"DECIMAL({self.size[0]},{self.size[1]})"
        if self.name == "ARRAY":
            return f"{self.parts[0].duckdb}[]"
        if self.name == "MAP":
            return f"MAP({self.parts[0].duckdb}, {self.parts[1].duckdb})"
        if self.name == "STRUCT":
            fields = zip(self.names, self.parts, strict=True)
            return f"STRUCT({', '.join(f'{quote_identifier(name)} {part.duckdb}' for name, part in fields)})"
        return _DUCKDB.get(self.name, self.name)

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.size[0]},{self.size[1]})"
        if self.name == "STRUCT":
            return f"STRUCT<{', '.join(f'{name}: {part}' for name, part in zip(self.names, self.parts, strict=True))}>"
        return f"{self.name}<{', '.join(map(str, self.parts))}>" if self.parts else self.name


DeclaredColumns = Sequence[tuple[str, FieldType]]
"""Names and types of the columns of a table, in order."""


def quote_identifier(name: str) -> str:
    """Return a name as DuckDB quotes it."""
    return '"' + name.replace('"', '""') + '"'


def parse_field_type(text: str) -> FieldType:
    """Parse a declared type."""
    field_type, _ = _parse(tokenize(text), 0)
    return field_type


def _parse(tokens: list[Token], index: int) -> tuple[FieldType, int]:
    word = tokens[index].text.upper()
    name = _SYNONYMS.get(word, word)
    index += 1
    if name in ("ARRAY", "MAP", "STRUCT"):
        return _parse_parts(name, tokens, index + 1)
    numbers: list[int] = []
    if index < len(tokens) and tokens[index].matches("("):
        end = next(position for position in range(index, len(tokens)) if tokens[position].matches(")"))
        numbers = [int(token.text) for token in tokens[index:end] if token.kind == NUMBER]
        index = end + 1
    if name != "DECIMAL":
        # The length of CHAR and VARCHAR is no limit in Spark's readers either.
        return FieldType(name), index
    precision, scale = (*numbers, 0)[:2] if numbers else DECIMAL_DEFAULT
    return FieldType(name, (precision, scale)), index


def _parse_parts(name: str, tokens: list[Token], index: int) -> tuple[FieldType, int]:
    parts: list[FieldType] = []
    names: list[str] = []
    while not tokens[index].matches(">"):
        if tokens[index].matches(","):
            index += 1
        if name == "STRUCT":
            names.append(tokens[index].value)
            index += 2 if tokens[index + 1].matches(":") else 1
        part, index = _parse(tokens, index)
        parts.append(part)
    return FieldType(name, parts=tuple(parts), names=tuple(names)), index + 1

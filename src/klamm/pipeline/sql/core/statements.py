"""Statements of a pipeline file; every part has its offset in the text, for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core.tokens import Token

STREAM: Final = "stream"
TABLE: Final = "table"
SINK: Final = "sink"
SOURCE: Final = "source"
VIEW: Final = "view"
KINDS: Final = (STREAM, TABLE, VIEW, SINK, SOURCE)


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column; `metadata` names the part of the record it is read from instead of the value."""

    name: str
    type: str
    offset: int
    nullable: bool = True
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an option or setting, as text."""

    text: str
    offset: int
    name_offset: int


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT as written; `offset` is where it begins in the file."""

    text: str
    offset: int
    # Kept for the scan of names and temporal joins; Spark gets the text.
    tokens: tuple[Token, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Create:
    """CREATE STREAM, TABLE, VIEW, SINK or SOURCE."""

    kind: str
    name: str
    offset: int
    columns: tuple[Column, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    select: Select | None = None
    resolved: bool = False
    """Whether its columns were omitted and are those of a registry's schema."""


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """CREATE FUNCTION name RETURNS type AS 'module:function': a Python function for SELECTs."""

    name: str
    offset: int
    returns: str
    target: str
    target_offset: int


@dataclass(frozen=True, slots=True)
class Set:
    """SET name = value."""

    name: str
    value: Value


Statement = Create | CreateFunction | Set

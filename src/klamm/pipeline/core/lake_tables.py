"""What a sink's statement says of its table, and which small files become one. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.model.errors import ConfigError

FILES: Final = ("parquet", "json", "csv", "orc")
"""Plain files: a folder of them is the table."""
TABLES: Final = ("delta", "iceberg")
FORMATS: Final = (*FILES, *TABLES)
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ODD: Final = re.compile(r"[^A-Za-z0-9._=-]")
_FOLDER_CHARS: Final = 100
_PARTITION_TYPES: Final = ("string", "tinyint", "smallint", "int", "bigint", "date", "boolean")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """Where rows go."""

    name: str
    format: str
    path: str | None = None
    table: str | None = None
    """An Iceberg table in its catalog: `namespace.name`."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's writer for files, of the storage for Delta, of the catalog for Iceberg."""

    @property
    def local(self) -> str | None:
        """The folder of a path; None for one that is no folder of this machine (s3://...)."""
        if self.path is None:
            return None
        scheme, separator, rest = self.path.partition(":/")
        if not separator:
            return self.path
        return f"/{rest.lstrip('/')}" if scheme == "file" else None

    @property
    def where(self) -> str:
        """For people."""
        place = self.path or self.options.get("uri", "")
        return f"{self.format} {self.identifier} of {place}" if self.format == "iceberg" else f"{self.format} {place}"

    @property
    def identifier(self) -> str:
        """An Iceberg table's name in its catalog."""
        return self.table if self.table and "." in self.table else f"klamm.{self.table or self.name}"


class DataFile(NamedTuple):
    """A file a task has written, and is not yet part of a table."""

    path: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    size: int

    def encode(self) -> str:
        """As a line."""
        return json.dumps([self.path, self.partition, self.rows, self.size])

    @classmethod
    def decode(cls, text: str) -> DataFile:
        """From a line."""
        path, partition, rows, size = json.loads(text)
        return cls(path, tuple((name, value) for name, value in partition), rows, size)


def app_key(app: str) -> str:
    """A name for files, made of the name of a writer, which may hold anything."""
    return hashlib.sha256(app.encode()).hexdigest()[:12]


def partition_folder(partition: Iterable[tuple[str, str | None]]) -> str:
    """`day=2026-01-01/kind=a`, for people: the table knows the values, so what is odd in a path is left out."""
    return "/".join(
        _ODD.sub("_", f"{name}={NULL if value is None else value}")[:_FOLDER_CHARS] for name, value in partition
    )


def partition_names(names: Sequence[str], types: Mapping[str, str], table: str) -> tuple[str, ...]:
    """The columns of partition_by as they are spelled; refuses what has no one way to be written as a text."""
    known = {type_.lower(): type_ for type_ in types}
    for name in names:
        if name.lower() not in known:
            raise ConfigError(f"{table} has no column {name} for partition_by: it has {', '.join(types)}")
        kind = types[known[name.lower()]]
        if kind not in _PARTITION_TYPES:
            raise ConfigError(f"{table} cannot be partitioned by {name}, which is {kind}: cast it to date or string")
    if names and len(names) == len(types):
        raise ConfigError(f"{table} needs a column beside those of partition_by")
    return tuple(known[each.lower()] for each in names)


def plan_bins(sizes: Sequence[int], target: int) -> list[list[int]]:
    """Which files, by place, become one: small ones in order, until one of about `target` bytes is full."""
    found: list[list[int]] = []
    current: list[int] = []
    total = 0
    for place, size in enumerate(sizes):
        if size * 4 >= target * 3:  # large enough as it is
            continue
        if current and total + size > target:
            found.append(current)
            current, total = [], 0
        current.append(place)
        total += size
    found.append(current)
    return [each for each in found if len(each) > 1]


class Merge(NamedTuple):
    """What a compaction does to one partition: so many small files become so few."""

    partition: str
    files: int
    into: int
    size: int

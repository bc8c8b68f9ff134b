"""Tables of a lake as a sink's statement describes them, and the plan of a compaction. Pure."""

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
DELETED: Final = "_deleted"
"""The column of an upserted batch that is true for a key to delete."""
# The folder of null values, as Hive and Spark name it.
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE_IN_PATH: Final = re.compile(r"[^A-Za-z0-9._=-]")
# File systems allow 255 bytes per name.
_FOLDER_CHARS: Final = 100
# Types whose values Spark, Delta and Iceberg write as the same text.
_PARTITION_TYPES: Final = ("string", "tinyint", "smallint", "int", "bigint", "date", "boolean")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """The table that a sink writes to."""

    name: str
    format: str
    path: str | None = None
    table: str | None = None
    """An Iceberg table in its catalog: `namespace.name`."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's writer for files, of the storage for Delta, of the catalog for Iceberg."""

    @property
    def local(self) -> str | None:
        """The local folder of a path; None for another file system (s3://...)."""
        if self.path is None:
            return None
        # Spark accepts a plain path, file:/a and file:///a for the same folder.
        scheme, separator, rest = self.path.partition(":/")
        if not separator:
            return self.path
        return f"/{rest.lstrip('/')}" if scheme == "file" else None

    @property
    def where(self) -> str:
        """The table for messages: format and location."""
        location = self.path or self.options.get("uri", "")
        return (
            f"{self.format} {self.identifier} of {location}"
            if self.format == "iceberg"
            else f"{self.format} {location}"
        )

    @property
    def identifier(self) -> str:
        """An Iceberg table's name in its catalog."""
        return self.table if self.table and "." in self.table else f"klamm.{self.table or self.name}"


class DataFile(NamedTuple):
    """A file that a task has written and that is not yet part of a table."""

    path: str
    partition: tuple[tuple[str, str | None], ...]
    rows: int
    size: int

    def encode(self) -> str:
        """Return the file as a line of JSON."""
        return json.dumps([self.path, self.partition, self.rows, self.size])

    @classmethod
    def decode(cls, text: str) -> DataFile:
        """Parse a line that `encode` made."""
        path, partition, rows, size = json.loads(text)
        return cls(path, tuple((name, value) for name, value in partition), rows, size)


def app_key(app: str) -> str:
    """Return a writer's name in a form that is safe in file names."""
    # 48 bits are enough to tell apart the few writers of one table.
    return hashlib.sha256(app.encode()).hexdigest()[:12]


def partition_folder(partition: Iterable[tuple[str, str | None]]) -> str:
    """Return `day=2026-01-01/kind=a`. Unsafe characters are replaced: the table's metadata has the exact values."""
    return "/".join(
        _UNSAFE_IN_PATH.sub("_", f"{name}={NULL if value is None else value}")[:_FOLDER_CHARS]
        for name, value in partition
    )


def partition_names(names: Sequence[str], types: Mapping[str, str], table: str) -> tuple[str, ...]:
    """Return the columns of partition_by in the frame's spelling; ConfigError for a type without one text form."""
    spellings = {column.lower(): column for column in types}
    for name in names:
        if name.lower() not in spellings:
            raise ConfigError(f"{table} has no column {name} for partition_by: it has {', '.join(types)}")
        kind = types[spellings[name.lower()]]
        if kind not in _PARTITION_TYPES:
            raise ConfigError(f"{table} cannot be partitioned by {name}, which is {kind}: cast it to date or string")
    if names and len(names) == len(types):
        raise ConfigError(f"{table} needs a column beside those of partition_by")
    return tuple(spellings[name.lower()] for name in names)


def plan_bins(sizes: Sequence[int], target: int) -> list[list[int]]:
    """Return groups of file indexes to merge: small files in order, up to about `target` bytes per group."""
    groups: list[list[int]] = []
    current: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if size * 4 >= target * 3:  # large enough as it is
            continue
        if current and total + size > target:
            groups.append(current)
            current, total = [], 0
        current.append(index)
        total += size
    groups.append(current)
    return [group for group in groups if len(group) > 1]  # rewriting a single file gains nothing


class Merge(NamedTuple):
    """What a compaction does to one partition: `files` of `size` bytes become `into`."""

    partition: str
    files: int
    into: int
    size: int

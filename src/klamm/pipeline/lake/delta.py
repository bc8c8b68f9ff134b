"""Writes Delta tables: a batch is one commit, which holds the batch's number as an application transaction.

The number is part of the table's state, so a batch that is committed is recognized even if its driver died right after
the commit. When two drivers write the same batch, the table rejects the second commit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import BatchPosition, SinkBatch
from klamm.pipeline.core.lake_tables import DELETED, DataFile, LakeTable, Merge, partition_names, plan_bins
from klamm.pipeline.lake.nullable_schema import nullable
from klamm.pipeline.lake.parquet_writer import (
    ParquetTaskWriter,
    cast_to_utc,
    file_prefix,
    partition_text,
    write_files,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

PartitionValues = tuple[tuple[str, str | None], ...]
_ATTEMPTS_MAX: Final = 20
"""Attempts at a commit that conflicts with those of other writers."""
_POSITION: Final = "klamm.position"
_COMMITS_READ_MAX: Final = 1000
"""How far back the commit of a batch is looked for; its position counts as unknown after so many other commits."""


class DeltaSink:
    """One Delta table."""

    def __init__(self, table: LakeTable) -> None:
        if find_spec("deltalake") is None:
            raise ConfigError(
                f"{table.name} is a Delta table and deltalake is not installed: pip install 'klamm[lake]'"
            )
        self._table = table
        folder = table.local
        self._uri = os.path.abspath(folder) if folder is not None else table.path or ""
        self._storage = dict(table.options) or None

    def write(
        self,
        frame: DataFrame,
        app: str,
        batch: int,
        *,
        replace: bool = False,
        replace_all: bool = False,
        position: BatchPosition | None = None,
    ) -> bool:
        """Add a batch, or replace its partitions or all rows, in one commit; return False when the batch was there."""
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        names = partition_names(self._table.partition_by, types, self._table.name)
        # Before the files: they may have columns that the table lacks.
        table = self._ensure_table(frame, names)
        if _version(table, app) >= batch:
            return False
        files = write_files(frame, ParquetTaskWriter(self._uri, file_prefix(app, batch), names, keep=False))
        # An empty batch makes no commit. Its number is not recorded, and a replay has nothing to write either.
        if not files and not replace_all:
            return True
        return self._commit(files, names, app, batch, replace=replace, replace_all=replace_all, position=position)

    def upsert(
        self, frame: DataFrame, keys: Sequence[str], app: str, batch: int, *, position: BatchPosition | None = None
    ) -> bool:
        """Insert, update and delete rows by their key, in one commit; return False when the batch was there."""
        rows = frame.drop(DELETED)
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        table = self._ensure_table(rows, partition_names(self._table.partition_by, types, self._table.name))
        if _version(table, app) >= batch:
            return False
        # The rows pass through the driver: deltalake's merge, the only commit that both removes and adds rows, runs
        # there.
        changes = cast_to_utc(frame.toArrow())
        return not changes.num_rows or self._merge(changes, keys, app, batch, position)

    def _merge(
        self, changes: pa.Table, keys: Sequence[str], app: str, batch: int, position: BatchPosition | None
    ) -> bool:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        same_key = " AND ".join(f"target.{_quote(key)} = source.{_quote(key)}" for key in keys)
        columns = {_quote(name): f"source.{_quote(name)}" for name in changes.column_names if name != DELETED}
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            table = self._open()
            if _version(table, app) >= batch:
                return False
            merge = table.merge(
                changes,
                same_key,
                source_alias="source",
                target_alias="target",
                commit_properties=_commit_properties(app, batch, position),
            )
            try:
                # A merge that changes nothing makes no commit; like an empty batch it has nothing to replay either.
                (
                    merge.when_matched_delete(f"source.{DELETED}")
                    .when_matched_update(columns)
                    .when_not_matched_insert(columns, predicate=f"NOT source.{DELETED}")
                    .execute()
                )
                break
            except CommitFailedError:
                if not attempts_left:
                    raise
        return True

    def newest(self, app: str) -> SinkBatch:
        """Return the newest batch with rows that a writer has added."""
        if not self.exists():
            return SinkBatch()
        table = self._open()
        batch = _version(table, app)
        position = _position(table, app, batch)
        return SinkBatch(batch, "" if position is None else position.digest, position)

    def _ensure_table(self, frame: DataFrame, names: tuple[str, ...]) -> Any:
        """Return the table, created if needed, with a column for each of the frame's."""
        from deltalake import DeltaTable, Schema  # noqa: PLC0415 - an extra
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        wanted = Schema.from_arrow(nullable(to_arrow_schema(frame.schema, timezone="UTC")))
        if self._table.local is not None:
            os.makedirs(self._uri, exist_ok=True)
        if not DeltaTable.is_deltatable(self._uri, self._storage):
            # mode="ignore": another driver may create it at the same time.
            DeltaTable.create(self._uri, wanted, mode="ignore", partition_by=list(names), storage_options=self._storage)
        table = self._open()
        existing = {field.name: field for field in table.schema().fields}
        # Delta cannot change the partitioning of a table.
        if tuple(table.metadata().partition_columns) != names:
            raise ConfigError(
                f"{self._table.where} is partitioned by {table.metadata().partition_columns}, not by {list(names)}"
            )
        for field in wanted.fields:
            if field.name in existing and field.type != existing[field.name].type:
                raise ConfigError(
                    f"column {field.name} of {self._table.where} is {existing[field.name].type}, not {field.type}"
                )
        new = [field for field in wanted.fields if field.name not in existing]
        if new:
            table.alter.add_columns(new)
        return table

    def _open(self) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415

        return DeltaTable(self._uri, storage_options=self._storage)

    def _commit(
        self,
        files: Sequence[DataFile],
        names: tuple[str, ...],
        app: str,
        batch: int,
        *,
        replace: bool,
        replace_all: bool,
        position: BatchPosition | None,
    ) -> bool:
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415
        from deltalake.transaction import AddAction  # noqa: PLC0415

        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(
                # Delta records paths relative to the table's root.
                path=file.path.removeprefix(self._uri).lstrip("/"),
                size=file.size,
                partition_values=dict(_partition_values(file.partition)),
                modification_time=now_ms,
                # False is for files that were only rearranged; readers of changes skip those.
                data_change=True,
                # Without column statistics: computing them would read every file again.
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            # Read again before every attempt: the conflicting commit may have been this very batch.
            table = self._open()
            if _version(table, app) >= batch:
                return False
            replaced = {_partition_values(file.partition) for file in files}
            removed = (
                _remove_actions(table, None if replace_all else replaced, now_ms) if replace or replace_all else []
            )
            try:
                table.create_write_transaction(
                    [*actions, *removed],
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(names),
                    commit_properties=_commit_properties(app, batch, position),
                )
                break
            except CommitFailedError:
                if not attempts_left:
                    raise
        return True

    def plan_merges(self, target: int) -> list[Merge]:
        """Return what a compaction would do, by partition."""
        if not self.exists():
            return []
        sizes_by_partition: dict[str, list[int]] = {}
        for _, size, partition in _files(self._open()):
            sizes_by_partition.setdefault("/".join(f"{name}={value}" for name, value in partition), []).append(size)
        merges = []
        for key, sizes in sorted(sizes_by_partition.items()):
            groups = plan_bins(sizes, target)
            if groups:
                files = sum(map(len, groups))
                size = sum(sizes[index] for group in groups for index in group)
                merges.append(Merge(key, files, len(groups), size))
        return merges

    def exists(self) -> bool:
        """Whether the table exists."""
        from deltalake import DeltaTable  # noqa: PLC0415

        return bool(DeltaTable.is_deltatable(self._uri, self._storage))

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Rewrite small files as larger ones, in one commit; return how many files were replaced."""
        metrics = self._open().optimize.compact(target_size=target)
        advance(int(metrics["numFilesRemoved"]))
        return int(metrics["numFilesRemoved"])


def _commit_properties(app: str, batch: int, position: BatchPosition | None) -> Any:
    """Return what a commit says of its batch: the number, which the table keeps, and where its rows come from."""
    from deltalake import CommitProperties, Transaction  # noqa: PLC0415

    metadata = {"klamm.app": app, "klamm.batch": str(batch)}
    if position is not None:
        metadata[_POSITION] = position.text
    transaction = Transaction(app, batch, time.time_ns() // 1_000_000)
    return CommitProperties(custom_metadata=metadata, app_transactions=[transaction])


def _quote(name: str) -> str:
    """Return a name as deltalake's expressions have it: without quotes it would be taken in lower case."""
    return '"' + name.replace('"', '""') + '"'


def _version(table: Any, app: str) -> int:
    version = table.transaction_version(app)
    return -1 if version is None else int(version)


def _position(table: Any, app: str, batch: int) -> BatchPosition | None:
    """Return the source position in the commit of a batch; None when that commit has none or is gone from the log."""
    if batch < 0:
        return None
    # Nearly always among the last few commits; compactions and other writers may have followed it.
    for limit in (20, _COMMITS_READ_MAX):
        for commit in table.history(limit):
            if (commit.get("klamm.app"), commit.get("klamm.batch")) == (app, str(batch)):
                text = commit.get(_POSITION)
                return BatchPosition(text) if text else None
    return None


def _partition_values(partition: Iterable[tuple[str, str | None]]) -> PartitionValues:
    """Return a partition as the table keeps it: Delta does not distinguish an empty string from null."""
    return tuple((name, value or None) for name, value in partition)


def _files(table: Any) -> list[tuple[str, int, PartitionValues]]:
    """Return the table's files: path, size and partition."""
    import pyarrow as pa  # noqa: PLC0415

    names = table.metadata().partition_columns
    return [
        (
            action["path"],
            int(action["size_bytes"]),
            _partition_values((name, partition_text(action[f"partition.{name}"])) for name in names),
        )
        for action in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _remove_actions(table: Any, partitions: Container[PartitionValues] | None, now_ms: int) -> list[Any]:
    """Return the removals of all files of partitions; of the whole table without them."""
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    # deltalake encodes a path when it writes an action, and lists paths encoded: decode, or they are encoded twice.
    return [
        RemoveAction(unquote(path), True, now_ms, size, dict(partition))
        for path, size, partition in _files(table)
        if partitions is None or partition in partitions
    ]

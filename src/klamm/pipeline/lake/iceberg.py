"""Writes Iceberg tables: a batch is one snapshot, and its number is a table property set in the same commit.

The number is in the snapshot's summary as well, for diagnosis; snapshots expire, properties do not. A commit names the
snapshot it builds on, so when two drivers write the same batch, the second commit is rejected.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import BatchPosition, SinkBatch
from klamm.pipeline.core.lake_tables import DELETED, DataFile, LakeTable, Merge, app_key, partition_names, plan_bins
from klamm.pipeline.lake.nullable_schema import nullable
from klamm.pipeline.lake.parquet_writer import ParquetTaskWriter, file_prefix, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CATALOG: Final = "klamm"
_BOUNDED: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Each commit leaves a metadata file; without these settings they are kept for ever."""
_ATTEMPTS_MAX: Final = 20
"""Attempts at a commit that conflicts with those of other writers."""


class IcebergSink:
    """One table of an Iceberg catalog."""

    def __init__(self, table: LakeTable) -> None:
        if find_spec("pyiceberg") is None:
            raise ConfigError(
                f"{table.name} is an Iceberg table and pyiceberg is not installed: pip install 'klamm[lake]'"
            )
        self._table = table
        self._catalog = _catalog(table)

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
        table = self._ensure_table(frame, names)
        if _version(table, app) >= batch:
            return False
        files = write_files(frame, self._task_writer(table, file_prefix(app, batch), names))
        if replace_all:
            from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra

            return self._commit(files, app, batch, condition=AlwaysTrue(), position=position)
        condition = _partitions(table, files) if replace and files else None
        return not files or self._commit(files, app, batch, condition=condition, position=position)

    def upsert(
        self, frame: DataFrame, keys: Sequence[str], app: str, batch: int, *, position: BatchPosition | None = None
    ) -> bool:
        """Insert, update and delete rows by their key, in one commit; return False when the batch was there."""
        rows = frame.drop(DELETED)
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        names = partition_names(self._table.partition_by, types, self._table.name)
        table = self._ensure_table(rows, names)
        if _version(table, app) >= batch:
            return False
        # Only the keys pass through the driver, for the condition of the deletion.
        changed = [tuple(row) for row in frame.select(*keys).collect()]
        if not changed:
            return True
        upserts = frame.where(f"NOT {DELETED}").drop(DELETED)
        files = write_files(upserts, self._task_writer(table, file_prefix(app, batch), names))
        return self._commit(files, app, batch, condition=_key_condition(table, keys, changed), position=position)

    def newest(self, app: str) -> SinkBatch:
        """Return the newest batch with rows that a writer has added."""
        if not self.exists():
            return SinkBatch()
        table = self._load()
        text = table.properties.get(_position_property(app))
        position = BatchPosition(text) if text else None
        return SinkBatch(_version(table, app), "" if position is None else position.digest, position)

    def _task_writer(self, table: Any, prefix: str, names: tuple[str, ...]) -> ParquetTaskWriter:
        # pyiceberg has no public name for the data folder: take it from the path of a file.
        root = table.location_provider().new_data_location("x").removesuffix("/x")
        return ParquetTaskWriter(root, prefix, names, keep=True, storage=dict(table.io.properties), iceberg=True)

    def _ensure_table(self, frame: DataFrame, names: tuple[str, ...]) -> Any:
        """Return the table, created if needed, with a column for each of the frame's."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415 - an extra
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        wanted = nullable(to_arrow_schema(frame.schema, timezone="UTC"))
        name = self._table.identifier
        if not self.exists():
            self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            try:
                with (
                    # Schema and partition spec in one commit: another driver never sees the table without partitions.
                    self._catalog.create_table_transaction(name, wanted, properties=_BOUNDED) as work,
                    work.update_spec() as spec,
                ):
                    for column in names:
                        spec.add_identity(column)
            except TableAlreadyExistsError:
                pass  # another driver has created it
        table = self._load()
        partition_columns = tuple(table.schema().find_column_name(field.source_id) for field in table.spec().fields)
        if partition_columns != names:
            raise ConfigError(f"{self._table.where} is partitioned by {list(partition_columns)}, not by {list(names)}")
        self._check_types(table, wanted)
        if any(field.name not in _columns(table) for field in wanted):
            with table.update_schema() as update:
                update.union_by_name(wanted)
        return table

    def _check_types(self, table: Any, wanted: Any) -> None:
        """Raise ConfigError for a changed type before files are written; nested types are checked by the commit."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415
        from pyiceberg.types import PrimitiveType  # noqa: PLC0415

        schema = table.schema()
        existing = {field.name: field.field_type for field in schema.fields}
        shared = [field for field in wanted if isinstance(existing.get(field.name), PrimitiveType)]
        if not shared:
            return
        chosen = wanted.empty_table().select([field.name for field in shared]).schema
        for field in pyarrow_to_schema(chosen, schema.name_mapping).fields:
            if field.field_type != existing[field.name]:
                raise ConfigError(
                    f"column {field.name} of {self._table.where} is {existing[field.name]}, not {field.field_type}"
                )

    def _load(self) -> Any:
        """Return the table as it is now, with pyiceberg's own retries off.

        A retry would rebase the commit on the newer snapshot without a check whether that one holds this very batch.
        """
        table = self._catalog.load_table(self._table.identifier)
        # Only in memory: the property is not written to the table.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def exists(self) -> bool:
        """Whether the table exists."""
        return bool(self._catalog.table_exists(self._table.identifier))

    def _commit(
        self, files: Sequence[DataFile], app: str, batch: int, *, condition: Any, position: BatchPosition | None
    ) -> bool:
        """Add files in one commit, and delete the rows of a condition, if there is one, before."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        snapshot_properties = {"klamm.app": app, "klamm.batch": str(batch)}
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            table = self._load()
            if _version(table, app) >= batch:
                return False
            try:
                with table.transaction() as work:
                    if condition is not None and table.current_snapshot() is not None:
                        # Whole partitions are dropped; files with other rows beside these are written again.
                        with warnings.catch_warnings(action="ignore"):  # that no row matches: all keys are new
                            work.delete(condition, snapshot_properties=snapshot_properties)
                    if files:
                        work.add_files(
                            [file.path for file in files],
                            snapshot_properties=snapshot_properties,
                            # File names are new for every attempt; the check would read all manifests of the table.
                            check_duplicate_files=False,
                        )
                    # In the same transaction as the files: table and number change together or not at all.
                    # An empty text replaces the position of an earlier batch, which would not be that of this one.
                    work.set_properties(
                        {_property(app): str(batch), _position_property(app): "" if position is None else position.text}
                    )
                break
            except CommitFailedException:
                if not attempts_left:
                    raise
        return True

    def plan_merges(self, target: int) -> list[Merge]:
        """Return what a compaction would do, by partition."""
        if not self.exists():
            return []
        merges: dict[str, Merge] = {}
        for key, group in self._groups(self._load(), target):
            before = merges.get(key, Merge(key, 0, 0, 0))
            size = sum(task.file.file_size_in_bytes for task in group)
            merges[key] = Merge(key, before.files + len(group), before.into + 1, before.size + size)
        return list(merges.values())

    @staticmethod
    def _groups(table: Any, target: int) -> Iterator[tuple[str, list[Any]]]:
        """Yield groups of small files of one partition that a compaction merges."""
        tasks_by_partition: dict[str, list[Any]] = {}
        names = [field.name for field in table.spec().fields]
        for task in table.scan().plan_files():
            if task.file.spec_id != table.spec().spec_id:
                continue  # written under an older partition spec: its values do not match the names
            values = [task.file.partition[index] for index in range(len(names))]
            key = "/".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            tasks_by_partition.setdefault(key, []).append(task)
        for key in sorted(tasks_by_partition):
            tasks = sorted(tasks_by_partition[key], key=_file_path)
            for group in plan_bins([task.file.file_size_in_bytes for task in tasks], target):
                yield key, [tasks[index] for index in group]

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Rewrite small files as larger ones, a commit for each; return how many files were replaced."""
        done = 0
        for _, group in list(self._groups(self._load(), target)):
            if self._merge([task.file.file_path for task in group]):
                done += len(group)
            advance(done)
        return done

    def _merge(self, paths: Sequence[str]) -> bool:
        """Replace files by one with their rows; return False when one of them is no longer part of the table."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan, parquet_files_to_data_files  # noqa: PLC0415

        merged: list[DataFile] = []
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            table = self._load()
            tasks = [file for file in table.scan().plan_files() if file.file.file_path in set(paths)]
            if len(tasks) != len(paths):
                return False
            # Written once: a commit that conflicts is repeated with the same files.
            if not merged:
                names = tuple(field.name for field in table.spec().fields)
                scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
                merged = self._task_writer(table, "compacted", names).write(scan.to_record_batches(tasks))
            try:
                with (
                    table.transaction() as work,
                    work.update_snapshot(
                        snapshot_properties={"klamm.compacted": str(len(paths))}
                    ).overwrite() as update,
                ):
                    for task in tasks:
                        update.delete_data_file(task.file)
                    for added in parquet_files_to_data_files(
                        table.io, work.table_metadata, iter([file.path for file in merged])
                    ):
                        update.append_data_file(added)
            except CommitFailedException:
                if not attempts_left:
                    raise
            else:
                return True
        return False


def _catalog(table: LakeTable) -> Any:
    """Return the catalog of the options; without any, a SQLite catalog in the folder, which is the warehouse too."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    options = dict(table.options)
    name = options.pop("catalog", _CATALOG)
    # A name without more options may be a catalog of .pyiceberg.yaml or of the environment.
    is_configured = name != _CATALOG and Config().get_catalog_config(name) is not None
    if not options and not is_configured and table.local is not None:
        folder = os.path.abspath(table.local)
        os.makedirs(folder, exist_ok=True)
        # No server is needed to try it: the catalog is a SQLite file beside the data.
        options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return load_catalog(name, **options)


def _partitions(table: Any, files: Sequence[DataFile]) -> Any:
    """Return the condition for rows of all partitions that files belong to."""
    from pyiceberg.expressions import And, EqualTo, IsNull, Or, literal  # noqa: PLC0415

    types = {field.name: field.field_type for field in table.schema().fields}

    def term(name: str, text: str | None) -> Any:
        return IsNull(name) if text is None else EqualTo(name, literal(text).to(types[name]))

    conditions = [
        functools.reduce(And, [term(name, text) for name, text in partition])
        for partition in dict.fromkeys(file.partition for file in files)
    ]
    return functools.reduce(Or, conditions)


def _key_condition(table: Any, keys: Sequence[str], changed: Sequence[tuple[Any, ...]]) -> Any:
    """Return the condition for rows with these keys."""
    from pyiceberg.expressions import And, EqualTo, In, Or, literal  # noqa: PLC0415

    types = {field.name: field.field_type for field in table.schema().fields}
    if len(keys) == 1:
        return In(keys[0], {literal(value).to(types[keys[0]]) for (value,) in changed})
    conditions = [
        And(*(EqualTo(key, literal(value).to(types[key])) for key, value in zip(keys, row, strict=True)))
        for row in dict.fromkeys(changed)
    ]
    # Given all at once they become a balanced tree; a chain would be as deep as there are keys.
    return conditions[0] if len(conditions) == 1 else Or(*conditions)


def _file_path(task: Any) -> str:
    return str(task.file.file_path)


def _columns(table: Any) -> set[str]:
    return {field.name for field in table.schema().fields}


def _property(app: str) -> str:
    return f"klamm.batch.{app_key(app)}"


def _position_property(app: str) -> str:
    return f"klamm.position.{app_key(app)}"


def _version(table: Any, app: str) -> int:
    return int(table.properties.get(_property(app), -1))

"""Iceberg tables: a batch is one snapshot, and its number is a property of the table, changed in the same commit.

The number is in the snapshot's summary as well, for people; snapshots expire, properties do not. Commits say which
snapshot they build on, so of two drivers with the same batch the second one's is refused, and it finds the batch there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import DataFile, LakeTable, Merge, app_key, partition_names, plan_bins
from klamm.pipeline.lake.nullable_schema import nullable
from klamm.pipeline.lake.parquet_writer import ParquetTaskWriter, file_prefix, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BOUNDED: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Each commit leaves a file that describes the table; only so many of them are kept."""
_TRIES: Final = 20
"""How often a commit is tried again when others commit at the same time."""


class IcebergSink:
    """One table of an Iceberg catalog."""

    def __init__(self, table: LakeTable) -> None:
        if find_spec("pyiceberg") is None:
            raise ConfigError(
                f"{table.name} is an Iceberg table and pyiceberg is not installed: pip install 'klamm[lake]'"
            )
        self._table = table
        self._catalog = _catalog(table)

    def write(self, frame: DataFrame, app: str, batch: int, *, replace: bool = False) -> bool:
        """Add a batch, or let it take the place of its partitions, in one commit; False when it was there."""
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        names = partition_names(self._table.partition_by, types, self._table.name)
        table = self._ready(frame, names)
        if _version(table, app) >= batch:
            return False
        files = write_files(frame, self._work(table, file_prefix(app, batch), names))
        return not files or self._commit(files, app, batch, replace=replace)

    def _work(self, table: Any, prefix: str, names: tuple[str, ...]) -> ParquetTaskWriter:
        root = table.location_provider().new_data_location("x").removesuffix("/x")
        return ParquetTaskWriter(root, prefix, names, keep=True, storage=dict(table.io.properties), iceberg=True)

    def _ready(self, frame: DataFrame, names: tuple[str, ...]) -> Any:
        """The table, made when it is not there, with a column for each of the frame's."""
        from pyiceberg.exceptions import TableAlreadyExistsError  # noqa: PLC0415 - an extra
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        wanted = nullable(to_arrow_schema(frame.schema, timezone="UTC"))
        name = self._table.identifier
        if not self.there():
            self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            try:
                with (
                    self._catalog.create_table_transaction(name, wanted, properties=_BOUNDED) as work,
                    work.update_spec() as spec,
                ):
                    for each in names:
                        spec.add_identity(each)
            except TableAlreadyExistsError:
                pass  # another driver has made it
        table = self._load()
        there = tuple(table.schema().find_column_name(field.source_id) for field in table.spec().fields)
        if there != names:
            raise ConfigError(f"{self._table.where} is partitioned by {list(there)}, not by {list(names)}")
        self._check_types(table, wanted)
        if any(each.name not in _columns(table) for each in wanted):
            with table.update_schema() as update:
                update.union_by_name(wanted)
        return table

    def _check_types(self, table: Any, wanted: Any) -> None:
        """Refuse other types before anything is written; what lies deeper inside the commit looks at."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415
        from pyiceberg.types import PrimitiveType  # noqa: PLC0415

        schema = table.schema()
        there = {field.name: field.field_type for field in schema.fields}
        shared = [each for each in wanted if isinstance(there.get(each.name), PrimitiveType)]
        if not shared:
            return
        chosen = wanted.empty_table().select([each.name for each in shared]).schema
        for field in pyarrow_to_schema(chosen, schema.name_mapping).fields:
            if field.field_type != there[field.name]:
                raise ConfigError(
                    f"column {field.name} of {self._table.where} is {there[field.name]}, not {field.field_type}"
                )

    def _load(self) -> Any:
        """The table as it is. A commit on what it was is refused and not made to fit: the batch may be there by now."""
        table = self._catalog.load_table(self._table.identifier)
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def there(self) -> bool:
        """Whether the table is there."""
        return bool(self._catalog.table_exists(self._table.identifier))

    def _commit(self, files: Sequence[DataFile], app: str, batch: int, *, replace: bool) -> bool:
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

        told = {"klamm.app": app, "klamm.batch": str(batch)}
        for left in range(_TRIES - 1, -1, -1):
            table = self._load()
            if _version(table, app) >= batch:
                return False
            try:
                with table.transaction() as work:
                    if replace:
                        work.delete(_partitions(table, files), snapshot_properties=told)
                    work.add_files([file.path for file in files], snapshot_properties=told, check_duplicate_files=False)
                    work.set_properties({_property(app): str(batch)})
                break
            except CommitFailedException:
                if not left:
                    raise
        return True

    def merges(self, target: int) -> list[Merge]:
        """What a compaction would do, by partition."""
        if not self.there():
            return []
        found: dict[str, Merge] = {}
        for key, group in self._groups(self._load(), target):
            before = found.get(key, Merge(key, 0, 0, 0))
            size = sum(each.file.file_size_in_bytes for each in group)
            found[key] = Merge(key, before.files + len(group), before.into + 1, before.size + size)
        return list(found.values())

    @staticmethod
    def _groups(table: Any, target: int) -> Iterator[tuple[str, list[Any]]]:
        """Small files of one partition that become one."""
        parts: dict[str, list[Any]] = {}
        names = [field.name for field in table.spec().fields]
        for each in table.scan().plan_files():
            if each.file.spec_id != table.spec().spec_id:
                continue
            values = [each.file.partition[place] for place in range(len(names))]
            key = "/".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            parts.setdefault(key, []).append(each)
        for key in sorted(parts):
            tasks = sorted(parts[key], key=lambda each: str(each.file.file_path))
            for group in plan_bins([task.file.file_size_in_bytes for task in tasks], target):
                yield key, [tasks[place] for place in group]

    def compact(self, target: int, advance: Callable[[int], None]) -> int:
        """Rewrite small files as larger ones, a commit for each; returns how many files were replaced."""
        done = 0
        for _, group in list(self._groups(self._load(), target)):
            if self._merge([each.file.file_path for each in group]):
                done += len(group)
            advance(done)
        return done

    def _merge(self, paths: Sequence[str]) -> bool:
        """Files by one that holds their rows; False when one of them is no longer part of the table."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan, parquet_files_to_data_files  # noqa: PLC0415

        new: list[DataFile] = []
        for left in range(_TRIES - 1, -1, -1):
            table = self._load()
            tasks = [file for file in table.scan().plan_files() if file.file.file_path in set(paths)]
            if len(tasks) != len(paths):
                return False
            if not new:
                names = tuple(field.name for field in table.spec().fields)
                scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
                new = self._work(table, "compacted", names).write(scan.to_record_batches(tasks))
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
                        table.io, work.table_metadata, iter([each.path for each in new])
                    ):
                        update.append_data_file(added)
            except CommitFailedException:
                if not left:
                    raise
            else:
                return True
        return False


def _catalog(table: LakeTable) -> Any:
    """The catalog of the options; without a uri, a SQLite file in the folder, which is the warehouse too."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    options = dict(table.options)
    name = options.pop("catalog", "klamm")
    if not options and name == "klamm" and table.local is not None:
        folder = os.path.abspath(table.local)
        os.makedirs(folder, exist_ok=True)
        options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return load_catalog(name, **options)


def _partitions(table: Any, files: Sequence[DataFile]) -> Any:
    """What is true for the rows of all partitions that files belong to."""
    from pyiceberg.expressions import And, EqualTo, IsNull, Or, literal  # noqa: PLC0415

    types = {field.name: field.field_type for field in table.schema().fields}

    def one(name: str, text: str | None) -> Any:
        return IsNull(name) if text is None else EqualTo(name, literal(text).to(types[name]))

    found = [
        functools.reduce(And, [one(name, text) for name, text in partition])
        for partition in dict.fromkeys(file.partition for file in files)
    ]
    return functools.reduce(Or, found)


def _columns(table: Any) -> set[str]:
    """The columns a table has."""
    return {field.name for field in table.schema().fields}


def _property(app: str) -> str:
    return f"klamm.batch.{app_key(app)}"


def _version(table: Any, app: str) -> int:
    return int(table.properties.get(_property(app), -1))

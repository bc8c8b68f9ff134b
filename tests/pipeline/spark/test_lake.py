"""Tables of a lake, read by other libraries: rows are there once, whichever step of a batch the driver dies at."""

import datetime as dt
import os
import shutil
from decimal import Decimal

import deltalake
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Transaction

from klamm.model.errors import ConfigError
from klamm.pipeline import lake_sink
from klamm.pipeline.core.batch_ledger import LedgerError
from klamm.pipeline.core.lake_tables import LakeTable
from klamm.pipeline.lake.file_sink import FileSink
from klamm.pipeline.lake.sinks import open_sink, write_checked
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql import SqlError
from klamm.pipeline.testing import run
from pipeline.lake_driver import POINTS

pytestmark = pytest.mark.timeout(600)
FORMATS = ["parquet", "delta", "iceberg"]
SCHEMA = "n bigint, day date, kind string, price decimal(8,2), at timestamp"
APP = "klamm-pipeline-x.audit.0"
KINDS = ["a b " * 10, "ü/%", None]
DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]
TARGET_BYTES = 1 << 20
"""Larger than all files of a test together: everything of a partition is merged into one."""


class Killed(BaseException):
    """Nothing in the code waits for it."""


def table(tmp_path, kind, **more):
    return LakeTable("audit", kind, str(tmp_path / "a lake"), partition_by=("day", "kind"), **more)


def row(number):
    at = dt.datetime(2026, 1, 1, 12, 0, 0, number, tzinfo=dt.UTC)
    return (number, DAYS[number % 3], KINDS[number % 3], None if number % 5 else Decimal(number) / 4, at)


def frame(spark, numbers):
    return spark.createDataFrame([row(number) for number in numbers], SCHEMA)


def read(table):
    """By pyarrow, deltalake and pyiceberg, none of which knows of us."""
    if table.format == "delta":
        rows = deltalake.DeltaTable(table.path).to_pyarrow_dataset().to_table()
    elif table.format == "iceberg":
        catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{table.path}/catalog.db")
        rows = catalog.load_table(table.identifier).scan().to_arrow()
    elif not any(names for _, _, names in os.walk(table.path)):
        return []
    else:
        rows = ds.dataset(table.path, format=table.format, partitioning="hive").to_table()
    return rows.to_pylist()


def numbers(table):
    return sorted(row["n"] for row in read(table))


def dies(patch, owner, name, after):
    original = getattr(owner, name)

    def call(*args, **keywords):
        if after:
            original(*args, **keywords)
        raise Killed

    patch.setattr(owner, name, call)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_there_once_wherever_the_driver_dies(spark, tmp_path, kind):
    """Spark runs the batch again under its number; perhaps it computes it in another order."""
    where = table(tmp_path, kind)
    expected = []
    for batch, (point, (owner, name, after)) in enumerate(POINTS[kind].items()):
        rows = range(batch * 10, batch * 10 + 7)
        with pytest.MonkeyPatch.context() as patch:
            dies(patch, owner, name, after)
            with pytest.raises(Killed):
                open_sink(where).write(frame(spark, rows), APP, batch)
        if batch:
            stored = numbers(where)
            assert len(stored) == len(set(stored)), point
        open_sink(where).write(frame(spark, reversed(rows)), APP, batch)
        expected += rows
        assert numbers(where) == expected, point
    # The commit log is lost: Spark runs batches again that are long done.
    for lost in range(len(POINTS[kind])):
        assert open_sink(where).write(frame(spark, [999]), APP, lost) is False
    assert numbers(where) == expected
    # The name of a folder is text until a reader casts it.
    assert {
        stored["n"]: (str(stored["day"]), stored["kind"], stored["price"], stored["at"]) for stored in read(where)
    } == {n: (str(day), kind, price, at) for n, day, kind, price, at in map(row, expected)}
    assert open_sink(where).write(frame(spark, [70]), "another", 0) is True
    assert numbers(where) == [*expected, 70]


@pytest.mark.parametrize("kind", FORMATS)
def test_compaction_and_replacing_partitions(spark, tmp_path, kind):
    where = table(tmp_path, kind)
    sink = open_sink(where)
    batches, partitions = 4, len(DAYS)  # a batch has a row, and so a file, in every partition
    for batch in range(batches):
        sink.write(frame(spark, range(batch * partitions, (batch + 1) * partitions)), APP, batch)
    merges = sink.plan_merges(TARGET_BYTES)
    assert [(merge.files, merge.into) for merge in merges] == [(batches, 1)] * partitions
    assert sink.compact(TARGET_BYTES, lambda _: None) == batches * partitions
    assert sink.plan_merges(TARGET_BYTES) == []
    assert numbers(where) == list(range(batches * partitions))
    assert sink.write(frame(spark, [99]), APP, batches - 1) is False
    # 0, 3, 6 and 9 are of one partition, 2, 5, 8 and 11 of the one of nulls.
    assert sink.write(frame(spark, [30, 32]), "backfill", 0, replace=True) is True
    assert numbers(where) == [1, 4, 7, 10, 30, 32]
    assert sink.write(frame(spark, [33]), "backfill", 0, replace=True) is False
    assert numbers(where) == [1, 4, 7, 10, 30, 32]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_columns_may_come_and_may_not_change(spark, tmp_path, kind):
    where = LakeTable("audit", kind, str(tmp_path / "a lake"))
    sink = open_sink(where)
    sink.write(spark.createDataFrame([(1,)], "n bigint"), APP, 0)
    sink.write(spark.createDataFrame([(2, "x")], "n bigint, word string"), APP, 1)
    assert sorted((row["n"], row["word"]) for row in read(where)) == [(1, None), (2, "x")]
    with pytest.raises(ConfigError, match="partitioned by"):
        open_sink(table(tmp_path, kind)).write(frame(spark, [1]), APP, 2)
    with pytest.raises(ConfigError, match="word"):
        sink.write(spark.createDataFrame([(3, 4)], "n bigint, word int"), APP, 2)
    assert numbers(where) == [1, 2]


def test_other_files_are_written_once_too(spark, tmp_path):
    for kind in ("json", "csv", "orc"):
        where = LakeTable("audit", kind, str(tmp_path / kind))
        for batch in (0, 1, 1, 0):
            open_sink(where).write(spark.createDataFrame([(batch,)], "n bigint"), APP, batch)
        rows = spark.read.schema("n bigint").format(kind).load(where.path)
        assert sorted(value.n for value in rows.collect()) == [0, 1]
    with pytest.raises(ConfigError, match="compaction is for"):
        open_sink(where).plan_merges(TARGET_BYTES)
    os.makedirs(tmp_path / "old" / "_spark_metadata")
    with pytest.raises(ConfigError, match="Spark's file sink"):
        open_sink(LakeTable("audit", "parquet", str(tmp_path / "old")))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_query_of_ones_own(spark, tmp_path, kind):
    """Python's face of it, in a session that is not in UTC."""
    where = LakeTable("own", kind, str(tmp_path / "a lake"), "own")
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "America/New_York")
    rows = other.range(3).selectExpr("id AS n", "timestamp_millis(id) AS at")
    for batch in (0, 0, 1):
        lake_sink(kind, where.path, app="own", table="own")(rows, batch)
    zero = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert sorted((row["n"], row["at"] - zero) for row in read(where)) == sorted(
        (number, dt.timedelta(milliseconds=number)) for number in [0, 1, 2] * 2
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_of_two_drivers_with_the_same_batch_one_counts(spark, tmp_path, kind):
    """The second one has looked, found nothing, and written its files, when the first one comes to its end."""
    where = table(tmp_path, kind)
    open_sink(where).write(frame(spark, range(3)), APP, 0)
    slow, rows = open_sink(where), frame(spark, range(3, 6))
    owner, name = {
        "parquet": (FileSink, "_moves"),
        "delta": (deltalake.DeltaTable, "create_write_transaction"),
        "iceberg": (Transaction, "commit_transaction"),
    }[kind]
    original = getattr(owner, name)

    with pytest.MonkeyPatch.context() as patch:

        def late(*args, **keywords):
            patch.undo()
            assert open_sink(where).write(rows, APP, 1) is True
            return original(*args, **keywords)

        patch.setattr(owner, name, late)
        assert slow.write(rows, APP, 1) is False
    assert numbers(where) == list(range(6))


class Backup:
    """A checkpoint whose batches end at positions of a topic, copied at any step."""

    def __init__(self, folder):
        self.folder, self.copies = folder, {}
        self.checkpoint = QueryCheckpoint.at(str(folder))

    def plan(self, batch, end):
        (self.folder / "offsets").mkdir(parents=True, exist_ok=True)
        (self.folder / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"t":{{"0":{end}}}}}')

    def copy(self, name):
        self.copies[name] = self.folder.with_name(name)
        shutil.copytree(self.folder, self.copies[name])

    def restore(self, name):
        shutil.rmtree(self.folder)
        shutil.copytree(self.copies[name], self.folder)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_checkpoint_of_another_time_is_refused(spark, tmp_path, kind):
    """Copied at each step of a batch, and restored after the next one; then the table goes."""
    where, backup = LakeTable("audit", kind, str(tmp_path / "a lake")), Backup(tmp_path / "checkpoint")

    def write(batch, numbers):
        backup.plan(batch, max(numbers) + 1)
        rows = spark.createDataFrame([(number,) for number in numbers], "n bigint")
        write_checked(open_sink(where), rows, APP, batch, backup.checkpoint)

    backup.folder.mkdir()
    backup.copy("begun")
    backup.plan(0, 2)
    backup.copy("planned")
    write(0, [0, 1])
    backup.copy("written")
    write(1, [2])
    backup.copy("newest")
    for copy, batch, planned in (("begun", 0, [0, 1, 2]), ("planned", 0, [0, 1]), ("written", 1, [2, 3])):
        backup.restore(copy)
        with pytest.raises(LedgerError, match="checkpoint and sink disagree"):
            write(batch, planned)
        assert numbers(where) == [0, 1, 2], copy
    backup.restore("newest")
    write(1, [2])  # the driver died before Spark's commit: nothing is written again
    write(2, [3])
    assert numbers(where) == [0, 1, 2, 3]
    shutil.rmtree(where.path)
    with pytest.raises(LedgerError, match="has written batches up to 2"):
        write(3, [4])


def test_a_wrong_partition_is_told_where_it_was_written(spark):
    text = "CREATE STREAM s (n DOUBLE);\nCREATE SINK x WITH (format = 'delta', path = 'x', partition_by = '{}') AS {};"
    for name, select, words in (
        ("m", "SELECT n FROM s", "pipeline.sql:2:66: x has no column m for partition_by: it has n"),
        ("n", "SELECT n, 1 AS m FROM s", "x cannot be partitioned by n, which is double"),
    ):
        with pytest.raises(SqlError, match=words):
            run(text.format(name, select), {"s": [{"n": 1.5}]}, spark=spark)

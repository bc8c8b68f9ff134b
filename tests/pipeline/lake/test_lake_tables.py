"""What a statement says of a table, and which files become one: no Spark, no disk."""

import sys

import pyarrow as pa
import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline import lake_sink
from klamm.pipeline.core.lake_tables import DataFile, LakeTable, partition_folder, partition_names, plan_bins
from klamm.pipeline.lake.parquet_writer import ParquetTaskWriter, split_by_partition
from klamm.pipeline.lake.sinks import open_sink


def test_small_files_fill_large_ones_in_order():
    assert plan_bins([10, 20, 30], 100) == [[0, 1, 2]]
    assert plan_bins([10, 80, 20, 90, 30], 100) == [[0, 2, 4]]
    assert plan_bins([60, 60, 60], 100) == []
    assert plan_bins([30, 30, 60, 30, 10], 100) == [[0, 1], [2, 3, 4]]
    assert plan_bins([], 100) == []
    assert plan_bins([5], 100) == []


def test_partitions_are_columns_of_some_types():
    types = {"Day": "date", "n": "bigint", "x": "double"}
    assert partition_names(["day"], types, "t") == ("Day",)
    with pytest.raises(ConfigError, match="no column dy"):
        partition_names(["dy"], types, "t")
    with pytest.raises(ConfigError, match="which is double"):
        partition_names(["x"], types, "t")
    with pytest.raises(ConfigError, match="beside those"):
        partition_names(["n"], {"n": "bigint"}, "t")


def test_places():
    assert LakeTable("t", "delta", "lake/t").local == "lake/t"
    assert LakeTable("t", "delta", "file:///lake/t").local == "/lake/t"
    assert LakeTable("t", "delta", "file:/lake/t").local == "/lake/t"
    assert LakeTable("t", "delta", "s3://lake/t").local is None
    assert LakeTable("t", "iceberg", "lake").identifier == "klamm.t"
    assert LakeTable("t", "iceberg", "lake", "bank.audit").identifier == "bank.audit"
    assert partition_folder([("day", "2026-01-01"), ("kind", "a/b %ü"), ("x", None)]) == (
        "day=2026-01-01/kind=a_b___/x=__HIVE_DEFAULT_PARTITION__"
    )


def test_a_line_of_a_task_comes_back():
    file = DataFile("/a/b", (("day", "x"), ("n", None)), 7, 9)
    assert DataFile.decode(file.encode()) == file


def test_rows_are_split_where_a_value_changes():
    rows = pa.record_batch(
        {
            "day": pa.array(["a", "a", None, None, "b", "b"]),
            "flag": pa.array([True, False, False, False, None, None]),
            "n": pa.array(range(6)),
        }
    )
    parts = [(dict(key), part.column("n").to_pylist()) for key, part in split_by_partition(rows, ["day", "flag"])]
    assert parts == [
        ({"day": "a", "flag": "true"}, [0]),
        ({"day": "a", "flag": "false"}, [1]),
        ({"day": None, "flag": "false"}, [2, 3]),
        ({"day": "b", "flag": None}, [4, 5]),
    ]
    assert [part.num_rows for _, part in split_by_partition(rows, [])] == [6]
    assert list(split_by_partition(rows.slice(0, 0), ["day"])) == []


def test_a_task_that_fails_leaves_no_file(tmp_path):
    def batches():
        yield pa.record_batch({"day": ["a", "b"], "n": [1, 2]})
        raise RuntimeError("away")

    work = ParquetTaskWriter(str(tmp_path), "p", ("day",), keep=False)
    with pytest.raises(RuntimeError, match="away"):
        work.write(batches())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_task_writes_a_file_for_each_partition(tmp_path):
    rows = [pa.record_batch({"day": ["a", "b"], "n": [1, 2]}), pa.record_batch({"day": ["b", "b"], "n": [3, 4]})]
    files = ParquetTaskWriter(str(tmp_path), "p", ("day",), keep=False).write(iter(rows))
    assert [(dict(file.partition), file.rows) for file in files] == [({"day": "a"}, 1), ({"day": "b"}, 3)]
    for file in files:
        assert pa.parquet.read_table(file.path, partitioning=None).column_names == ["n"]
        assert (tmp_path / file.path).stat().st_size == file.size


@pytest.mark.parametrize(("kind", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch, kind, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library} is not installed: pip install 'klamm\[lake\]'"):
        lake_sink(kind, str(tmp_path), app="a")
    with pytest.raises(ConfigError, match="not a lake format"):
        lake_sink("dleta", str(tmp_path), app="a")


def test_a_catalog_is_named_by_options(tmp_path):
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    sink = open_sink(LakeTable("x", "iceberg", None, "bank.audit", (), options))
    assert sink.plan_merges(1 << 20) == []
    assert (tmp_path / "c.db").exists()
    assert not (tmp_path / "w").exists()

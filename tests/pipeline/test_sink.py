"""Rows to records: which columns count, and where rows go; without Spark."""

import pyarrow as pa
import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sink import check_schema, split_by_target


def targets(columns, topic=None):
    return [
        (name, part.column("value").to_pylist(), partition)
        for name, part, partition in split_by_target(pa.record_batch(columns), topic)
    ]


def test_the_option_wins_over_the_column():
    rows = {"value": ["1", "2"], "topic": ["a", "b"]}
    assert targets(rows, "c") == [("c", ["1", "2"], None)]
    assert targets(rows) == [("a", ["1"], None), ("b", ["2"], None)]


def test_rows_without_a_partition_go_where_their_key_says():
    numbers = pa.array([0, None, 2], pa.int32())
    assert targets({"value": ["1", "2", "3"], "partition": numbers}, "t") == [
        ("t", ["1", "3"], "partition"),
        ("t", ["2"], None),
    ]
    assert targets({"value": ["1"], "partition": pa.array([None], pa.int32())}, "t") == [("t", ["1"], None)]


def test_a_row_without_a_topic_is_refused():
    with pytest.raises(ConfigError, match="a row has no topic"):
        targets({"value": ["1", "2"], "topic": ["a", None]})


def test_columns_that_are_no_records():
    check_schema({"value": "string", "key": "binary", "other": "int"}, "t")
    check_schema({"value": "binary", "topic": "string", "partition": "int"}, None)
    for fields, topic, words in (
        ({"key": "string"}, "t", "there is no column value"),
        ({"value": "string"}, None, "neither an option topic nor a column"),
        ({"value": "int"}, "t", "column value is int; cast it to string or binary"),
        ({"value": "string", "partition": "bigint"}, "t", "cast it to int"),
        ({"value": "string", "headers": "map<string,string>"}, "t", "array<struct<key:string,value:binary>>"),
    ):
        with pytest.raises(ConfigError) as refusal:
            check_schema(fields, topic)
        assert words in str(refusal.value)

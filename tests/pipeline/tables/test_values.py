"""From bytes to values, one record at a time: what a type takes, and what is a bad record."""

import datetime as dt
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import ConfigError
from klamm.pipeline.tables.core.csv_line import split_fields
from klamm.pipeline.tables.core.field_types import FieldType, parse_field_type
from klamm.pipeline.tables.core.inferred_columns import InferredColumns
from klamm.pipeline.tables.core.json_values import from_json, parse_document, read_fields, write_json
from klamm.pipeline.tables.core.text_values import BadValue, from_text
from klamm.pipeline.tables.core.time_formats import make_time_parser

UTC = dt.UTC


@pytest.mark.parametrize(
    ("declared", "duckdb"),
    [
        ("STRING", "VARCHAR"),
        ("VARCHAR(20)", "VARCHAR"),
        ("INTEGER", "INTEGER"),
        ("LONG", "BIGINT"),
        ("DECIMAL", "DECIMAL(10,0)"),
        ("DECIMAL(12,2)", "DECIMAL(12,2)"),
        ("NUMERIC(5)", "DECIMAL(5,0)"),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
        ("TIMESTAMP_NTZ", "TIMESTAMP"),
        ("ARRAY<STRING>", "VARCHAR[]"),
        ("MAP<STRING, BIGINT>", "MAP(VARCHAR, BIGINT)"),
        (
            "STRUCT<`a b`: INT, c: ARRAY<MAP<STRING, DECIMAL(3,1)>>>",
            'STRUCT("a b" INTEGER, "c" MAP(VARCHAR, DECIMAL(3,1))[])',
        ),
        ("VARIANT", "JSON"),
        ("BINARY", "BLOB"),
    ],
)
def test_types_have_names_in_duckdb(declared, duckdb):
    assert parse_field_type(declared).duckdb == duckdb


def read(text: str, **types: str):
    columns = [(name, parse_field_type(kind)) for name, kind in types.items()]
    return read_fields(parse_document(text.encode()), columns)


@pytest.mark.parametrize(
    "text",
    [
        '{"id":3}{"id":4}',
        '{"id":3} and more',
        "{'id':3}",
        "[1]",
        "3",
        "null",
        "",
        "nope",
        '{"id":NaN}',
        '{"id":3,}',
        "\udcff",
    ],
)
def test_a_value_is_one_json_object(text):
    with pytest.raises(BadValue):
        parse_document(text.encode(errors="surrogateescape"))


def test_a_document_nested_too_deeply_is_bad_and_no_crash():
    with pytest.raises(BadValue, match="too deeply"):
        parse_document(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


def test_fields_are_found_by_name_and_the_rest_is_ignored():
    assert read('{"a": 1, "other": [1], "b": "x", "a": 2}', a="INT", b="STRING", c="DOUBLE") == [2, "x", None]
    with pytest.raises(BadValue, match='a: "1" is no INT'):
        read('{"a": "1"}', a="INT")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("BOOLEAN", "true", True),
        ("TINYINT", "-128", -128),
        ("BIGINT", "9223372036854775807", (1 << 63) - 1),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "1e3", 1000.0),
        ("DOUBLE", '"NaN"', math.nan),
        ("DECIMAL(12,2)", "1.2", Decimal("1.20")),
        ("DECIMAL(12,2)", "1.230", Decimal("1.23")),
        ("DECIMAL(12,2)", '"7.5"', Decimal("7.50")),
        (
            "DECIMAL(38,2)",
            "123456789012345678901234567890123456.78",
            Decimal("123456789012345678901234567890123456.78"),
        ),
        ("STRING", "1.50", "1.50"),
        ("STRING", '{"a": [1.10, null, "x"]}', '{"a":[1.10,null,"x"]}'),
        ("DATE", '"2026-05-01"', dt.date(2026, 5, 1)),
        ("TIMESTAMP", '"2026-05-01T10:00:00Z"', dt.datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-05-01 10:00:00.123456"', dt.datetime(2026, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-05-01T10:00:00+02:00"', dt.datetime(2026, 5, 1, 8, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", '"2026-05-01T10:00:00"', dt.datetime(2026, 5, 1, 10, tzinfo=UTC).replace(tzinfo=None)),
        ("BINARY", '"AP8="', b"\0\xff"),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("MAP<STRING, INT>", '{"a": 1}', [("a", 1)]),
        ("STRUCT<a: INT, b: STRING>", '{"b": "x", "c": 1}', {"a": None, "b": "x"}),
    ],
)
def test_what_a_type_takes(kind, value, expected):
    (result,) = read(f'{{"a": {value}}}', a=kind)
    assert result == expected or (isinstance(expected, float) and math.isnan(expected) and math.isnan(result))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BOOLEAN", "1"),
        ("INT", "true"),
        ("INT", "1.0"),
        ("INT", "1e2"),
        ("TINYINT", "128"),
        ("BIGINT", "9223372036854775808"),
        ("DOUBLE", '"1.5"'),
        ("DOUBLE", "1" + "0" * 400),
        ("DECIMAL(12,2)", "1.239"),
        ("DECIMAL(3,2)", "10"),
        ("DECIMAL(12,2)", "1e999999999"),
        ("DECIMAL(12,2)", "true"),
        ("DATE", '"2026-13-01"'),
        ("DATE", "20574"),
        ("TIMESTAMP", '"today"'),
        ("TIMESTAMP", '"2026-02-30T00:00:00Z"'),
        ("TIMESTAMP", "1777629600000"),
        ("BINARY", '"no base64"'),
        ("ARRAY<INT>", '{"a": 1}'),
        ("ARRAY<INT>", '["x"]'),
        ("STRUCT<a: INT>", "[1]"),
        ("MAP<INT, INT>", '{"x": 1}'),
    ],
)
def test_what_it_does_not(kind, value):
    with pytest.raises(BadValue):
        read(f'{{"a": {value}}}', a=kind)


@pytest.mark.parametrize(
    ("time_format", "value"),
    [
        ("seconds", 1777629600),
        ("seconds", Decimal("1777629600.0")),
        ("millis", 1777629600000),
        ("MICROS", 1777629600000000),
        ("millis", "1777629600000"),
        ("iso", "2026-05-01T10:00:00Z"),
        (None, "2026-05-01T12:00:00+02:00"),
        ("yyyy-MM-dd HH:mm:ss", "2026-05-01 10:00:00"),
        ("dd.MM.uuuu HH:mm", "01.05.2026 10:00"),
        ("d/M/yyyy h:mm a", "1/5/2026 10:00 AM"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2026-05-01T12:00:00.000+02:00"),
        ("MMM d yyyy 'o''clock' HH", "May 1 2026 o'clock 10"),
    ],
)
def test_times_as_a_statement_spells_them(time_format, value):
    parse = make_time_parser(time_format)
    assert from_json(value, FieldType("TIMESTAMP"), parse) == dt.datetime(2026, 5, 1, 10, tzinfo=UTC)
    naive = from_json(value, FieldType("TIMESTAMP_NTZ"), parse)
    assert naive.tzinfo is None


@pytest.mark.parametrize(
    ("time_format", "value"),
    [
        ("seconds", "2026-05-01T10:00:00Z"),
        ("seconds", 10**30),
        ("millis", True),
        ("millis", Decimal("1.5")),
        (None, 1777629600),
        ("iso", "10:00"),
        ("iso", "2026"),
        ("yyyy-MM-dd", "2026-02-30"),
        ("yyyy-MM-dd", "2026-05-01 10:00"),
        ("yyyy-MM-dd", 20260501),
    ],
)
def test_what_is_no_time_in_a_format(time_format, value):
    with pytest.raises(BadValue):
        from_json(value, FieldType("TIMESTAMP"), make_time_parser(time_format))


@pytest.mark.parametrize("pattern", ["yyyy-MM-dd GGG", "yyyy-MM-dd yyyy", "yy-MM-dd"])
def test_a_pattern_that_is_not_read_is_refused(pattern):
    with pytest.raises(ConfigError, match="timestamp_format"):
        make_time_parser(pattern)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.integers(0, 38))
def test_a_decimal_is_kept_exactly_or_refused(number, precision, scale):
    kind = FieldType("DECIMAL", (precision, min(scale, precision)))
    try:
        value = from_json(number, kind)
    except BadValue:
        return
    assert value == number
    assert value.as_tuple().exponent == -kind.size[1]
    assert len(value.as_tuple().digits) <= precision or value == 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_json_is_written_as_it_was_read(value):
    import json

    assert json.loads(write_json(value)) == value


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a,1,", ["a", "1", None]),
        ('"",2', [None, "2"]),
        ('"a \\"b\\", c",3', ['a "b", c', "3"]),
        ("", [None]),
        ('"two\nlines",1', ["two\nlines", "1"]),
    ],
)
def test_csv_as_spark_writes_it(text, fields):
    assert split_fields(text) == fields


@pytest.mark.parametrize("text", ['"open', '"a"b,1', '"a ""b""",3'])
def test_what_is_no_csv(text):
    with pytest.raises(BadValue):
        split_fields(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("INT", " 5 ", 5),
        ("BOOLEAN", "Yes", True),
        ("DOUBLE", "-Infinity", -math.inf),
        ("DECIMAL(4,1)", "2.50", Decimal("2.5")),
        ("BINARY", "x", b"x"),
    ],
)
def test_text_of_keys_and_csv(kind, text, value):
    assert from_text(text, parse_field_type(kind)) == value


@pytest.mark.parametrize(
    ("kind", "text"), [("INT", "5.0"), ("INT", "9" * 50), ("BOOLEAN", "maybe"), ("DATE", "1.5.2026"), ("DOUBLE", "1_0")]
)
def test_text_that_is_no_value(kind, text):
    with pytest.raises(BadValue):
        from_text(text, parse_field_type(kind))


def test_inferred_columns_only_widen():
    inferred = InferredColumns()
    inferred.observe({"id": 1, "n": None, "ok": True})
    assert dict(inferred.columns()) == {"id": FieldType("BIGINT"), "n": FieldType("STRING"), "ok": FieldType("BOOLEAN")}
    inferred.observe({"id": Decimal("1.5"), "n": 2, "more": {"a": 1}})
    assert inferred.types == {"id": "DOUBLE", "n": "BIGINT", "ok": "BOOLEAN", "more": "VARIANT"}
    inferred.observe({"id": 7, "n": "text", "ok": 1, "big": 1 << 70})
    assert inferred.types == {"id": "DOUBLE", "n": "STRING", "ok": "STRING", "more": "VARIANT", "big": "DOUBLE"}


def test_names_that_cannot_be_columns_are_ignored():
    inferred = InferredColumns()
    inferred.observe({"a": 1, "A": 2, "": 3, "\ud800": 4, "x\0": 5})
    assert list(inferred.types) == ["a"]
    inferred.observe({f"field {number}": number for number in range(5000)})
    assert len(inferred.types) == 1000

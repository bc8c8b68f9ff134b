"""Batches of values as columns: the short cut over whole batches gives what the rules give, value by value."""

import json
import random

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.pipeline.tables.core.field_types import parse_field_type
from klamm.pipeline.tables.core.inferred_columns import InferredColumns
from klamm.pipeline.tables.value_readers import CsvReader, InferringReader, JsonReader, TextReader

TYPES = {
    "flag": "BOOLEAN",
    "small": "TINYINT",
    "big": "BIGINT",
    "ratio": "DOUBLE",
    "price": "DECIMAL(12,2)",
    "name": "STRING",
    "day": "DATE",
    "at": "TIMESTAMP",
}
COLUMNS = [(name, parse_field_type(kind)) for name, kind in TYPES.items()]
NUMBERS = st.integers(-200, 200) | st.floats(-1e6, 1e6).map(
    lambda number: round(number, random.Random(number).choice([0, 1, 2, 3]))
)
TIMES = st.sampled_from(
    ["2026-05-01T10:00:00Z", "2026-05-01 10:00:00", "2026-05-01", "2026-05-01T10:00:00.5+02:00", "soon", ""]
)
FIELDS = st.none() | st.booleans() | NUMBERS | st.text(max_size=4) | TIMES | st.lists(st.integers(), max_size=1)
DOCUMENTS = st.dictionaries(st.sampled_from([*TYPES, "other"]), FIELDS).map(
    lambda document: json.dumps(document).encode()
)
ODD = st.sampled_from(
    [
        None, b"", b"null", b"[1]", b"3", b"nope", b'{"big":1}{"big":2}', b'{"big":1},"other":{"big":2}',
        b'{"big":1},"value":{"big":2}',
        b'{"big":1}}\n{"value":{"big":2}', b'{"big":1', b'"big":1}', b'{"big":1} x', b"{'big':1}", b'{"big":1,}',
        b'{"big":NaN}',
        b'{"big":\n1}', b'{"name":"a\nb"}', b'{"name":"\xff"}', b'{"big":1,"big":2}', b'{"name":"\\ud800"}',
        b' {"big":1}\n',
        b'{"price":1.239}', b'{"price":1e2}', b'{"big":9223372036854775808}', b'{"Big":1}',
        b'{"ratio":1e400}', b"\xef\xbb\xbf{}",
    ]
)  # fmt: skip


def one_by_one(values):
    """The rules alone: a column of structs is never read by Arrow's parser."""
    reader = JsonReader(COLUMNS)
    reader._schema = None
    return reader.read(values, None)


@given(st.lists(DOCUMENTS | ODD, min_size=1, max_size=6))
@example([b'{"big":1},"value":{"big":2}', b'{"big":3}'])
@example([b'{"name":"plain","at":"2026-05-01T10:00:00Z"}', None])
def test_a_whole_batch_is_read_as_its_values_are(values):
    array = pa.array(values, pa.binary())
    expected = one_by_one(array)
    result = JsonReader(COLUMNS).read(array, None)
    assert [column.to_pylist() for column in result.arrays] == [column.to_pylist() for column in expected.arrays]
    assert result.errors == expected.errors


def test_plain_batches_take_the_short_cut():
    values = pa.array([b'{"big":%d,"price":%d.25,"at":"2026-05-01T10:00:00.000000Z"}' % (n, n) for n in range(100)])
    arrays = JsonReader(COLUMNS)._read_whole(values)
    assert arrays is not None
    assert arrays[2].to_pylist() == list(range(100))
    assert str(arrays[4][3]) == "3.25"


def test_csv():
    reader = CsvReader([("id", parse_field_type("INT")), ("name", parse_field_type("STRING"))])
    result = reader.read(pa.array([b"1,ada", b"2", b"x,ada", None, b'3,"x"', b"\xff,a"]), None)
    assert [array.to_pylist() for array in result.arrays] == [
        [1, None, None, None, 3, None],
        ["ada", None, None, None, "x", None],
    ]
    assert [error is not None for error in result.errors] == [False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("INT", [b"1", b"x", None], [1, None, None]),
        ("BINARY", [b"\xff"], [b"\xff"]),
        ("STRING", [b"a", b"\xff"], ["a", None]),
    ],
)
def test_single_values(kind, values, expected):
    result = TextReader([("v", parse_field_type(kind))]).read(pa.array(values), None)
    assert result.arrays[0].to_pylist() == expected
    wrong = [value is not None and parsed is None for value, parsed in zip(values, expected, strict=True)]
    assert [error is not None for error in result.errors or [None] * len(values)] == wrong


def test_columns_that_no_statement_declares():
    reader = InferringReader(InferredColumns())
    first = reader.read(pa.array([b'{"id":"a","n":1}', b"nope", None]), None)
    assert [array.to_pylist() for array in first.arrays] == [["a", None, None], [1, None, None]]
    assert [error is not None for error in first.errors] == [False, True, False]
    second = reader.read(pa.array([b'{"n":1.5,"tags":["x"]}']), None)
    assert [name for name, _ in reader.columns] == ["id", "n", "tags"]
    assert [array.to_pylist() for array in second.arrays] == [[None], [1.5], ['["x"]']]

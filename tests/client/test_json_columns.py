"""Tables to JSON and back: rows are objects, fields are columns of the types they have."""

import asyncio
import datetime as dt
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import klamm
import klamm.testing
from klamm.client import SerializationError, TopicPartition
from klamm.client.json_columns import _parse
from klamm.client.producer.table_json import with_json


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


@pytest.fixture(scope="module")
def producer(broker):
    with broker.producer() as client:
        yield client


def filled(broker, producer, *values):
    topic = broker.topic()
    for value in values:
        producer.send(topic, value, key=b"k")
    producer.flush()
    return topic


def read(broker, topic, **options):
    return klamm.read_topic(topic, bootstrap=broker.bootstrap, **options)


def test_rows_become_objects_and_objects_become_columns_again(broker, producer):
    topic = broker.topic()
    orders = pa.table(
        {
            "id": ["a", "b", "c"],
            "total": [4.2, float("nan"), 7.0],
            "count": [1, None, 3],
            "paid": [True, False, None],
            "tags": [["x"], [], None],
            "till": [{"name": "one", "row": 1}, None, {"name": "two", "row": 2}],
        }
    )
    producer.send_arrow(topic, orders, key="id", value="json")
    producer.flush()
    stored = read(broker, topic)
    assert stored["key"].to_pylist() == [b"a", b"b", b"c"]
    assert json.loads(stored["value"][1].as_py()) == {
        "id": "b",
        "total": None,
        "count": None,
        "paid": False,
        "tags": [],
        "till": None,
    }
    table = read(broker, topic, value="json")
    assert table.schema.names[:7] == ["key", "id", "total", "count", "paid", "tags", "till"]
    assert table.schema.names[7:] == ["topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert table.schema.field("total").type == pa.float64()
    assert table.schema.field("count").type == pa.int64()
    assert table.schema.field("paid").type == pa.bool_()
    assert table["till"].to_pylist() == orders["till"].to_pylist()
    assert table["total"].to_pylist() == [4.2, None, 7.0]


def test_what_a_row_is(broker, producer):
    topic = broker.topic()
    now = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
    table = pa.table(
        {
            "key": ["k"],
            "timestamp": [now],
            "day": [dt.date(2026, 5, 1)],
            "price": [decimal.Decimal("4.20")],
            "wait": [dt.timedelta(seconds=1.5)],
            "name": ["Zürich"],
        }
    )
    producer.send_arrow(topic, table, value="json")
    producer.flush()
    stored = read(broker, topic)
    assert stored["value"][0].as_py() == '{"day":"2026-05-01","price":"4.20","wait":1.5,"name":"Zürich"}'.encode()
    assert stored["timestamp"][0].as_py() == now
    assert stored["key"][0].as_py() == b"k"


def test_what_cannot_be_a_row_is_refused_before_anything_is_sent(broker, producer):
    topic = broker.topic()
    with pytest.raises(TypeError, match="column 'data' is binary: JSON has no bytes"):
        producer.send_arrow(topic, pa.table({"data": [b"x"], "n": [1]}), value="json")
    with pytest.raises(ValueError, match="no column is left for value"):
        producer.send_arrow(topic, pa.table({"key": ["x"]}), value="json")
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        producer.send_arrow(topic, pa.table({"n": [[float("inf")]]}), value="json")
    assert read(broker, topic).num_rows == 0


def test_a_column_named_json_is_a_column(broker, producer):
    topic = broker.topic()
    producer.send_arrow(topic, pa.table({"json": ["as it is"], "n": [1]}), value="json")
    producer.flush()
    assert read(broker, topic, value="str")["value"].to_pylist() == ["as it is"]


def test_fields_named_like_columns_of_a_record_and_values_that_are_no_objects(broker, producer):
    topic = filled(broker, producer, b'{"offset": 7,\n "n": 1}', None, b'{"n": 2.5}')
    table = read(broker, topic, value="json")
    assert table["value.offset"].to_pylist() == [7, None, None]
    assert table["offset"].to_pylist() == [0, 1, 2]
    assert table["n"].to_pylist() == [1.0, None, 2.5]
    topic = filled(broker, producer, b"1", b"2")
    assert read(broker, topic, value="json")["value"].to_pylist() == [1, 2]
    assert read(broker, broker.topic(), value="json").num_rows == 0


POISON = [b"{", b"", b"1} {", b'1,"other":2', b"\xff", b"NaN", b'{"a":1}{"a":2}', b"nonsense"]


@pytest.mark.parametrize("poison", POISON)
def test_values_that_are_no_json_are_raised_skipped_or_told(broker, producer, poison):
    topic = filled(broker, producer, b'{"n":1}', poison, b'{"n":3}')
    with pytest.raises(SerializationError, match="offset 1: the value is no json") as raised:
        read(broker, topic, value="json")
    assert raised.value.topic_partition == TopicPartition(topic, 0)
    assert (raised.value.offset, raised.value.key, raised.value.value) == (1, b"k", poison)
    errors = []
    for on_error in ("skip", errors.append):
        table = read(broker, topic, value="json", on_error=on_error)
        assert table["n"].to_pylist() == [1, 3]
        assert table["offset"].to_pylist() == [0, 2]
    assert [error.offset for error in errors] == [1]


def test_text_and_what_is_none(broker, producer):
    topic = filled(broker, producer, "Grüezi".encode(), b"\xff", None)
    with pytest.raises(SerializationError, match="offset 1: the value is no str"):
        read(broker, topic, value="str")
    assert read(broker, topic, value="str", on_error="skip")["value"].to_pylist() == ["Grüezi", None]
    with pytest.raises(ValueError, match="value='yaml' is not known: write bytes, str, json"):
        read(broker, topic, value="yaml")


def test_values_without_a_common_type_are_said_to_be_so(broker, producer):
    topic = filled(broker, producer, b'{"n": 1}', b'{"n": "one"}')
    with pytest.raises(SerializationError, match=r'no common type: .*value="str" reads them as text'):
        read(broker, topic, value="json")


# Texts begin with a letter: Arrow takes those that look like a moment for one.
texts = st.text(st.characters(codec="utf-8"), max_size=8).map("t{}".format)
row_lists = st.lists(st.fixed_dictionaries({"a": st.integers(-(2**53), 2**53), "b": texts}), min_size=1, max_size=20)


@given(row_lists)
@settings(max_examples=50, deadline=None)
def test_any_rows_make_the_round(rows):
    """Without a broker: what `send_arrow` writes is what `read_topic` reads."""
    table = asyncio.run(with_json(pa.table({name: [row[name] for row in rows] for name in ("a", "b")}), {}))
    assert _parse(pa.table({"value": table["json"]})).to_pylist() == rows

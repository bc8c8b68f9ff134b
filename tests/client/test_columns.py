"""Tables in and out; `make compat` tells the same stories to Apache Kafka."""

import asyncio
import datetime as dt
import json

import confluent_kafka
import pandas as pd
import pyarrow as pa
import pytest

from harness.client_stories import PATIENCE_S, topic
from harness.column_stories import COLUMNS, table
from harness.wire import unique
from klamm.client import Producer

LONG = "longer than the twelve bytes a view holds itself"
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
SWAPPED = pa.struct([("value", pa.string()), ("more", pa.int8()), ("key", pa.string_view())])
TEXTS = ["a", None, "", LONG]
HEADERS = [[("x", b"1"), ("x", None)], None, [], [("y", b"")]]


@pytest.mark.parametrize("story", COLUMNS.values(), ids=COLUMNS.keys())
def test_story(klamm, story):
    story(klamm.bootstrap)


def test_inside_a_running_loop(klamm):
    name = topic(klamm.bootstrap)

    async def notebook():
        with Producer(bootstrap_servers=klamm.bootstrap) as producer:
            producer.send(name, b"x")
        return table(name, klamm.bootstrap).num_rows

    assert asyncio.run(notebook()) == 1


# What a column may be, as another client reads it


def read_by_another(bootstrap, name, count):
    """Keys, values, headers and timestamps of a topic of one partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": unique("g"), "log_level": 0})
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    messages = consumer.consume(count, PATIENCE_S)
    consumer.close()
    return [(message.key(), message.value(), message.headers() or [], message.timestamp()[1]) for message in messages]


def sent(klamm, rows, count=4, **options):
    name = topic(klamm.bootstrap)
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for delivery in producer.send_arrow(name, rows, **options):
            delivery.result(PATIENCE_S)
    return read_by_another(klamm.bootstrap, name, count)


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "slice"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.binary(),
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_binary()),
    ],
    ids=str,
)
def test_text_and_bytes_of_every_kind(klamm, kind, sliced):
    texts = (["before"] if sliced else []) + TEXTS
    column = pa.array(texts, pa.string())
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type).dictionary_encode().cast(kind)
    else:
        column = column.cast(kind)
    rows = pa.table({"key": column, "value": column}).slice(1 if sliced else 0)
    wanted = [None if text is None else text.encode() for text in TEXTS]
    assert [row[:2] for row in sent(klamm, rows)] == [(value, value) for value in wanted]


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "slice"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(PAIR),
        pa.large_list(PAIR),
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.string_view(), pa.string()),
        pa.list_(SWAPPED),
    ],
    ids=str,
)
def test_headers_of_every_kind(klamm, kind, sliced):
    given = ([[("before", b"0")]] if sliced else []) + HEADERS
    if not pa.types.is_map(kind):
        given = [
            None if headers is None else [{"key": key, "value": value} for key, value in headers] for headers in given
        ]
    rows = pa.table({"value": ["v"] * len(given), "headers": pa.array(given, kind)}).slice(1 if sliced else 0)
    assert [row[2] for row in sent(klamm, rows)] == [header or [] for header in HEADERS]


def test_headers_that_are_never_there(klamm):
    for column in (pa.nulls(2), pa.array([[], None])):
        assert [row[2] for row in sent(klamm, pa.table({"value": ["v"] * 2, "headers": column}), 2)] == [[], []]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([dt.date(2026, 5, 1)]), 1_777_593_600_000),
        (pa.array([dt.date(2026, 5, 1)], pa.date64()), 1_777_593_600_000),
        (pa.array([1_777_593_600], pa.timestamp("s")), 1_777_593_600_000),
        (pa.array([1_777_593_600_000_999], pa.timestamp("us", "Europe/Vienna")), 1_777_593_600_000),
        (pa.array([1_777_593_600_000], pa.uint64()), 1_777_593_600_000),
        (pa.array([17], pa.int8()), 17),
    ],
    ids=lambda column: str(column.type) if isinstance(column, pa.Array) else "",
)
def test_times_of_every_kind(klamm, column, wanted):
    assert sent(klamm, pa.table({"value": ["v"], "timestamp": column}), 1)[0][3] == wanted


class Frame:
    """What polars, DuckDB and others are to Arrow: columns by the C interface, text as views."""

    def __init__(self, rows):
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema=None):
        return self._rows.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "form",
    [
        pd.DataFrame,
        lambda columns: pd.DataFrame(columns, index=[7, 8, 9]),
        lambda columns: Frame(pa.table({name: pa.array(column, pa.string_view()) for name, column in columns.items()})),
        lambda columns: pa.table(columns).to_reader(1),
        pa.RecordBatch.from_pydict,
    ],
    ids=["pandas", "pandas with an index", "c stream", "reader", "record batch"],
)
def test_tables_of_every_kind(klamm, form):
    rows = form({"key": ["a", None, "c"], "value": ["x", LONG, None]})
    assert [row[:2] for row in sent(klamm, rows, 3)] == [(b"a", b"x"), (None, LONG.encode()), (b"c", None)]


def test_an_extension_is_sent_as_it_is_kept(klamm):
    text = json.dumps({"a": 1})
    rows = pa.table({"key": pa.array([b"\1" * 16], pa.uuid()), "value": pa.array([text], pa.json_())})
    assert sent(klamm, rows, 1)[0][:2] == (b"\1" * 16, text.encode())


def test_what_cannot_be_sent_names_the_column_and_what_to_do(klamm):
    name = topic(klamm.bootstrap)
    good = {"value": ["v"]}
    words = {
        r"column 'value' is int64; for value it must be text or binary: cast it first.*value\.serializer": {
            "value": [1]
        },
        r"column 'value' is struct<a: int64>.*e\.g\. JSON": {"value": [{"a": 1}]},
        r"column 'value' is dictionary<values=int64": {"value": pa.array([1]).dictionary_encode()},
        r"column 'key' is double; for key .*cast it first": {"key": [1.5], **good},
        r"column 'timestamp' is string; for timestamp it must be a timestamp": {"timestamp": ["2026-05-01"], **good},
        r"column 'timestamp' is double": {"timestamp": [1.5], **good},
        r"column 'headers' is string; for headers it must be list<struct<key": {"headers": ["h"], **good},
        r"column 'headers' is list<.*name": {"headers": [[{"name": "h", "value": b"v"}]], **good},
        r"column 'headers' is list<.*int64": {"headers": [[{"key": "h", "value": 1}]], **good},
        r"column 'headers' is map<string, int64": {
            "headers": pa.array([[("h", 1)]], pa.map_(pa.string(), pa.int64())),
            **good,
        },
    }
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for wanted, columns in words.items():
            with pytest.raises(TypeError, match=wanted):
                producer.send_arrow(name, pa.table(columns))
        with pytest.raises(TypeError, match="column 'at' is string; for partition it must be whole numbers"):
            producer.send_arrow(name, pa.table({"at": ["0"], **good}), partition="at")
        for wrong in (None, [1, 2], {"value": ["v"]}, "value"):
            with pytest.raises(TypeError, match=f"DataFrame of pandas or polars, not {type(wrong).__name__}"):
                producer.send_arrow(name, wrong)
    assert table(name, klamm.bootstrap).num_rows == 0

"""Records of topics as tables of an ad-hoc query: which columns they have, and of which types."""

import datetime as dt
import json

import pyarrow as pa
import pytest

from klamm.pipeline.tables.queries import LimitExceeded, QueryError, QueryLimits
from klamm.pipeline.tables.topic_tables import TopicDatabase
from klamm.records.arrow import schema
from klamm.registry.client import parse_settings, shared_registry
from pipeline.small_registry import small_registry

AT = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)


def batch(*records):
    """Records of (key, value) with consecutive offsets; a third part are headers."""
    rows = [
        {
            "key": key,
            "value": value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": AT,
            "timestampType": 0,
            "headers": [{"key": name, "value": data} for name, data in (rest[0] if rest else [])],
        }
        for offset, (key, value, *rest) in enumerate(records)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema())


@pytest.fixture
def database():
    with TopicDatabase(QueryLimits(memory_bytes=64 << 20)) as opened:
        yield opened


def types(database, topic="t"):
    return {column["name"]: column["type"] for column in database.columns(topic)}


def test_fields_of_json_are_columns(database):
    loaded = database.load(
        "t",
        [
            batch(
                (b"a", {"n": 1, "x": 1.5, "s": "text", "ok": True, "at": "2026-05-01T10:00:00Z", "day": "2026-05-01"})
            ),
            batch((b"b", {"n": 3, "nested": {"list": [1, 2]}, "s": None}), (None, b"no JSON"), (b"c", None)),
        ],
    )
    assert (loaded.records, loaded.undecoded) == (4, 0)
    assert types(database) == {
        "n": "BIGINT",
        "x": "DOUBLE",
        "s": "VARCHAR",
        "ok": "BOOLEAN",
        "at": "TIMESTAMP WITH TIME ZONE",
        "day": "DATE",
        "nested": "STRUCT(list UBIGINT[])",
        "_key": "VARCHAR",
        "_value": "VARCHAR",
        "_timestamp": "TIMESTAMP WITH TIME ZONE",
        "_partition": "INTEGER",
        "_offset": "BIGINT",
        "_headers": "MAP(VARCHAR, VARCHAR)",
    }
    answer = database.query("SELECT sum(n) AS n, count(*) AS all, count(s) AS s, min(n) - max(n) AS less FROM t").table
    assert answer.to_pylist() == [{"n": 4, "all": 4, "s": 1, "less": -2}]
    (row,) = database.query("SELECT _value, _key, n FROM t WHERE _offset = 1 AND _key IS NULL").table.to_pylist()
    assert row == {"_value": "no JSON", "_key": None, "n": None}
    recent = database.query("SELECT count(*) AS c FROM t WHERE _timestamp > now() - INTERVAL 100 YEAR").table
    assert recent["c"].to_pylist() == [4]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -2], "BIGINT"),
        ([1, 2**63 + 5], "HUGEINT"),
        ([1, 2.5], "DOUBLE"),
        ([1, "x"], "VARCHAR"),
        (["2026-05-01", "soon"], "VARCHAR"),
        (["2026-05-01T10:00:00Z", "2026-13-01T10:00:00Z"], "VARCHAR"),
        ([None, None], "VARCHAR"),
        ([{"a": 1}, {"b": "x"}], "STRUCT(a UBIGINT, b VARCHAR)"),
    ],
)
def test_types_that_all_values_fit(database, values, kind):
    database.load("t", [batch(*((b"k", {"v": value}) for value in values))])
    assert types(database)["v"].replace('"', "") == kind
    read = database.query("SELECT v FROM t").table["v"].to_pylist()
    assert [value is None for value in read] == [value is None for value in values]


def test_records_without_fields(database):
    database.load("plain", [batch((b"a", b"text"), (b"b", b"more"))])
    assert list(types(database, "plain")) == ["_key", "_value", "_timestamp", "_partition", "_offset", "_headers"]
    database.load("bytes", [batch((b"\xff", b"\xfe"))])
    assert types(database, "bytes")["_value"] == types(database, "bytes")["_key"] == "BLOB"
    database.load("nothing", [])
    assert database.query("SELECT count(*) AS c FROM nothing").table["c"].to_pylist() == [0]


def test_headers_and_odd_names(database):
    headers = [("trace", b"1"), ("trace", b"2"), ("odd", b"\xff"), ("none", None)]
    database.load("orders.v1", [batch((b"a", {"A": 1, "a": 2, "_value": 3, "": 4, "x\"y'z": 5}, headers))])
    (row,) = database.query("SELECT _headers['trace'] AS trace, * FROM \"orders.v1\"").table.to_pylist()
    assert row["trace"] == "2"
    assert dict(row["_headers"]) == {"trace": "2", "odd": "\\xff", "none": None}
    assert row["x\"y'z"] == 5
    assert row["_value"].startswith("{")
    assert [name for name in row if name.lower() == "a"] == ["A"]


def test_only_topics_are_read_and_only_by_select(database):
    assert database.topics_of('SELECT * FROM a JOIN "b.c" USING (id)') in (["a", "b.c"], ["b.c", "a"])
    for sql in ("DROP TABLE a", "SELECT 1; SELECT 2", "COPY t TO '/tmp/x'"):
        with pytest.raises(QueryError):
            database.topics_of(sql)
    with pytest.raises(QueryError):
        database.query("SELECT * FROM read_csv('/etc/passwd')")


def test_memory_has_a_limit(database):
    big = batch(*((b"k", b"%d " % number + b"x" * 10_000) for number in range(1000)))
    with pytest.raises(LimitExceeded, match="the records of t need more than 64 MiB"):
        database.load("t", [big] * 40)
    database.load("t", [batch((b"a", {"n": 1}))])
    assert database.query("SELECT n FROM t").table["n"].to_pylist() == [1]


def test_values_of_a_registry(database):
    record = {
        "type": "record",
        "name": "Drink",
        "fields": [{"name": "name", "type": "string"}, {"name": "cents", "type": "long"}],
    }
    with small_registry() as registry:
        client = shared_registry(parse_settings(registry.url))
        written = client.register("drinks-value", json.dumps(record), "AVRO")
        from klamm.registry.codecs.compilation import compile_schema
        from klamm.registry.framing import prefix

        codec = compile_schema(client, written)
        good = prefix(written.id) + codec.encode({"name": "espresso", "cents": 250})
        settings = {"schema.registry.url": registry.url}
        loaded = database.load("drinks", [batch((b"a", good), (b"b", b"not framed"), (b"c", None))], settings)
        assert (loaded.records, loaded.undecoded) == (3, 1)
        rows = database.query("SELECT name, cents, _key FROM drinks ORDER BY _offset").table.to_pylist()
        assert rows[0] == {"name": "espresso", "cents": 250, "_key": "a"}
        assert rows[1] == {"name": None, "cents": None, "_key": "b"}
        database.load("other", [batch((b"a", {"n": 1}))], settings)
        assert types(database, "other")["n"] == "BIGINT"

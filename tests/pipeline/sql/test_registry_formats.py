"""Formats of a registry in SQL: columns from schemas, schemas from columns, broken records kept as they came."""

import datetime as dt
import decimal
import io
import json

import fastavro
import pyarrow as pa
import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.core.derived_schemas import derive_schema
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.identity import describe
from klamm.pipeline.sql.registry_schemas import registry_of, resolve, subject_of
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.testing import run
from klamm.registry.client import Schema
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import HEADERS, SchemaFrame, prefix, unframe
from pipeline.small_registry import small_registry

pytestmark = pytest.mark.timeout(600)
OLD = {"type": "record", "name": "Order", "fields": [{"name": "drink", "type": "string"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "drink", "type": "string"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "at", "type": [{"type": "long", "logicalType": "timestamp-millis"}, "null"], "default": 0},
    ],
}
TEXT = """
SET registry = '{url}';
CREATE STREAM orders WITH (topic = '{orders}', format = 'avro', key = 'id', key_format = 'avro');
CREATE STREAM cheap WITH (topic = '{cheap}', format = 'json_schema', key = 'id', key_format = 'json_schema') AS
  SELECT id, drink, cast(price AS DECIMAL(8, 2)) AS price, at, cast(drink AS BINARY) AS raw FROM orders
  WHERE price IS NULL OR price < 9;
CREATE TABLE totals WITH (
  topic = '{totals}', format = 'protobuf', key = 'drink', key_format = 'protobuf', framing = 'header'
) AS SELECT drink, count(*) AS n, max(at) AS last, max(raw) AS raw, max(price) AS price FROM cheap GROUP BY drink;
CREATE TABLE popular WITH (topic = '{popular}', key = 'drink') AS SELECT drink, n, last, price FROM totals WHERE n > 1;
"""


@pytest.fixture
def registry():
    with small_registry() as running:
        yield running


def avro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def test_from_topic_to_topic(spark, patiently, registry, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("orders", "cheap", "totals", "popular")}
    key = registry.register(f"{names['orders']}-key", '"long"')
    old = registry.register(f"{names['orders']}-value", json.dumps(OLD))
    new = registry.register(f"{names['orders']}-value", json.dumps(NEW))
    klamm_admin.create_topic(names["orders"], 1)
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    records = [
        prefix(old) + avro(OLD, {"drink": "tea"}),
        prefix(new) + avro(NEW, {"drink": "tea", "price": 2.5, "at": noon}),
        prefix(new) + avro(NEW, {"drink": "wine", "price": 20.0, "at": noon}),
        prefix(777) + b"\x06tea",
        b"garbage",
        prefix(new) + avro(NEW, {"drink": "rum", "price": 3.0, "at": noon})[:-3],
    ]
    with klamm_broker.producer() as producer:
        for number, value in enumerate(records, 1):
            producer.send(names["orders"], value, key=prefix(key) + avro("long", number)).result(30)
        producer.send(names["orders"], records[1], key=b"no key").result(30)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    pipeline = compile_text(TEXT.format(url=registry.url, **names), "drinks.sql", settings)
    patiently(run_pipeline, pipeline, once=True, spark=spark)

    def read(topic):
        return klamm.read_topic(topic, bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()

    letters = read(f"{names['orders']}.dead_letters")
    assert [letter["value"] for letter in letters] == [*records[3:], records[1]]
    letter_headers = [{header["key"]: header["value"].decode() for header in letter["headers"]} for letter in letters]
    errors = [headers["dead_letter.error"] for headers in letter_headers]
    assert errors[0] == "the registry has no schema 777"
    assert "no schema is named" in errors[1]
    assert "not a value of Avro schema" in errors[2]
    assert errors[3].startswith("the key: ")
    assert letters[3]["key"] == b"no key"

    cheap = read(names["cheap"])
    (key_id,), (value_id,) = (registry.subjects[f"{names['cheap']}-{part}"] for part in ("key", "value"))
    assert json.loads(registry.schemas[key_id]["schema"])["type"] == "integer"
    assert [(record["key"][:5], json.loads(record["key"][5:])) for record in cheap] == [
        (prefix(key_id), 1),
        (prefix(key_id), 2),
    ]
    assert [json.loads(record["value"].removeprefix(prefix(value_id))) for record in cheap] == [
        {"id": 1, "drink": "tea", "at": "1970-01-01T00:00:00+00:00", "raw": "dGVh"},
        {"id": 2, "drink": "tea", "price": 2.5, "at": "2026-01-01T12:00:00+00:00", "raw": "dGVh"},
    ]

    (total,) = {row["key"]: row for row in read(names["totals"])}.values()
    headers = {header["key"]: header["value"] for header in total["headers"]}
    for part in ("key", "value"):
        frame = unframe(total[part], headers[HEADERS[part]])
        assert frame.schema.int in registry.subjects[f"{names['totals']}-{part}"]
        assert b"tea" in frame.payload
    assert "int64 n = 2" in registry.schemas[frame.schema.int]["schema"]
    popular = [json.loads(row["value"]) for row in read(names["popular"])]
    assert popular == [{"drink": "tea", "n": 2, "last": "2026-01-01T12:00:00.000000Z", "price": 2.5}]

    # Another client registers a schema: the file is unchanged, and the query continues.
    before = describe(resolve(pipeline))
    registry.register(f"{names['orders']}-value", json.dumps({**NEW, "doc": "with words"}))
    assert describe(resolve(pipeline)) == before


LEFT_OUT = "SET registry = '{url}'; CREATE STREAM s WITH (format = 'avro'{more}); CREATE STREAM x AS SELECT * FROM s;"


def test_columns_are_those_of_the_newest_schema_and_need_no_spark(registry):
    registry.register("s-value", json.dumps(OLD))
    registry.register("s-value", json.dumps(NEW))
    pipeline = resolve(compile_text(LEFT_OUT.format(url=registry.url, more="")))
    columns = [(column.name, column.type) for column in pipeline.node("s").create.columns]
    assert columns == [("drink", "STRING"), ("price", "DOUBLE"), ("at", "TIMESTAMP")]


def test_columns_that_only_the_registry_knows_make_rows(registry, spark):
    registry.register("s-value", json.dumps(NEW))
    text = LEFT_OUT.format(url=registry.url, more=", timestamp = 'at'")
    out = run(text, {"s": [{"drink": "tea", "price": 1.5}]}, spark=spark)
    out.expect("x", [{"drink": "tea", "price": 1.5, "at": None}])


def test_what_the_registry_does_not_have_is_told_with_the_place(registry):
    registry.register("s-value", json.dumps(NEW))
    declared = "SET registry = '{url}'; CREATE STREAM s (drink STRING, size INT) WITH (format = 'avro');"
    for text, words in (
        (LEFT_OUT.format(url=registry.url, more=", key = 'id'"), "pipeline.sql:1:89: s has no column id"),
        (LEFT_OUT.format(url=registry.url, more=", subject = 'absent'"), "1:57: the registry has no subject absent"),
        (
            LEFT_OUT.format(url=registry.url, more="").replace("avro", "protobuf"),
            "subject s-value is avro, not protobuf",
        ),
        (declared.format(url=registry.url), "subject s-value has no field size: it has drink, price, at"),
    ):
        with pytest.raises(SqlError) as refused:
            resolve(compile_text(text), declared=True)
        assert words.split(": ", 1)[-1] in str(refused.value)
    resolve(compile_text(declared.format(url=registry.url)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CREATE STREAM s WITH (format = 'avro');", "avro needs a registry: SET registry"),
        ("CREATE STREAM s (a INT) WITH (key = 'a', key_format = 'avro');", "avro needs a registry"),
        ("CREATE STREAM s (a INT) WITH (subject = 'x');", "subject is for formats of a registry"),
        ("CREATE STREAM s (a INT) WITH (format = 'avro', registry = 'here');", "write where the registry is"),
        ("SET registry.basic = 'x'; CREATE STREAM s (a INT);", "there is no setting registry.basic"),
        (
            "CREATE STREAM s (a INT) WITH (format = 'avro', registry = 'http://h', message = 'M');",
            "only protobuf has messages",
        ),
    ],
)
def test_refusals(text, words):
    with pytest.raises(SqlError) as refused:
        compile_text(text)
    assert words in str(refused.value)


def test_who_asks_a_registry_may_be_said_by_the_environment():
    pipeline = compile_text(
        "SET registry = 'https://h'; SET registry.basic.auth.user.info = '${WHO}:${PASS}';"
        "CREATE STREAM s WITH (format = 'avro', topic = 't'); CREATE STREAM r WITH (format = 'avro', registry = 'http://i');"
    )
    known = {"WHO": "ann", "PASS": "hush"}
    expected = {"schema.registry.url": "https://h", "basic.auth.user.info": "ann:hush"}
    assert registry_of(pipeline, pipeline.node("s"), known) == expected
    assert registry_of(pipeline, pipeline.node("r"), known)["schema.registry.url"] == "http://i"
    assert (subject_of(pipeline.node("s")), subject_of(pipeline.node("s"), "key")) == ("t-value", "t-key")


SHAPE = pa.struct(
    [
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("n", pa.int64()),
        ("part", pa.float32()),
        ("x", pa.float64()),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(8, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("words", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("deep", pa.struct([("n", pa.int32())])), ("at", pa.timestamp("us", "UTC"))])),
    ]
)
ROW = {
    "flag": True,
    "small": 7,
    "n": 1 << 40,
    "part": 0.5,
    "x": 1.25,
    "word": "tea",
    "raw": b"\0\1",
    "price": decimal.Decimal("12.34"),
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=dt.UTC),
    "words": ["a", "b"],
    "counts": {"a": 1},
    "inner": {"deep": {"n": 3}, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
}


class NoRegistry:
    """A registry of schemas that refer to none."""

    def references(self, schema):
        return {}


def there_and_back(kind, name, arrow, value, numbers=None):
    codec = compile_schema(NoRegistry(), Schema(1, None, kind, derive_schema(kind, name, arrow, numbers)))
    payload = codec.encode(value)
    return codec, codec.decoder(codec)(SchemaFrame(1, (codec.path or b"") + payload))


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_schemas_of_columns(kind):
    codec, decoded = there_and_back(kind, "my-order", SHAPE, ROW)
    row = pa.array([decoded], codec.arrow).to_pylist()[0]
    assert [field.name for field in codec.arrow] == [field.name for field in SHAPE]
    same = {"flag", "small", "n", "part", "x", "word", "words"}
    assert {name: row[name] for name in same} == {name: ROW[name] for name in same}
    assert dict(row["counts"]) == {"a": 1}
    assert row["inner"]["deep"] == {"n": 3}
    if kind != "JSON":
        assert (row["at"], row["raw"]) == (ROW["at"], ROW["raw"])
    assert str(row["price"]) == "12.34"
    assert str(row["day"]) == "2026-01-02"
    _, empty = there_and_back(kind, "my-order", SHAPE, dict.fromkeys(ROW))
    assert all(not value for value in empty.values())


def test_schemas_of_single_values_and_what_cannot_be_one():
    for kind, arrow, value in (("AVRO", pa.int64(), 5), ("JSON", pa.string(), "x")):
        assert there_and_back(kind, "key", arrow, value)[1] == value
    with pytest.raises(ConfigError, match="a Protobuf value is a message"):
        derive_schema("PROTOBUF", "key", pa.int64())
    for kind in ("AVRO", "PROTOBUF"):
        with pytest.raises(ConfigError, match="column two words cannot be a field"):
            derive_schema(kind, "x", pa.struct([("two words", pa.int64())]))
    with pytest.raises(ConfigError, match=r"x.keys is map.*has no type for"):
        derive_schema("AVRO", "x", pa.struct([("keys", pa.map_(pa.int64(), pa.int64()))]))


def test_fields_of_protobuf_keep_their_numbers():
    first = pa.struct([("a", pa.int64()), ("b", pa.string())])
    codec, _ = there_and_back("PROTOBUF", "m", first, {"a": 1, "b": "x"})
    assert codec.numbers == {"a": 1, "b": 2}
    changed = pa.struct([("c", pa.int64()), ("b", pa.string())])
    codec, decoded = there_and_back("PROTOBUF", "m", changed, {"c": 5, "b": "y"}, codec.numbers)
    assert codec.numbers == {"c": 3, "b": 2}
    assert decoded == {"c": 5, "b": "y"}

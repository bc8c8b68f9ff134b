"""`pipeline.tables` reads values as Spark does: the same are bad, and the good ones have the same columns."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline import open_tables
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.tables.core.field_types import parse_field_type
from klamm.pipeline.tables.core.time_formats import make_time_parser
from klamm.pipeline.tables.plain_values import to_plain
from klamm.pipeline.tables.value_readers import CsvReader, JsonReader
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)

TYPES = {
    "flag": "BOOLEAN",
    "small": "TINYINT",
    "big": "BIGINT",
    "ratio": "DOUBLE",
    "price": "DECIMAL(12,2)",
    "count": "DECIMAL",
    "exact": "DECIMAL(38,9)",
    "name": "STRING",
    "day": "DATE",
    "seen": "TIMESTAMP",
    "tags": "ARRAY<STRING>",
    "counts": "MAP<STRING, INT>",
    "place": "STRUCT<x: INT, y: STRING>",
}
VALUES = {
    "flag": ["true", "1", '"true"', "null"],
    "small": ["1", "-128", "300", "1.0", '"1"', "true", "1e1"],
    "big": ["9223372036854775807", "9223372036854775808"],
    "ratio": ["1", "1.5", "1e300", '"NaN"', '"x"', "true"],
    "price": [
        "1", "1.23", "1.230", "1.239", "9999999999.99", "10000000000", "true",
        '"1.25"', '"-1.2"', '"1.239"', '"10000000000"', '"1e2"', '"+1"', '" 1.25"',
        '"1,250"', '",25"', '"-,25"', '"1e,5"', '"1\\u002c25"', '".5"', '"5."', '"NaN"', '""',
    ],
    "count": ["7", "1.9", '"8.0"', '"1,25"', "9999999999", "10000000000"],
    "exact": [
        '"1.25"', '"1,25"', '",25"', '"1\\u002c25"', "1e2", "1.5e-9", "1e-9", "1e-10", '"1e-10"', "0.000000001",
        "1.1234567891", '"1.1234567891"', "1.1234567890",
        "1234567890123456789012345678.1234567891", "-9999999999.9999999999",
    ],
    "name": ['"x"', "1", "1.5", "true", '{"a":[1,null]}', "[1]"],
    "day": ['"2026-05-01"', '"2026-13-01"', '"x"'],
    "seen": [
        '"2026-05-01T10:00:00Z"', '"2026-05-01 10:00:00.123456"', '"2026-05-01T10:00:00+02:00"', '"2026-05-01"',
        '"2026-02-30T10:00:00Z"', '"10:00"', '"2026"', "1777629600000", '"x"',
    ],
    "tags": ['["a",null]', "[1]", '{"a":1}', '"a"'],
    "counts": ['{"a":1,"b":null}', '{"a":"x"}', "[1]"],
    "place": ['{"x":1,"y":"z"}', '{"y":"z","other":1}', '{"x":"1"}', "[1]"],
}  # fmt: skip
WHOLE = [
    "{}", '{"big":1}{"big":2}', '{"big":1} x', "{'big':1}", '{"big":1,}', "[]", '[{"big":1}]', "3", "null", "", "nope",
    '{"big":1,"other":{"deep":[1]}}', '{"Big":1}', ' {"big":1}\n', '{"big":\n1}', '{"big":1', '{"big":1},{"big":2}',
]  # fmt: skip
DOCUMENTS = [*WHOLE, *(f'{{"{name}":{value}}}' for name, values in VALUES.items() for value in values)]
LINES = [
    "1,a,2026-05-01T10:00:00Z,1.5",
    "1,,,",
    '2,"x, \\"y\\"",,',
    '3,"",,',
    "x,a,,",
    "1,a",
    "1,a,b,c,d",
    "1,a,soon,",
    "1,a,,1.239",
]


def spark_verdicts(tmp_path, spark, declaration, texts):
    file = tmp_path / "p.sql"
    file.write_text(f"CREATE STREAM s {declaration};\nCREATE STREAM good AS SELECT * FROM s;")
    out = run(file, {"s": texts}, spark=spark)
    return out["good"], out.dead_letters["s"]


def bad_values(letters):
    return sorted(letter.value.decode() for letter in letters)


def compare(reader, texts, rows, letters):
    read = reader.read(pa.array([text.encode() for text in texts]), None)
    errors = read.errors or [None] * len(texts)
    mine = sorted(text for text, error in zip(texts, errors, strict=True) if error is not None)
    assert mine == bad_values(letters)
    columns = [array.to_pylist() for array in read.arrays]
    names = [name for name, _ in reader.columns]
    good = [
        {name: to_plain(value) for name, value in zip(names, row, strict=True)}
        for row, error in zip(zip(*columns, strict=True), errors, strict=True)
        if error is None
    ]
    assert sorted(map(canonical, good)) == sorted(map(canonical, rows))


def canonical(row):
    return json.dumps(row, sort_keys=True)


def test_json(spark, tmp_path):
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    rows, letters = spark_verdicts(tmp_path, spark, f"({columns})", DOCUMENTS)
    reader = JsonReader([(name, parse_field_type(kind)) for name, kind in TYPES.items()])
    compare(reader, DOCUMENTS, rows, letters)


def test_csv(spark, tmp_path):
    columns = "(n INT, name STRING, seen TIMESTAMP, price DECIMAL(12,2))"
    rows, letters = spark_verdicts(tmp_path, spark, f"{columns} WITH (format = 'csv')", LINES)
    kinds = {"n": "INT", "name": "STRING", "seen": "TIMESTAMP", "price": "DECIMAL(12,2)"}
    compare(CsvReader([(name, parse_field_type(kind)) for name, kind in kinds.items()]), LINES, rows, letters)


@pytest.mark.parametrize(
    ("time_format", "values"),
    [
        ("millis", ["1777629600000", "1777629600000.5", '"2026-05-01"', "99999999999999999"]),
        ("dd.MM.yyyy HH:mm", ['"01.05.2026 10:00"', '"1.5.2026 10:00"', '"31.02.2026 10:00"', "5"]),
    ],
)
def test_times(spark, tmp_path, time_format, values):
    texts = [f'{{"seen":{value}}}' for value in values]
    declaration = f"(seen TIMESTAMP) WITH (timestamp_format = '{time_format}')"
    rows, letters = spark_verdicts(tmp_path, spark, declaration, texts)
    reader = JsonReader([("seen", parse_field_type("TIMESTAMP"))], make_time_parser(time_format))
    compare(reader, texts, rows, letters)


def test_results_of_a_run_have_the_types_that_spark_gave_them(spark, patiently, klamm_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topic = klamm_broker.topic("payments")
    results = [klamm_broker.topic(name) for name in ("balances", "per-day", "lines")]
    text = f"""
    SET bootstrap = '{klamm_broker.bootstrap}';
    CREATE STREAM payments (account STRING, amount DECIMAL(12, 2), paid TIMESTAMP)
      WITH (topic = '{topic}', key = 'account');
    CREATE TABLE balances WITH (topic = '{results[0]}', delete_when = 'balance = 0') AS
      SELECT account, sum(amount) AS balance, max(paid) AS paid FROM payments GROUP BY account;
    CREATE TABLE per_day WITH (topic = '{results[1]}', key = 'account, day') AS
      SELECT account, to_date(paid) AS day, count(*) AS payments FROM payments GROUP BY account, to_date(paid);
    CREATE TABLE lines WITH (topic = '{results[2]}', format = 'csv') AS
      SELECT account, sum(amount) AS balance FROM payments GROUP BY account;
    """
    (tmp_path / "bank.sql").write_text(text)
    with klamm_broker.producer() as producer:
        for account, amount in [
            ("ada", "0.10"),
            ("ada", "0.20"),
            ("bob", "5"),
            ("bob", "-5"),
            ("eve", "1000000000.01"),
        ]:
            value = f'{{"account":"{account}","amount":{amount},"paid":"2026-05-01T10:00:00Z"}}'
            producer.send(topic, value.encode(), key=account.encode())
        producer.flush()
    with pytest.raises(ConfigError, match="the columns of lines are not known"):
        open_tables("bank.sql")
    patiently(run_pipeline, compile_text(text, "bank.sql"), once=True, spark=spark)
    with open_tables("bank.sql", timeout_s=60) as tables:
        balances = tables.query("SELECT * FROM balances ORDER BY account").to_pylist()
        assert [(row["account"], row["balance"]) for row in balances] == [
            ("ada", Decimal("0.30")),
            ("eve", Decimal("1000000000.01")),
        ]
        assert balances[0]["paid"] == dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
        assert tables.get("per_day", {"account": "bob", "day": dt.date(2026, 5, 1)})["payments"] == 2
        assert tables.get("lines", "eve") == {"account": "eve", "balance": Decimal("1000000000.01")}
        assert [status["bad_records"] for status in tables.status()] == [0, 0, 0]

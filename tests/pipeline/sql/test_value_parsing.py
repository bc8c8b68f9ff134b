"""Values that are almost right: strictly parsed they become dead letters with a reason, and no row changes silently."""

import pytest

from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)

ORDERS = """
CREATE STREAM orders (id BIGINT, amount DECIMAL(12, 2), at TIMESTAMP) WITH (timestamp = 'at'{options});
CREATE STREAM copies AS SELECT id, amount, at FROM orders;
"""
GOOD = '{"id": 1, "amount": 1.25, "at": "2026-05-01T10:00:00Z"}'
COPY = {"id": 1, "amount": 1.25, "at": "2026-05-01T10:00:00.000000Z"}

BAD = {
    '{"id": 3}{"id": 4}': "not one JSON document",
    '{"id": 3} {"id": 4}': "not one JSON document",
    '{"id": 3}, {"id": 4}': "not one JSON document",
    '{"id": 3} and more': "not one JSON document",
    '{"id": 3}]': "not one JSON document",
    '{"id": 3}} x': "not one JSON document",
    '{"id": 3}, "x": 5': "not one JSON document",
    '{"id": 3}],"x":[1': "not one JSON document",
    '{"id": 3}],"_document":[{"id": 4}': "not one JSON document",
    '{"id": 3}],"_end":true}': "not one JSON document",
    '{"id": 3},{"_klamm_mark":"1"}]}': "not one JSON document",
    "{'id': 3}": "single quotes",
    '[{"id": 3}]': "no JSON of id BIGINT",
    "null": "no JSON of id BIGINT",
    "": "no JSON of id BIGINT",
    " ": "no JSON of id BIGINT",
    "3": "no JSON of id BIGINT",
    '{"id": 3.5}': "no JSON of id BIGINT",
    '{"amount": 1.239}': "amount has more digits than DECIMAL(12,2) holds",
    '{"amount": "1.239"}': "amount has more digits than DECIMAL(12,2) holds",
    '{"amount": 12345678901.0}': "no JSON of id BIGINT",
    '{"amount": "1,25"}': "amount has a comma",
    '{"at": 1767225600000}': "at is a number: set timestamp_format",
    '{"at": "1767225600"}': "at is a number: set timestamp_format",
    '{"at": "noon"}': "at is no TIMESTAMP",
    '{"at": "10:30"}': "at is no TIMESTAMP",
    '{"at": "2026"}': "at is a number",
    '{"at": "2026-13-01T00:00:00Z"}': "at is no TIMESTAMP",
    '{"at": "9999-12-31T00:00:00Z"}': "at is not between the years 1900 and 2200",
    '{"at": "1899-12-31T23:59:59Z"}': "at is not between the years 1900 and 2200",
}
FINE = {
    ' {"id": 2} \n': {"id": 2, "amount": None, "at": None},
    '{"id": 2, "more": {"a": [1, "}"]}}': {"id": 2, "amount": None, "at": None},
    '{"amount": 1.5}': {"id": None, "amount": 1.5, "at": None},
    '{"amount": "1.5", "more": {"amount": "1,5"}}': {"id": None, "amount": 1.5, "at": None},
    '{"amount": 1.500}': {"id": None, "amount": 1.5, "at": None},
    '{"amount": 9999999999.99}': {"id": None, "amount": 9999999999.99, "at": None},
    '{"amount": -1e2}': {"id": None, "amount": -100.0, "at": None},
    '{"at": "2026-05-01"}': {"id": None, "amount": None, "at": "2026-05-01T00:00:00.000000Z"},
    '{"at": "2026-05-01 10:00:00.5+02:00"}': {"id": None, "amount": None, "at": "2026-05-01T08:00:00.500000Z"},
    "{}": {"id": None, "amount": None, "at": None},
    '{"id": 2, "_document": [1], "_end": 1, "_klamm_mark": {}}': {"id": 2, "amount": None, "at": None},
}


def test_a_value_that_is_almost_right_is_a_dead_letter(spark):
    out = run(ORDERS.format(options=""), {"orders": [*BAD, *FINE, GOOD]}, spark=spark)
    letters = [(letter.value.decode(), letter.error) for letter in out.dead_letters["orders"]]
    assert [value for value, _ in letters] == list(BAD)
    assert [(value, error) for value, error in letters if BAD[value] not in error] == []
    out.expect("copies", [*FINE.values(), COPY])


def test_lenient_parsing_is_sparks_own(spark):
    values = ['{"id": 3}{"id": 4}', "{'id': 5}", '{"amount": 1.239}', GOOD]
    for text in (
        ORDERS.format(options=", parsing = 'lenient'"),
        "SET parsing = 'lenient';" + ORDERS.format(options=""),
    ):
        out = run(text, {"orders": values}, spark=spark)
        assert out.dead_letters["orders"] == []
        none = {"id": None, "amount": None, "at": None}
        out.expect("copies", [{**none, "id": 3}, {**none, "id": 5}, {**none, "amount": 1.24}, COPY])


KINDS = """
CREATE STREAM kinds (i INT, b BIGINT, f FLOAT, d DOUBLE, m DECIMAL(5, 2), t BOOLEAN, s STRING);
CREATE STREAM copies AS SELECT * FROM kinds;
"""
NO_FIELDS = dict.fromkeys(("i", "b", "f", "d", "m", "t", "s"))
OTHER_KINDS = (
    '{"i": "12"}',
    '{"i": 12.5}',
    '{"i": 2147483648}',
    '{"i": true}',
    '{"b": "12"}',
    '{"b": 1.0}',
    '{"b": 9223372036854775808}',
    '{"f": "1.5"}',
    '{"d": "1.5"}',
    '{"d": true}',
    '{"m": true}',
    '{"m": "twelve"}',
    '{"m": ""}',
    '{"m": 1000}',
    '{"m": "1000"}',
    '{"m": " 1.25"}',
    '{"m": "1,25"}',
    '{"t": "true"}',
    '{"t": 1}',
)
KEPT_KINDS = {
    # The digits of a decimal in quotes are exact, where many writers have only doubles.
    '{"m": "1.25"}': {"m": 1.25},
    '{"m": 12}': {"m": 12.0},
    '{"d": 12}': {"d": 12.0},
    # Any value has a text.
    '{"s": 12}': {"s": "12"},
    '{"s": true}': {"s": "true"},
    '{"s": {"a": [1]}}': {"s": '{"a":[1]}'},
}


def test_a_value_of_another_json_type_is_a_dead_letter(spark):
    out = run(KINDS, {"kinds": [*OTHER_KINDS, *KEPT_KINDS]}, spark=spark)
    assert [letter.value.decode() for letter in out.dead_letters["kinds"]] == list(OTHER_KINDS)
    out.expect("copies", [{**NO_FIELDS, **row} for row in KEPT_KINDS.values()])


DECIMALS = """
CREATE STREAM prices (
  p DECIMAL(12, 2), n DECIMAL, d DEC, w DECIMAL(38, 9), a ARRAY<STRUCT<`DEC`: DECIMAL>>, `in[0]'s` NUMERIC(5, 1))
  WITH (topic = 'prices');
CREATE STREAM copies AS SELECT p, n, d, w, a[0].`DEC` AS a, `in[0]'s` AS i FROM prices;
"""
COMMAS = (
    '{"p": ",25"}',
    '{"p": "-,25"}',
    '{"p": "1e,5"}',
    '{"p": "1,25"}',
    '{"p": "1\\u002c25"}',
    '{"p": "1\\u002C25"}',
    '{"p": "\\u0031,25"}',
    '{"p": "\\u002c\\u0032"}',
    '{"p":\n "1,25"}',
    '{"p": "\N{ARABIC-INDIC DIGIT ONE},25"}',
    '{"p": 1, "p": "1,25"}',
    '{"n": "1,25"}',
    '{"d": ",5"}',
    '{"w": "1,25"}',
    '{"in[0]\'s": "1,5"}',
)
LOST_DIGITS = (
    '{"n": 1.9}',
    '{"n": "1.9"}',
    '{"d": 0.5}',
    '{"a": [{"DEC": 1.9}]}',
    '{"w": 1.1234567891}',
    '{"w": "1.1234567891"}',
    '{"w": 1e-10}',
)
KEPT_DECIMALS = {
    '{"p": 1, "note": "1,25"}': {"p": 1.0},
    '{"p": "1,25", "p": 1}': {"p": 1.0},
    '{"n": 7, "d": "8.0", "w": "1.25"}': {"n": 7, "d": 8, "w": 1.25},
    '{"n": 9999999999}': {"n": 9999999999},
    '{"a": [{"DEC": 3}], "in[0]\'s": 1.5}': {"a": 3, "i": 1.5},
}


def test_a_decimal_of_any_size_with_a_comma_or_digits_it_cannot_hold_is_a_dead_letter(spark):
    out = run(DECIMALS, {"prices": [*COMMAS, *LOST_DIGITS, *KEPT_DECIMALS]}, spark=spark)
    errors = {letter.value.decode(): letter.error for letter in out.dead_letters["prices"]}
    assert list(errors) == [*COMMAS, *LOST_DIGITS]
    assert [value for value in COMMAS if "has a comma" not in errors[value]] == []
    assert [value for value in LOST_DIGITS if "has more digits" not in errors[value]] == []
    none = dict.fromkeys(("p", "n", "d", "w", "a", "i"))
    out.expect("copies", [{**none, **row} for row in KEPT_DECIMALS.values()])


@pytest.mark.parametrize(
    ("written", "right", "wrong"),
    [
        (
            "seconds",
            ("1767225600", "1767225600.25"),
            ('"2026-01-01T00:00:00Z"', "1767225600000", '"176722560,0"'),
        ),
        (
            "millis",
            ("1767225600000", "1767225600250"),
            ('"2026-01-01T00:00:00Z"', "1767225600000000", "9223372036854775807"),
        ),
        ("micros", ("1767225600000000", "1767225600250000"), ("1767225600000000000",)),
        (
            "dd.MM.yyyy HH:mm:ss.SS",
            ('"01.01.2026 00:00:00.00"', '"01.01.2026 00:00:00.25"'),
            ('"2026-01-01T00:00:00Z"', "5"),
        ),
        ("iso", ('"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00.25Z"'), ("1767225600000",)),
    ],
)
def test_times_are_numbers_of_a_declared_unit_or_text_of_a_pattern(spark, written, right, wrong):
    rows = [f'{{"id": 1, "at": {value}}}' for value in (*right, *wrong)]
    out = run(ORDERS.format(options=f", timestamp_format = '{written}'"), {"orders": rows}, spark=spark)
    times = ["2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.250000Z"]
    out.expect("copies", [{"id": 1, "amount": None, "at": time} for time in times])
    assert [letter.value.decode() for letter in out.dead_letters["orders"]] == rows[len(right) :]


def test_a_time_far_ahead_does_not_move_the_watermark(spark):
    """Epoch milliseconds taken for seconds are the year 57971; every later row would be late."""
    text = """
    CREATE STREAM clicks (page STRING, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second');
    CREATE TABLE counts WITH (key = 'page') AS
      SELECT page, window(at, '1 minute').start AS minute, count(*) AS n
      FROM clicks GROUP BY page, window(at, '1 minute');
    """
    steps = [
        {"clicks": [{"page": "a", "at": "2026-05-01T10:00:00Z"}, {"page": "a", "at": 1777629600000}]},
        {"clicks": [{"page": "a", "at": "2026-05-01T10:00:30Z"}]},
    ]
    out = run(text, steps, spark=spark)
    out.expect("counts", [{"page": "a", "minute": "2026-05-01T10:00:00.000000Z", "n": 2}])


def test_other_times_may_be_for_ever(spark):
    text = """
    CREATE STREAM rents (id BIGINT, until TIMESTAMP) WITH (topic = 'rents');
    CREATE STREAM copies AS SELECT id, until FROM rents;
    """
    out = run(text, {"rents": ['{"id": 1, "until": "9999-12-31T00:00:00Z"}', '{"until": "10000-01-01"}']}, spark=spark)
    out.expect("copies", [{"id": 1, "until": "9999-12-31T00:00:00.000000Z"}])
    assert len(out.dead_letters["rents"]) == 1


def test_digits_are_kept_in_nested_columns_and_csv(spark):
    text = """
    CREATE STREAM baskets (id BIGINT, items ARRAY<STRUCT<price: DECIMAL(6, 2)>>) WITH (topic = 'baskets');
    CREATE STREAM lines (id BIGINT, price DECIMAL(6, 2), at TIMESTAMP) WITH (format = 'csv', topic = 'lines');
    CREATE STREAM prices AS SELECT id, items[0].price AS price FROM baskets;
    CREATE STREAM priced AS SELECT id, price, at FROM lines;
    """
    out = run(
        text,
        {
            "baskets": ['{"id": 1, "items": [{"price": 2.25}]}', '{"id": 2, "items": [{"price": 2.255}]}'],
            "lines": ["1,2.25,2026-05-01T10:00:00Z", "2,2.255,2026-05-01T10:00:00Z", "3,2,1777629600000"],
        },
        spark=spark,
    )
    out.expect("prices", [{"id": 1, "price": 2.25}])
    out.expect("priced", [{"id": 1, "price": 2.25, "at": "2026-05-01T10:00:00.000000Z"}])
    assert "items has more digits" in out.dead_letters["baskets"][0].error
    assert [letter.error.split(":")[0] for letter in out.dead_letters["lines"]] == [
        "price has more digits than DECIMAL(6,2) holds",
        "at is a number",
    ]


def test_a_number_that_its_type_cannot_hold_is_a_dead_letter(spark):
    """Spark's own parser makes -128 of 128 in a TINYINT."""
    text = """
    CREATE STREAM levels (n TINYINT, s SMALLINT, i INT, b BIGINT) WITH (topic = 'levels');
    CREATE STREAM copies AS SELECT n, s, i, b FROM levels;
    """
    least, most = {"n": -128, "s": -(1 << 15), "i": -(1 << 31), "b": -(1 << 63)}, {"n": 127, "s": 32767}
    bad = ['{"n": 128}', '{"n": 255}', '{"n": -129}', '{"s": 32768}', '{"i": 2147483648}', '{"b": 9223372036854775808}']
    out = run(text, {"levels": [least, most, *bad]}, spark=spark)
    out.expect("copies", [least, {**most, "i": None, "b": None}])
    assert [letter.value.decode() for letter in out.dead_letters["levels"]] == bad


def test_lines_of_files_are_parsed_as_values_are(spark, tmp_path):
    from klamm.pipeline.sql.core.identity import QueryIdentity
    from klamm.pipeline.sql.engine import Engine
    from klamm.pipeline.sql.folder_topics import FolderTopics

    (tmp_path / "in").mkdir()
    lines = ['{"id": 1, "at": 1767225600}', '{"id": 2}{"id": 3}', "", '{"id": 4, "at": 1767225600000}']
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    text = f"""
    CREATE SOURCE rows (id BIGINT, at TIMESTAMP) WITH (
      connector = 'files', path = '{tmp_path}/in', timestamp_format = 'seconds');
    """
    pipeline = compile_text(text)
    topics = FolderTopics(str(tmp_path / "topics"))
    identity = QueryIdentity("testing", "files", {}, {}).renew(pipeline)
    for query in Engine(spark.newSession(), pipeline, topics, str(tmp_path / "checkpoints"), identity).build():
        query.start(once=True).awaitTermination()
    assert [row["value"] for row in topics.records("rows")] == [b'{"id":1,"at":"2026-01-01T00:00:00.000000Z"}']
    letters = topics.records("rows.dead_letters")
    assert [row["value"].decode() for row in letters] == [lines[1], lines[3]]


def test_of_headers_with_one_key_the_last_counts(spark):
    from klamm.pipeline.sql.folder_topics import Raw

    text = """
    CREATE STREAM notes (body STRING, headers MAP<STRING, BINARY> METADATA FROM 'headers') WITH (topic = 'notes');
    CREATE STREAM traced AS SELECT body, cast(headers['trace'] AS STRING) AS trace FROM notes;
    """
    records = [
        Raw(None, b'{"body": "a"}', 0, [("trace", b"1"), ("other", b"x"), ("trace", b"2")]),
        Raw(None, b'{"body": "b"}', 0, []),
        Raw(None, b'{"body": "c"}', 0, [("trace", None)]),
    ]
    out = run(text, {"notes": records}, spark=spark)
    out.expect("traced", [{"body": "a", "trace": "2"}, {"body": "b", "trace": None}, {"body": "c", "trace": None}])
    assert out.dead_letters["notes"] == []


def test_options_are_checked_with_the_file():
    with pytest.raises(SqlError, match="write strict or lenient"):
        compile_text(ORDERS.format(options=", parsing = 'loose'"))
    with pytest.raises(SqlError, match="or a pattern such as"):
        compile_text(ORDERS.format(options=", timestamp_format = 'unix'"))

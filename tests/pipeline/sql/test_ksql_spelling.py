"""ksqlDB's spelling: rewritten where it maps, refused with the line to write otherwise; and run beside Spark's."""

import pytest

from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.ksql_spelling import rewrite
from klamm.pipeline.testing import run

PAYMENTS = """
CREATE STREAM payments (account VARCHAR KEY, amount BIGINT, info STRUCT<city VARCHAR>, at TIMESTAMP,
    record_offset BIGINT METADATA FROM 'offset')
  WITH (KAFKA_TOPIC = 'payments', VALUE_FORMAT = 'JSON', KEY_FORMAT = 'KAFKA', PARTITIONS = 1, TIMESTAMP = 'at');
"""
SPARK_PAYMENTS = """
CREATE STREAM payments (account STRING, amount BIGINT, info STRUCT<city: STRING>, at TIMESTAMP,
    record_offset BIGINT METADATA FROM 'offset')
  WITH (topic = 'payments', key = 'account', partitions = 1, timestamp = 'at'{watermark});
"""


SPARK_ONLY = (
    "CREATE STREAM s AS SELECT sum(a) OVER (PARTITION BY b) c, listagg(d) WITHIN GROUP (ORDER BY d) e FROM f"
    " WINDOW w AS (PARTITION BY b)"
)
COUNT = "CREATE TABLE t AS SELECT account, count(*) n FROM payments "


def rewritten(text):
    result, problems = rewrite(text)
    assert problems == []
    return " ".join(result.text.split())


@pytest.mark.parametrize(
    ("ksql", "spark_sql"),
    [
        ("SET 'auto.offset.reset' = 'earliest';", "SET starting = 'earliest';"),
        ("SET name = 'bank';", "SET name = 'bank';"),
        (
            "CREATE OR REPLACE STREAM s (a INT) WITH (KAFKA_TOPIC='t', REPLICAS=3);",
            "CREATE STREAM s (a INT) WITH (topic='t', replication=3);",
        ),
        ("CREATE SOURCE STREAM s (a BYTES);", "CREATE STREAM s (a BINARY);"),
        (
            "CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY, name VARCHAR) WITH (VALUE_FORMAT='DELIMITED')",
            "CREATE TABLE t (id BIGINT , name STRING) WITH (format='csv', key = 'id')",
        ),
        ("CREATE STREAM s (bytes BYTES, v VARCHAR(20))", "CREATE STREAM s (bytes BINARY, v VARCHAR(20))"),
        (
            "CREATE STREAM s (a STRUCT<bytes INT, b ARRAY<VARCHAR>>)",
            "CREATE STREAM s (a STRUCT<bytes INT, b ARRAY<STRING>>)",
        ),
        (
            "CREATE STREAM s (a INT KEY, b INT KEY, c INT)",
            "CREATE STREAM s (a INT , b INT , c INT) WITH (key = 'a, b')",
        ),
        (
            "CREATE STREAM s WITH () AS SELECT a FROM b PARTITION BY a",
            "CREATE STREAM s WITH (key = 'a') AS SELECT a FROM b",
        ),
        (
            "CREATE STREAM s AS SELECT a AS b, c FROM d PARTITION BY a EMIT CHANGES;",
            "CREATE STREAM s WITH (key = 'b') AS SELECT a AS b, c FROM d ;",
        ),
        (
            "CREATE TABLE t AS SELECT a, count(*) n FROM b GROUP BY a EMIT FINAL;",
            "CREATE TABLE t WITH (emit = 'final') AS SELECT a, count(*) n FROM b GROUP BY a ;",
        ),
        (
            "CREATE STREAM s AS SELECT EXTRACTJSONFIELD(a, '$.b') AS c, CAST(d AS VARCHAR) AS e FROM f;",
            "CREATE STREAM s AS SELECT get_json_object(a, '$.b') AS c, CAST(d AS STRING) AS e FROM f;",
        ),
        (
            "CREATE STREAM s AS SELECT a->b AS c, o.d->e AS f, transform(g, x -> x + 1) AS h FROM o;",
            "CREATE STREAM s AS SELECT a.b AS c, o.d.e AS f, transform(g, x -> x + 1) AS h FROM o;",
        ),
        (
            "CREATE STREAM s AS SELECT STRINGTOTIMESTAMP(a, 'yyyy') AS b FROM c;",
            "CREATE STREAM s AS SELECT unix_millis(to_timestamp(a, 'yyyy')) AS b FROM c;",
        ),
        # A function that the file declares is the one that it calls.
        (
            "CREATE FUNCTION geo_distance RETURNS DOUBLE AS 'm:f'; CREATE STREAM s AS SELECT GEO_DISTANCE(a) b FROM c;",
            "CREATE FUNCTION geo_distance RETURNS DOUBLE AS 'm:f'; CREATE STREAM s AS SELECT GEO_DISTANCE(a) b FROM c;",
        ),
        # Spark's own: nothing of it is ksqlDB's.
        (
            SPARK_ONLY,
            SPARK_ONLY,
        ),
    ],
)
def test_spellings(ksql, spark_sql):
    assert rewritten(ksql) == spark_sql


@pytest.mark.parametrize(
    ("expression", "spark_sql"),
    [
        ("ARRAY[a, b]", "array(a, b)"),
        ("MAP('k' := a, 'l' := UCASE(b))", "map('k' , a, 'l' , UCASE(b))"),
        ("STRUCT(x := a, `y z` := 1)", "named_struct('x' , a, 'y z' , 1)"),
        ("TRANSFORM(a, z => z->b + 1)", "TRANSFORM(a, z -> z.b + 1)"),
        ("REDUCE(a, 0, (s, x) => s + x)", "REDUCE(a, 0, (s, x) -> s + x)"),
        ("FILTER(m, (k, v) => v > 1)", "map_filter(m, (k, v) -> v > 1)"),
        # A named argument of Spark.
        ("mask(a, lowerChar => 'q')", "mask(a, lowerChar => 'q')"),
        ("CONCAT('x', f->g)", "CONCAT('x', f.g)"),
        ("DATETOSTRING(a, 'yyyy')", "date_format(date_from_unix_date(a), 'yyyy')"),
        ("STRINGTODATE(a, 'yyyy')", "unix_date(to_date(a, 'yyyy'))"),
        ("URL_EXTRACT_HOST(LCASE(u))", "try_parse_url(LCASE(u), 'HOST')"),
        ("URL_EXTRACT_PARAMETER(u, 'q')", "try_parse_url(u, 'QUERY', 'q')"),
    ],
)
def test_expressions(expression, spark_sql):
    text = rewritten(f"CREATE STREAM s AS SELECT {expression} AS c FROM f EMIT CHANGES;")
    assert text == f"CREATE STREAM s AS SELECT {spark_sql} AS c FROM f ;"


LISTS = (
    "CREATE STREAM s (b ARRAY<INT>, m MAP<VARCHAR, ARRAY<INT>>, o STRUCT<b ARRAY<STRUCT<c INT>>>, n INT)"
    " WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');\n"
)
SPARK_LISTS = "CREATE STREAM s (b ARRAY<INT>) WITH (topic = 's');\n"


@pytest.mark.parametrize(
    ("expression", "spark_sql"),
    [
        ("b[1]", "try_element_at(b, 1)"),
        ("s.b[-1]", "try_element_at(s.b, -1)"),
        ("b[n + 1]", "try_element_at(b, n + 1)"),
        ("m['k']", "m['k']"),
        ("m['k'][2]", "try_element_at(m['k'], 2)"),
        ("o->b[1]->c", "try_element_at(o.b, 1).c"),
        ("ARRAY[n, 2][1]", "try_element_at(array(n, 2), 1)"),
        ("SPLIT(UCASE('a'), ',')[b[1]]", "try_element_at(SPLIT(UCASE('a'), ','), try_element_at(b, 1))"),
    ],
)
def test_arrays_of_ksqldb_begin_at_1(expression, spark_sql):
    text = rewritten(f"{LISTS}CREATE STREAM r AS SELECT {expression} AS x FROM s EMIT CHANGES;")
    assert text.endswith(f"AS SELECT {spark_sql} AS x FROM s ;")


def test_types_of_selected_columns_are_known_to_the_next_statement():
    text = rewritten(
        f"{LISTS}CREATE STREAM r AS SELECT *, b AS c FROM s EMIT CHANGES;"
        "CREATE STREAM q AS SELECT b[1] AS x, r.c[2] AS y FROM r EMIT CHANGES;"
    )
    assert text.endswith("SELECT try_element_at(b, 1) AS x, try_element_at(r.c, 2) AS y FROM r ;")


def test_arrays_of_a_statement_in_sparks_spelling_begin_at_0():
    text = f"{SPARK_LISTS}CREATE STREAM r AS SELECT b[0] AS x, split('a', ',')[1] AS y FROM s;"
    assert rewritten(text) == " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        (LISTS + "CREATE STREAM r AS SELECT b[0] AS x FROM s EMIT CHANGES;", 2, 28, "arrays begin at 1"),
        (LISTS + "CREATE STREAM r AS SELECT f(b)[1] AS x FROM s EMIT CHANGES;", 2, 31, "write try_element_at(f(b), 1)"),
        # Nothing in the statement tells the spelling, but what it reads is in ksqlDB's.
        (LISTS + "CREATE STREAM r AS SELECT b[1] AS x FROM s;", 2, 28, "write try_element_at(b, 1), or get(b, 1)"),
    ],
)
def test_subscripts_of_unknown_meaning_are_refused(text, line, column, words):
    with pytest.raises(SqlError) as refused:
        compile_text(text)
    (problem,) = refused.value.problems
    assert refused.value.source.position(problem.offset) == (line, column)
    assert words in problem.message


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("TERMINATE q1;", 1, 1, "klamm pipeline stop NAME"),
        ("SELECT * FROM s EMIT CHANGES LIMIT 3;", 1, 1, 'klamm pipeline query "SELECT ..." --watch'),
        ("SELECT * FROM s;", 1, 1, 'klamm sql "SELECT ..."'),
        ("CREATE TYPE address AS STRUCT<city VARCHAR>;", 1, 8, "write STRUCT<...> in each column"),
        ("CREATE STREAM s (a INT) WITH (VALUE_SCHEMA_ID=3);", 1, 31, "klamm schema"),
        ("CREATE STREAM s AS SELECT GEO_DISTANCE(a, b, c, d) AS e FROM f;", 1, 27, "acos("),
        ("CREATE STREAM s AS SELECT ENTRIES(m, true) AS e FROM f;", 1, 27, "map_entries"),
        ("CREATE STREAM s AS SELECT ROWPARTITION AS p FROM f;", 1, 27, "BIGINT METADATA FROM 'partition'"),
        ("CREATE STREAM s AS SELECT f.ROWOFFSET AS p FROM f;", 1, 29, "BIGINT METADATA FROM 'offset'"),
        ("\nSHOW STREAMS;", 2, 1, "klamm topic ls"),
        ("PRINT payments;", 1, 1, "klamm consume TOPIC"),
        ("DROP TABLE t;", 1, 1, "remove the CREATE statement"),
        ("INSERT INTO s VALUES (1);", 1, 15, "klamm produce s"),
        ("INSERT INTO s SELECT 1 FROM a;", 1, 13, "CREATE STREAM s AS SELECT"),
        ("SET 'processing.guarantee' = 'exactly_once_v2';", 1, 5, "always written exactly once"),
        ("CREATE SINK CONNECTOR c WITH (a = 'b');", 1, 13, "Kafka Connect"),
        ("CREATE STREAM s (h ARRAY<STRUCT<key STRING, value BYTES>> HEADERS);", 1, 59, "METADATA FROM 'headers'"),
        ("CREATE STREAM s (a INT) WITH (VALUE_DELIMITER='|');", 1, 31, "CSV has commas"),
        ("CREATE STREAM s (a INT, ts BIGINT) WITH (TIMESTAMP='ts');", 1, 28, "write ts TIMESTAMP here"),
        ("CREATE STREAM s (a INT KEY, b INT) WITH (KEY_FORMAT='KAFKA');", 1, 20, "is binary"),
        ("CREATE STREAM s (a VARCHAR KEY, b INT) WITH (KEY_FORMAT='JSON');", 1, 57, "leave KEY_FORMAT out"),
        (PAYMENTS + "CREATE STREAM s AS SELECT TOPK(amount, 3) AS t FROM payments;", 5, 27, "slice(sort_array("),
        (PAYMENTS + "CREATE STREAM s AS SELECT amount FROM payments PARTITION BY UCASE(account);", 5, 48, "AS name"),
        (
            PAYMENTS + "CREATE TABLE t AS SELECT amount FROM payments WINDOW TUMBLING (SIZE 1 MINUTE);",
            5,
            47,
            "needs GROUP BY",
        ),
        (
            PAYMENTS + COUNT + "WINDOW HOPPING (SIZE 1 MINUTE) GROUP BY account;",
            5,
            60,
            "ADVANCE BY 10 MINUTES",
        ),
        (
            PAYMENTS + COUNT + "WINDOW TUMBLING (SIZE 1 YEAR) GROUP BY account;",
            5,
            84,
            "not YEAR",
        ),
        (
            "CREATE STREAM s (a INT);\nCREATE TABLE t AS SELECT a, n() n FROM s WINDOW SESSION (5 MINUTES) GROUP BY a;",
            2,
            42,
            "s has no time",
        ),
        (
            "CREATE STREAM s (a INT, b INT);\nCREATE TABLE t AS SELECT a, LATEST_BY_OFFSET(b) c FROM s GROUP BY a;",
            2,
            29,
            "METADATA FROM 'offset'",
        ),
    ],
)
def test_refusals_have_the_line_to_write(text, line, column, words):
    with pytest.raises(SqlError) as refused:
        compile_text(text)
    (problem,) = refused.value.problems
    assert refused.value.source.position(problem.offset) == (line, column)
    assert words in problem.message


def test_problems_of_other_kinds_show_the_file_as_it_is_written():
    text = "CREATE OR REPLACE STREAM s (a VARCHAR KEY) WITH (KAFKA_TOPIC='t', VALUE_FORMAT='XML');"
    with pytest.raises(SqlError) as refused:
        compile_text(text)
    (problem,) = refused.value.problems
    assert refused.value.source.position(problem.offset) == (1, text.index("'XML'") + 1)
    assert text in str(refused.value)


def test_two_watermarks_of_one_stream_are_refused():
    window = "FROM payments WINDOW TUMBLING (SIZE 1 MINUTE, GRACE PERIOD {} SECONDS) GROUP BY account"
    text = PAYMENTS + "".join(
        f"CREATE TABLE t{seconds} AS SELECT account, count(*) n {window.format(seconds)};" for seconds in (5, 10)
    )
    with pytest.raises(SqlError, match="GRACE PERIOD is the watermark of payments, which is '5 seconds'"):
        compile_text(text)


def payment(account, amount, second, city="Linz"):
    time = f"2026-05-01T10:{second // 60:02d}:{second % 60:02d}Z"
    return {"account": account, "amount": amount, "info": {"city": city}, "at": time}


INPUTS = {
    "payments": [
        payment("a", 5, 0),
        payment("b", 7, 10),
        payment("a", 3, 50, "Graz"),
        payment("a", 1, 70),
        payment("b", 2, 130),
        payment("a", None, 140, "Wels"),
        payment("c", 9, 900),
    ]
}
FEW_QUERIES = {"bad_records": "drop"}
"""Without a query of dead letters for each of the twice seven pipelines."""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ksql", "spark_sql", "watermark"),
    [
        pytest.param(
            """CREATE TABLE result AS SELECT account, COUNT(*) AS n, SUM(amount) AS total, WINDOWSTART AS since
               FROM payments WINDOW TUMBLING (SIZE 1 MINUTE) WHERE info->city <> 'Wels'
               GROUP BY account EMIT CHANGES;""",
            """CREATE TABLE result WITH (key = 'account, since') AS
               SELECT account, count(*) AS n, sum(amount) AS total, unix_millis(window.start) AS since,
                 unix_millis(window.end) AS WINDOWEND
               FROM payments WHERE info.city <> 'Wels' GROUP BY window(at, '1 minute'), account;""",
            "",
            id="tumbling",
            marks=pytest.mark.long,
        ),
        pytest.param(
            """CREATE TABLE result AS SELECT account, COUNT(*) AS n FROM payments
               WINDOW HOPPING (SIZE 1 MINUTE, ADVANCE BY 20 SECONDS, GRACE PERIOD 10 SECONDS)
               GROUP BY account EMIT FINAL;""",
            """CREATE TABLE result WITH (key = 'account, WINDOWSTART', emit = 'final') AS SELECT account, count(*) AS n,
                 unix_millis(window.start) AS WINDOWSTART, unix_millis(window.end) AS WINDOWEND
               FROM payments GROUP BY window(at, '1 minute', '20 seconds'), account;""",
            ", watermark = '10 seconds'",
            id="hopping, final",
        ),
        pytest.param(
            """CREATE TABLE result AS SELECT account, COUNT(*) AS n, SUM(amount) AS total FROM payments
               WINDOW SESSION (30 SECONDS, GRACE PERIOD 10 SECONDS) GROUP BY account EMIT CHANGES;""",
            """CREATE TABLE result WITH (key = 'account, WINDOWSTART') AS
               SELECT account, count(*) AS n, sum(amount) AS total,
                 unix_millis(session_window.start) AS WINDOWSTART, unix_millis(session_window.end) AS WINDOWEND
               FROM payments GROUP BY session_window(at, '30 seconds'), account;""",
            ", watermark = '10 seconds'",
            id="session",
        ),
        pytest.param(
            """CREATE TABLE result AS SELECT account, LATEST_BY_OFFSET(amount) AS last,
                 EARLIEST_BY_OFFSET(amount) AS first,
                 LATEST_BY_OFFSET(info->city, false) AS city, COUNT_DISTINCT(amount) AS amounts
               FROM payments GROUP BY account EMIT CHANGES;""",
            """CREATE TABLE result AS SELECT account,
                 max_by(amount, record_offset) FILTER (WHERE amount IS NOT NULL) AS last,
                 min_by(amount, record_offset) FILTER (WHERE amount IS NOT NULL) AS first,
                 max_by(info.city, record_offset) AS city, approx_count_distinct(amount) AS amounts
               FROM payments GROUP BY account;""",
            "",
            id="by offset",
        ),
        pytest.param(
            """CREATE STREAM result AS SELECT account, UCASE(info->city) AS city,
                 TIMESTAMPTOSTRING(ROWTIME, 'HH:mm') AS t,
                 ROWTIME FROM payments WHERE amount > 2 PARTITION BY city EMIT CHANGES;""",
            """CREATE STREAM result WITH (key = 'city') AS SELECT account, upper(info.city) AS city,
                 date_format(at, 'HH:mm') AS t, unix_millis(at) AS ROWTIME FROM payments WHERE amount > 2;""",
            "",
            id="partition by",
            marks=pytest.mark.long,
        ),
        pytest.param(
            """CREATE STREAM result AS SELECT account, ARRAY[amount, 2][1] AS first, SPLIT(info->city, 'n')[-1] AS last,
                 TRANSFORM(ARRAY[amount], z => z + 1)[5] AS none, MAP('x' := amount)['x'] AS x,
                 STRUCT(y := amount)->y AS y, DATETOSTRING(20000, 'yyyy-MM-dd') AS day,
                 STRINGTODATE('2024-10-04', 'yyyy-MM-dd') AS days, URL_EXTRACT_HOST('http://a.b/c') AS host,
                 URL_EXTRACT_HOST('no url') AS no_host, FILTER(MAP('p' := 1, 'q' := 2), (k, v) => v > 1) AS some
               FROM payments EMIT CHANGES;""",
            """CREATE STREAM result WITH (key = 'account') AS SELECT account, amount AS first,
                 CASE info.city WHEN 'Linz' THEN 'z' ELSE info.city END AS last,
                 cast(NULL AS BIGINT) AS none, amount AS x, amount AS y, '2024-10-04' AS day, 20000 AS days,
                 'a.b' AS host, cast(NULL AS STRING) AS no_host, map('q', 2) AS some FROM payments;""",
            "",
            id="expressions",
        ),
        pytest.param(
            """CREATE STREAM large WITH (TIMESTAMP='at') AS SELECT * FROM payments WHERE amount > 4 EMIT CHANGES;
               CREATE STREAM result AS SELECT p.account AS account, p.amount AS small, l.amount AS large
               FROM payments p JOIN large l WITHIN (1 MINUTE, 30 SECONDS) ON p.account = l.account EMIT CHANGES;""",
            """CREATE STREAM large WITH (key = 'account', timestamp='at') AS SELECT * FROM payments WHERE amount > 4;
               CREATE STREAM result AS SELECT p.account AS account, p.amount AS small, l.amount AS large
               FROM payments p JOIN large l ON l.at >= p.at - INTERVAL '1 minute'
                 AND l.at <= p.at + INTERVAL '30 seconds' AND p.account = l.account;""",
            "",
            id="within",
        ),
        pytest.param(
            """CREATE STREAM result (account VARCHAR KEY, amount DOUBLE) WITH (KAFKA_TOPIC = 'result');
               INSERT INTO result SELECT account, amount FROM payments WHERE amount > 4 EMIT CHANGES;
               INSERT INTO result SELECT info->city, amount * 100 FROM payments WHERE amount < 3;""",
            """CREATE STREAM result WITH (key = 'account') AS
               SELECT account, cast(amount AS DOUBLE) AS amount FROM payments WHERE amount > 4
               UNION ALL SELECT info.city, cast(amount * 100 AS DOUBLE) FROM payments WHERE amount < 3;""",
            "",
            id="insert into",
        ),
    ],
)
def test_results_equal_those_of_the_same_pipeline_in_spark_sql(ksql, spark_sql, watermark):
    result = run(PAYMENTS + ksql, INPUTS, settings=FEW_QUERIES)
    expected = run(SPARK_PAYMENTS.format(watermark=watermark) + spark_sql, INPUTS, settings=FEW_QUERIES)
    assert expected["result"]
    assert sorted(map(str, result.changes["result"])) == sorted(map(str, expected.changes["result"]))

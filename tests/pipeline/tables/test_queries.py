"""Queries only read, and end: what else SQL can do is refused before it runs, or while it does."""

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.tables.plain_values import to_plain
from klamm.pipeline.tables.queries import (
    LimitExceeded,
    QueryError,
    QueryLimits,
    QueryRunner,
    lock_database,
    open_database,
    read_table_names,
)

LIMITS = QueryLimits(rows=100, time_s=1.0, memory_bytes=128 << 20)


@pytest.fixture
def database(tmp_path):
    connection = open_database(None, LIMITS)
    connection.execute("CREATE SCHEMA klamm")
    connection.execute("CREATE TABLE klamm.rows AS SELECT range AS n FROM range(1000)")
    connection.execute("CREATE VIEW numbers AS SELECT n FROM klamm.rows")
    lock_database(connection)
    runner = QueryRunner(connection, LIMITS)
    yield runner
    # Whatever a query tried: the rows are those that were there.
    assert connection.execute("SELECT count(*), sum(n) FROM klamm.rows").fetchone() == (1000, 499500)
    assert list(tmp_path.iterdir()) == []
    runner.close()
    connection.close()


@pytest.fixture(params=["run", "run_rows"])
def run(database, request):
    return getattr(database, request.param)


def test_an_answer_has_names_types_and_a_limit(database):
    answer = database.run("SELECT n, n / 2 AS half FROM numbers WHERE n > ? ORDER BY n", [950])
    assert answer.table.num_rows == 49
    assert not answer.truncated
    assert answer.columns == [{"name": "n", "type": "BIGINT"}, {"name": "half", "type": "DOUBLE"}]
    assert database.run("SELECT $x + 1 AS y", {"x": 2}).table.to_pylist() == [{"y": 3}]
    cut = database.run("SELECT * FROM numbers ORDER BY n")
    assert cut.truncated
    assert cut.table["n"].to_pylist() == list(range(100))
    assert database.run("SELECT * FROM numbers", max_rows=3).table.num_rows == 3
    assert database.run("SELECT * FROM numbers", max_rows=10**9).table.num_rows == 100
    exactly = database.run("SELECT * FROM numbers LIMIT 100")
    assert exactly.table.num_rows == 100
    assert not exactly.truncated


VALUES = (
    "'a'", "true", "1::tinyint", "18446744073709551615::ubigint", "170141183460469231731687303715884105727::hugeint",
    "0.1::float", "'-infinity'::double", "1.10::decimal(12, 2)", "123456789012345678901234567890.12::decimal(38, 2)",
    "date '2020-02-29'", "time '01:02:03.4'", "timetz '01:02:03+02'", "timestamp '1969-12-31 23:59:59.999999'",
    "timestamptz '2020-01-01 00:00:00.123456+02'", "timestamp_ns '2020-01-01 00:00:00.123456789'", "'a'::blob",
    "interval 1 month", "'9b5a3c7e-0000-4000-8000-000000000000'::uuid", "[1, NULL]", "{'a': 1}", "map{'a': 1}",
    "'x'::enum('x', 'y')", "'101'::bit",
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_rows_have_the_values_of_the_table(database, value):
    sql = f"SELECT {value} AS v UNION ALL SELECT NULL"
    answer, rows = database.run(sql), database.run_rows(sql)
    assert (rows.names, rows.types, rows.truncated) == (("v",), answer.types, answer.truncated)
    expected = [(to_plain(cell), type(cell)) for cell in answer.table["v"].to_pylist()]
    assert [(to_plain(cell), type(cell)) for (cell,) in rows.rows] == expected


def test_rows_have_a_limit(database):
    cut = database.run_rows("SELECT n, n AS n FROM numbers ORDER BY n")
    assert (cut.names, cut.rows, cut.truncated) == (("n", "n"), [(number, number) for number in range(100)], True)
    assert database.run_rows("SELECT * FROM range(10000000000)", max_rows=3).rows == [(0,), (1,), (2,)]
    assert not database.run_rows("SELECT * FROM numbers LIMIT 100").truncated
    assert database.run_rows("SELECT $x + 1 AS y", {"x": 2}).rows == [(3,)]
    assert database.run_rows("SELECT 1 WHERE false").rows == []


@pytest.mark.parametrize(
    "sql",
    [
        "COPY numbers TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{folder}/out.parquet'",
        "ATTACH '{folder}/other.db'",
        "EXPORT DATABASE '{folder}/export'",
        "PRAGMA database_list",
        "PRAGMA memory_limit='100GB'",
        "SET memory_limit = '100GB'",
        "RESET memory_limit",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "USE klamm",
        "CREATE TABLE t (a INT)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE MACRO f() AS 1",
        "CREATE SECRET (TYPE s3)",
        "INSERT INTO klamm.rows VALUES (1)",
        "UPDATE klamm.rows SET n = 0",
        "DELETE FROM klamm.rows",
        "MERGE INTO klamm.rows USING numbers ON false WHEN MATCHED THEN DELETE",
        "DROP TABLE klamm.rows",
        "TRUNCATE klamm.rows",
        "ALTER TABLE klamm.rows ADD COLUMN x INT",
        "BEGIN",
        "COMMIT",
        "CHECKPOINT",
        "VACUUM",
        "PREPARE p AS SELECT 1",
        "EXPLAIN ANALYZE DELETE FROM klamm.rows",
        "SELECT 1; DELETE FROM klamm.rows",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
        "SELECT",
        "nonsense",
    ],
)
def test_other_statements_are_refused(run, sql, tmp_path):
    with pytest.raises(QueryError):
        run(sql.format(folder=tmp_path))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_json('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT getenv('HOME')",
        "WITH gone AS (DELETE FROM klamm.rows RETURNING *) SELECT * FROM gone",
        "SELECT * FROM query('DELETE FROM klamm.rows')",
        "SELECT * FROM query_table('/etc/passwd')",
        "SELECT * FROM variable_of_python",
        "SELECT nextval('s')",
    ],
)
def test_a_select_reaches_only_the_tables(run, sql):
    variable_of_python = [1]  # DuckDB finds variables of the caller by default
    with pytest.raises(QueryError):
        run(sql)
    del variable_of_python


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000) c WHERE a.range + b.range <> c.range",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r",
        "SELECT * FROM range(100000000000) WHERE hash(range) = 1",
    ],
    ids=["a huge cross join", "an endless recursion", "rows that take long to find"],
)
def test_a_query_that_takes_too_long_is_ended(database, run, sql):
    began = time.monotonic()
    with pytest.raises(LimitExceeded, match="longer than 1 s"):
        run(sql)
    assert time.monotonic() - began < 30
    assert database.run("SELECT 1 AS one").table.to_pylist() == [{"one": 1}]


def test_a_text_that_was_run_before_has_the_same_limits(database):
    slow = "SELECT * FROM range(CAST(? AS BIGINT)) WHERE hash(range) = 1"
    for _ in range(2):
        assert database.run(slow, [10]).table.num_rows == 0
        with pytest.raises(LimitExceeded, match="longer than 1 s"):
            database.run(slow, [100_000_000_000])
    rows = "SELECT n FROM numbers"
    assert [database.run(rows, max_rows=2).truncated for _ in range(2)] == [True, True]
    nested = "SELECT * FROM query(?)"
    for statement in ("SELECT 1", "WITH gone AS (DELETE FROM klamm.rows RETURNING *) SELECT * FROM gone"):
        with suppress(QueryError):
            database.run(nested, [statement])
    assert database.run("SELECT count(*) AS n FROM numbers").table["n"].to_pylist() == [1000]


@pytest.mark.parametrize(
    "sql",
    ["SELECT list(a.range) FROM range(100000000) a", "SELECT repeat('x', 70000000) || repeat('y', 70000000)"],
)
def test_a_query_that_needs_too_much_memory_is_ended(sql):
    # Minutes: on a busy machine a second can be over before the memory is.
    limits = replace(LIMITS, time_s=100.0)
    database = QueryRunner(open_database(None, limits), limits)
    with pytest.raises(QueryError, match="128 MiB"):
        database.run(sql)
    assert database.run("SELECT 1 AS one").table.to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("depth", [2_000, 1_000_000])
def test_a_nested_text_is_refused_and_no_crash(database, depth):
    with pytest.raises(QueryError):
        database.run("SELECT " + "(" * depth + "1" + ")" * depth)


def test_queries_run_side_by_side(database):
    errors = []

    def ask():
        try:
            for number in range(20):
                assert database.run("SELECT sum(n) + ? AS s FROM numbers", [number]).table["s"].to_pylist() == [
                    499500 + number
                ]
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM payments WHERE _timestamp > now()", ["payments"]),
        ('WITH c AS (SELECT * FROM "a.b") SELECT * FROM c JOIN orders USING (id)', ["a.b", "orders"]),
        ('SELECT * FROM "x-1", (SELECT max(n) FROM b) WHERE n IN (SELECT n FROM d)', ["b", "d", "x-1"]),
        ("SELECT 1", []),
        ("FROM range(5)", []),
        ("SELECT * FROM t UNION ALL SELECT * FROM u", ["t", "u"]),
        ("DESCRIBE t", None),
    ],
)
def test_the_names_that_a_query_reads(database, sql, names):
    result = read_table_names(database._connection.cursor(), sql)
    assert sorted(result) == names if names is not None else set(result) <= {"t"}


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"time_s": 0}, {"memory_bytes": 1}])
def test_limits_are_checked(wrong):
    with pytest.raises(ConfigError):
        QueryLimits(**wrong)

"""Statements: what is written is what is meant, and what is not understood is refused where it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.pipeline.sql.core.parser import parse
from klamm.pipeline.sql.core.problems import SqlSource
from klamm.pipeline.sql.core.statements import Column, Create, CreateFunction, Set


def one(text):
    statements, problems = parse(text)
    assert not problems
    (statement,) = statements
    return statement


def refusal(text):
    _, problems = parse(text)
    (problem,) = problems
    line, column = SqlSource(text).position(problem.offset)
    return line, column, problem.message


def test_a_declared_stream():
    stream = one(
        "CREATE STREAM orders (id BIGINT NOT NULL, `at` timestamp METADATA FROM 'timestamp', lines ARRAY<STRUCT<sku:"
        " STRING, n INT>>, price decimal(12, 2), offset BIGINT METADATA)\n"
        "  WITH (topic = 'o', max_records = 10, kafka.fetch.max.bytes = 5, 'option.x' = true)"
    )
    assert isinstance(stream, Create)
    assert (stream.kind, stream.name, stream.select) == ("stream", "orders", None)
    assert [(column.name, column.type, column.nullable, column.metadata) for column in stream.columns] == [
        ("id", "BIGINT", False, None),
        ("at", "TIMESTAMP", True, "timestamp"),
        ("lines", "ARRAY<STRUCT<`sku`: STRING, `n`: INT>>", True, None),
        ("price", "DECIMAL(12,2)", True, None),
        ("offset", "BIGINT", True, "offset"),
    ]
    assert {name: value.text for name, value in stream.options.items()} == {
        "topic": "o",
        "max_records": "10",
        "kafka.fetch.max.bytes": "5",
        "option.x": "true",
    }


def test_a_select_is_kept_as_it_was_written_with_its_place():
    text = "-- first\nCREATE TABLE t WITH (key = 'a') AS\n  SELECT a, -- why\n  ';' AS b FROM s  ;\nSET name = x;"
    statements, problems = parse(text)
    assert not problems
    table, setting = statements
    assert table.select.text == "SELECT a, -- why\n  ';' AS b FROM s"
    assert text[table.select.offset :].startswith("SELECT a")
    assert setting == Set("name", setting.value)
    assert setting.value.text == "x"


def test_a_function():
    function = one("create function risk returns double as 'bank.rules:Rules.risk'")
    assert isinstance(function, CreateFunction)
    assert (function.name, function.returns, function.target) == ("risk", "DOUBLE", "bank.rules:Rules.risk")


def test_columns_are_values():
    assert Column("a", "INT", 3) == Column("a", "INT", 3)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("CRATE STREAM s", 1, 1, "did you mean CREATE?"),
        ("SELECT 1", 1, 1, "CREATE STREAM name AS SELECT"),
        ("CREATE STRAEM s", 1, 8, "did you mean STREAM?"),
        ("CREATE OR REPLACE TABLE t", 1, 8, "leave OR REPLACE"),
        ("CREATE TABLE IF NOT EXISTS t", 1, 14, "leave IF NOT EXISTS"),
        ("CREATE STREAM AS SELECT 1", 1, 15, "expected the stream's name"),
        ("CREATE STREAM s (a STRNG)", 1, 20, "did you mean STRING?"),
        ("CREATE STREAM s (a)", 1, 19, "expected a type"),
        ("CREATE STREAM s (a ARRAY<INT)", 1, 29, "expected >"),
        ("CREATE STREAM s (a MAP<INT>)", 1, 20, "MAP takes 2 types, not 1"),
        ("CREATE STREAM s (a DECIMAL(1,2,3))", 1, 27, "DECIMAL(12,2)"),
        ("CREATE STREAM s (a INT, A STRING)", 1, 25, "two columns A"),
        ("CREATE STREAM s (a INT NOT b)", 1, 28, "expected NULL after NOT"),
        ("CREATE STREAM s (a INT METADATA FROM 'ofset')", 1, 38, "did you mean offset?"),
        ("CREATE STREAM s (a INT b INT)", 1, 24, "expected ,"),
        ("CREATE STREAM s (a INT)\n WITH (topic 'x')", 2, 14, "expected =, as in topic = 'value'"),
        ("CREATE STREAM s (a INT) WITH (topic = 'x', topic = 'y')", 1, 44, "topic is given twice"),
        ("CREATE STREAM s (a INT) WITH (topic = 'x'", 1, 42, "or ) after the last option"),
        ("CREATE STREAM s AS INSERT", 1, 20, "expected SELECT after AS"),
        ("CREATE STREAM s (a INT) PARTITIONED", 1, 25, "unexpected PARTITIONED"),
        ("SET a", 1, 6, "expected ="),
        ("SET a = 1 2", 1, 11, "unexpected 2"),
        ("CREATE FUNCTION f RETURNS INT AS 'nothing'", 1, 34, "write 'module:function'"),
    ],
)
def test_refusals_say_where_and_what(text, line, column, words):
    problem = refusal(text)
    assert problem[:2] == (line, column)
    assert words in problem[2]


def test_a_bad_statement_does_not_hide_the_next():
    statements, problems = parse("CREATE NONSENSE;\nCREATE VIEW v AS SELECT 1;\nSET;")
    assert [statement.name for statement in statements] == ["v"]
    assert len(problems) == 2


WORDS = [
    "CREATE",
    "STREAM",
    "TABLE",
    "s",
    "(",
    ")",
    "a",
    "INT",
    "ARRAY",
    "<",
    ">",
    ",",
    "WITH",
    "=",
    "'x'",
    "AS",
    "SELECT",
    ";",
    "SET",
    "NOT",
    ".",
]


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_row_of_words_is_read_or_refused_inside_the_text(words):
    text = " ".join(words)
    statements, problems = parse(text)
    assert len(statements) + len(problems) <= text.count(";") + 1
    assert all(0 <= problem.offset <= len(text) for problem in problems)

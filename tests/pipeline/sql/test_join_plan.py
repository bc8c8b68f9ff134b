"""Which rows of which tables a join needs, by its text alone."""

import pytest

from klamm.pipeline.sql.core.graph import compile_text
from klamm.pipeline.sql.core.join_plan import JoinPlan, WholeTables, plan_joins

DECLARED = """
CREATE STREAM orders (id INT, customer STRING, item INT, at TIMESTAMP) WITH (key = 'id');
CREATE TABLE customers (id STRING, country STRING, parent STRING) WITH (key = 'id');
CREATE TABLE countries (code STRING, name STRING) WITH (key = 'code');
CREATE TABLE changes (id STRING, country STRING) WITH (key = 'id', format = 'debezium');
CREATE VIEW german AS SELECT * FROM customers WHERE country = 'de';
CREATE FUNCTION shout RETURNS STRING AS 'mine:shout';
"""


def plan(statement):
    return plan_joins(compiled := compile_text(f"{DECLARED}{statement};"), compiled.node("x"))


def stream(select):
    return plan(f"CREATE STREAM x WITH (key = 'id') AS {select}")


def table(select):
    return plan(f"CREATE TABLE x WITH (key = 'id') AS {select}")


def edges(result):
    assert isinstance(result, JoinPlan), result
    aliases = [relation.alias for relation in result.relations]
    return aliases[result.root], [(aliases[edge.source], aliases[edge.target], edge.pairs) for edge in result.edges]


def test_a_stream_with_a_table():
    result = stream(
        "SELECT o.id, c.country FROM orders o LEFT OUTER JOIN customers AS c ON o.customer = c.id WHERE c.id > 'a'"
    )
    assert edges(result) == ("o", [("o", "c", (("o.customer", "c.id"),))])


def test_the_rest_of_the_condition_is_the_joins():
    result = stream(
        "SELECT o.id FROM orders o JOIN customers c"
        " ON upper(c.id) <=> trim(o.customer) AND o.at > '2026-01-01' AND o.id BETWEEN 1 AND 9 AND c.country = c.parent"
    )
    assert edges(result) == ("o", [("o", "c", (("trim(o.customer)", "upper(c.id)"),))])


def test_several_equalities_are_one_edge():
    result = stream(
        "SELECT o.id FROM orders o JOIN customers c ON o.customer = c.id AND cast(o.item AS STRING) = c.parent"
    )
    assert edges(result) == (
        "o",
        [("o", "c", (("o.customer", "c.id"), ("cast(o.item AS STRING)", "c.parent")))],
    )


def test_a_table_is_found_through_another():
    select = "FROM orders o JOIN customers c ON o.customer = c.id LEFT JOIN countries n ON c.country = n.code"
    assert edges(stream(f"SELECT o.id, n.name {select}")) == (
        "o",
        [("o", "c", (("o.customer", "c.id"),)), ("c", "n", (("c.country", "n.code"),))],
    )


def test_the_stream_may_be_joined_to_the_table():
    result = stream("SELECT o.id FROM customers c JOIN orders o ON o.customer = c.id")
    assert edges(result) == ("o", [("o", "c", (("o.customer", "c.id"),))])
    result = stream("SELECT o.id FROM customers c RIGHT JOIN orders o ON o.customer = c.id")
    assert edges(result) == ("o", [("o", "c", (("o.customer", "c.id"),))])


def test_tables_of_tables():
    assert edges(table("SELECT id, country FROM customers WHERE country <> 'de'")) == ("customers", [])
    result = table("SELECT c.id, n.name FROM customers c JOIN countries n ON c.country = n.code")
    assert edges(result) == ("c", [("c", "n", (("c.country", "n.code"),))])
    result = table("SELECT c.id, p.country FROM customers c LEFT JOIN customers p ON c.parent = p.id")
    assert edges(result) == ("c", [("c", "p", (("c.parent", "p.id"),))])
    result = table("SELECT id, c.parent FROM customers c LEFT ANTI JOIN (countries) USING (id)")
    assert isinstance(result, WholeTables)
    result = table("SELECT id FROM customers c LEFT SEMI JOIN changes2 USING (id)".replace("changes2", "customers d"))
    assert edges(result) == ("c", [("c", "d", (("`c`.`id`", "`d`.`id`"),))])


@pytest.mark.parametrize(
    ("select", "reason"),
    [
        ("SELECT c.id FROM customers c FULL JOIN countries n ON c.country = n.code", "FULL JOIN"),
        ("SELECT c.id FROM customers c CROSS JOIN countries n", "CROSS JOIN"),
        ("SELECT c.id FROM customers c NATURAL JOIN countries n", "NATURAL JOIN"),
        ("SELECT c.id FROM customers c, countries n WHERE c.country = n.code", "commas"),
        ("SELECT c.id FROM customers c JOIN countries n ON c.country < n.code", "no equality such as c.column"),
        ("SELECT c.id FROM customers c JOIN countries n ON c.country = n.code OR n.code = 'x'", "no equality"),
        ("SELECT c.id FROM customers c JOIN countries n ON country = code", "no equality"),
        ("SELECT country AS id, count(*) AS n FROM customers GROUP BY country", "groups"),
        ("SELECT DISTINCT country AS id FROM customers", "groups"),
        ("SELECT id FROM german", "german is a view"),
        ("SELECT id FROM changes", "changes is a change log"),
        ("SELECT id FROM customers WHERE country IN (SELECT code FROM countries)", "subquery"),
        ("SELECT id, now() AS at FROM customers", "now has another result"),
        ("SELECT id, shout(country) AS loud FROM customers", "shout may have"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM customers", "depend on each other"),
        ("WITH z AS (SELECT 1) SELECT id FROM customers", "begin with SELECT"),
        ("SELECT q.id FROM customers q (id, b, c)", "renamed"),
    ],
)
def test_what_needs_whole_tables(select, reason):
    result = table(select)
    assert isinstance(result, WholeTables)
    assert reason in result.reason


def test_only_what_reads_tables_in_batches_has_a_plan():
    assert plan("CREATE STREAM x AS SELECT id FROM orders") is None
    assert plan("CREATE TABLE x AS SELECT customer, count(*) AS n FROM orders GROUP BY customer") is None
    result = stream("SELECT o.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id")
    assert isinstance(result, WholeTables)

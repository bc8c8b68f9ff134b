"""Statements together: which reads which, the rules they break, and the messages."""

import pytest

from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.graph_rendering import render_graph

BANK = """
SET name = 'bank';
CREATE TABLE balances AS SELECT account, sum(amount) AS balance FROM payments GROUP BY account;
CREATE STREAM payments (account STRING, amount DECIMAL(12,2), at TIMESTAMP)
  WITH (key = 'account', timestamp = 'at', watermark = '10 seconds');
CREATE TABLE customers (id STRING, owner STRING) WITH (key = 'id', topic = 'crm.customers');
CREATE VIEW big AS SELECT * FROM payments WHERE amount > 900;
CREATE STREAM suspicious WITH (key = 'account') AS
  SELECT b.account, b.amount, c.owner FROM big b LEFT JOIN Customers c ON b.account = c.id;
CREATE TABLE owners AS SELECT owner, count(*) AS n FROM customers GROUP BY owner;
CREATE SINK audit WITH (format = 'parquet', path = 'lake') AS SELECT * FROM payments;
"""


def refusals(text, **overrides):
    with pytest.raises(SqlError) as refused:
        compile_text(text, "bank.sql", overrides)
    return str(refused.value)


def test_statements_come_after_what_they_read_wherever_they_are_written():
    pipeline = compile_text(BANK)
    order = [node.name for node in pipeline.nodes]
    for node in pipeline.nodes:
        assert all(order.index(name) < order.index(node.name) for name in node.inputs)
    assert [query.name for query in pipeline.queries] == ["balances", "suspicious", "owners", "audit"]
    assert pipeline.outputs == ("balances", "suspicious", "owners")
    assert pipeline.dead_letters == {
        "payments": "payments.dead_letters",
        "customers": "crm.customers.dead_letters",
    }


def test_what_kind_of_work_each_is():
    pipeline = compile_text(BANK)
    balances, suspicious, owners = (pipeline.node(name) for name in ("balances", "SUSPICIOUS", "owners"))
    assert (balances.key, balances.stateful, balances.final, balances.recomputed) == (("account",), True, False, False)
    assert (suspicious.streams, suspicious.tables, suspicious.stateful) == (("payments",), ("customers",), False)
    assert (owners.recomputed, owners.stateful, owners.key) == (True, False, ("owner",))


def test_the_picture():
    whole = "reads its tables whole with every batch"
    assert render_graph(compile_text(BANK)) == [
        "payments  stream (topic payments, json, key account)",
        "├─ balances  table (topic balances, json, key account, keeps state)",
        "├─ big  view",
        f"│  └─ suspicious  stream (topic suspicious, json, key account, {whole}: big is a view)",
        "└─ audit  sink (parquet lake)",
        "customers  table (topic crm.customers, json, key id)",
        "├─ suspicious (above)",
        "└─ owners  table (topic owners, json, key owner, computed again at every change: it groups rows)",
    ]


def test_overrides_win():
    assert compile_text(BANK, overrides={"name": "other"}).settings["name"] == "other"
    assert "--set: there is no setting nme; did you mean name?" in refusals(BANK, nme="x")


STREAM = "CREATE STREAM s (id STRING, at TIMESTAMP, n INT);\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "CREATE STREAM x AS SELECT * FROM S2;" + STREAM,
            "bank.sql:1:34: there is no stream or table S2; did you mean s?",
        ),
        (STREAM + "CREATE STREAM x AS SELECT * FROM x;", "statements read each other in a cycle: x reads x"),
        (
            STREAM + "CREATE STREAM a AS SELECT * FROM b;\nCREATE STREAM b AS SELECT * FROM c JOIN s;\n"
            "CREATE STREAM c AS SELECT * FROM a;",
            "cycle: a reads b reads c reads a",
        ),
        (STREAM + "CREATE STREAM S (a INT);", "2:15: S is declared already, in line 1"),
        (
            "CREATE STREAM s (a INT) WITH (topik = 'x');",
            "1:31: topik is not an option of a STREAM; did you mean topic?",
        ),
        ("CREATE STREAM s (a INT) WITH (emit = 'final');", "it is one of STREAM AS and TABLE AS"),
        ("CREATE STREAM s (a INT) WITH (format = 'jsn');", "did you mean json?"),
        ("CREATE STREAM s (a INT) WITH (watermark = 'soon', timestamp = 'a');", "e.g. '10 seconds'"),
        ("CREATE STREAM s (a INT) WITH (watermark = '1 second');", "a watermark needs timestamp"),
        ("CREATE STREAM s (a INT) WITH (timestamp = 'a');", "a is INT; a timestamp is TIMESTAMP"),
        ("CREATE STREAM s (name INT) WITH (key = 'nam');", "s has no column nam; did you mean name?"),
        ("CREATE STREAM s (a INT) WITH (kafka.fetch.max.byte = '1');", "did you mean kafka.fetch.max.bytes?"),
        ("CREATE STREAM s (a INT) WITH (kafka.group.id = 'g');", "the pipeline sets it"),
        ("CREATE STREAM s (a INT) WITH (topic = 'no spaces');", "a topic's name"),
        ("CREATE STREAM s (a INT METADATA FROM 'offset');", "a record's offset is BIGINT"),
        ("CREATE STREAM s (a INT, b INT) WITH (format = 'string');", "has one column beside its key, not 2"),
        ("CREATE STREAM s (a STRING) WITH (format = 'raw');", "a raw value is BINARY"),
        ("CREATE STREAM s;", "neither columns nor AS SELECT"),
        ("CREATE TABLE t (id STRING);", "a table needs a key: WITH (key = 'id')"),
        (STREAM + "CREATE TABLE t AS SELECT upper(id), count(*) FROM s GROUP BY upper(id);", "a table needs a key"),
        (
            STREAM + "CREATE TABLE t AS SELECT id, sum(n) AS n FROM s GROUP BY id HAVING sum(n) > 1;",
            "use delete_when",
        ),
        ("CREATE TABLE t (id STRING) WITH (key='id'); CREATE STREAM x AS SELECT * FROM t;", "reads tables only"),
        (STREAM + "CREATE STREAM x (a INT) AS SELECT * FROM s;", "columns are those of the SELECT"),
        (STREAM + "CREATE STREAM x WITH (emit = 'changes') AS SELECT * FROM s;", "never changed"),
        (STREAM + "CREATE STREAM x AS SELECT 1;", "x reads nothing"),
        (STREAM + "CREATE SINK x AS SELECT * FROM s;", "a sink needs a format"),
        (STREAM + "CREATE SINK x WITH (format = 'parquet') AS SELECT * FROM s;", "parquet needs a path"),
        (
            STREAM + "CREATE SINK x WITH (format = 'noop') AS SELECT * FROM s; CREATE STREAM y AS SELECT * FROM x;",
            "x is a sink: nothing can be read from it",
        ),
        ("CREATE SOURCE f WITH (connector = 'files');", "files need a path"),
        ("CREATE SOURCE f (a INT) WITH (connector = 'rate');", "rate has the columns timestamp and value"),
        ("CREATE SOURCE f (a INT);", "a source needs a connector"),
        (
            STREAM + "CREATE STREAM o AS SELECT * FROM s; CREATE STREAM y WITH (topic='o') AS SELECT * FROM s;",
            "o writes to topic o already",
        ),
        ("SET trigger = 'often';", "e.g. '10 seconds'"),
        ("", "the file has no statement"),
    ],
)
def test_refusals(text, words):
    assert words in refusals(text)


def test_all_that_is_wrong_is_said_at_once_in_order_with_the_lines():
    shown = refusals(
        "CREATE STREAM s (a INTT);\n\tCREATE STREAM t (b INT) WITH (topik = 'x');\nCREATE VIEW v AS SELECT * FROM s;"
    )
    assert shown.splitlines() == [
        "bank.sql:1:20: INTT is not a type; did you mean INT?",
        "  CREATE STREAM s (a INTT);",
        "                     ^",
        "bank.sql:2:32: topik is not an option of a STREAM; did you mean topic?",
        "  \tCREATE STREAM t (b INT) WITH (topik = 'x');",
        "  \t                              ^",
    ]


def test_a_topic_that_is_read_past_its_statement_is_warned_of():
    pipeline = compile_text(
        STREAM + "CREATE STREAM o AS SELECT * FROM s; CREATE STREAM again (id STRING) WITH (topic = 'o');"
    )
    (warning,) = pipeline.warnings
    assert "read it by that name" in pipeline.source.show(warning)


def test_emit():
    text = STREAM + "CREATE TABLE t WITH (key = 'id', {}) AS SELECT id, count(*) AS n FROM s {} GROUP BY id{};"
    assert not compile_text(text.format("topic = 't'", "", "")).node("t").final
    assert compile_text(text.format("emit = 'final'", "", "")).node("t").final
    assert compile_text(text.format("topic = 't'", "", ", session_window(at, '1 minute')")).node("t").final
    two = "CREATE STREAM r (id STRING);"
    assert compile_text(two + text.format("topic = 't'", "JOIN r USING (id)", "")).node("t").final

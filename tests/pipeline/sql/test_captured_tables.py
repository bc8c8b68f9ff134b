"""CREATE TABLE ... WITH (connector = 'postgres'): what it is made of, and what is wrong with it."""

import pytest

from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.graph_rendering import graph_rows, render_graph
from klamm.pipeline.sql.core.identity import QueryIdentity, compare

TEXT = """
CREATE TABLE accounts (id BIGINT, owner STRING, balance DECIMAL(12, 2)) WITH (
  connector = 'postgres', url = 'postgresql://shop:${PASSWORD}@db/shop', table = 'public.accounts', key = 'id',
  batch_size = 500, trigger = '2 seconds', partitions = 2, bad_records = 'drop', kafka.linger.ms = '5');
CREATE TABLE debtors WITH (key = 'id') AS SELECT id, owner FROM accounts WHERE balance < 0;
"""


def with_options(options, kind="TABLE"):
    return f"CREATE {kind} accounts (id BIGINT, owner STRING) WITH ({options});"


def test_a_source_and_a_table_of_its_topic():
    pipeline = compile_text(TEXT)
    source, table, debtors = pipeline.nodes
    assert (source.name, source.kind, source.topic, source.format) == (
        "accounts.source",
        "source",
        "accounts",
        "debezium",
    )
    assert (source.option("batch_size"), source.option("trigger"), source.key) == ("500", "2 seconds", ("id",))
    assert (table.kind, table.topic, table.format, table.key_format) == ("table", "accounts", "debezium", "json")
    assert (table.option("bad_records"), table.option("url")) == ("drop", None)
    assert {node.option("kafka.linger.ms") for node in (source, table)} == {"5"}
    assert {node.option("partitions") for node in (source, table)} == {"2"}
    assert debtors.tables == ("accounts",)
    assert [query.name for query in pipeline.queries] == ["accounts.source", "debtors"]
    assert pipeline.readers_of_capture(source) == [table]
    assert pipeline.warnings == ()
    assert [row["reads"] for row in graph_rows(pipeline)] == [[], ["accounts.source"], ["accounts"]]
    assert render_graph(pipeline)[0] == (
        "accounts.source  source (postgres public.accounts, topic accounts, debezium, key id)"
    )


def test_a_stream_of_changes_and_more_readers_of_the_topic():
    options = "connector = 'postgres', url = 'postgresql://db/shop', table = 'accounts', key = 'id', topic = 'a'"
    text = (
        with_options(options, "STREAM") + "CREATE TABLE rows (id BIGINT) WITH (topic='a', format='debezium', key='id');"
    )
    pipeline = compile_text(text)
    assert [node.kind for node in pipeline.nodes] == ["source", "stream", "table"]
    assert {node.topic for node in pipeline.nodes} == {"a"}
    assert pipeline.warnings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_options("connector = 'postgres', key = 'id'"), "postgres needs the database's address"),
        (with_options("connector = 'postgres', key = 'id'"), "postgres needs the table to capture"),
        (
            with_options("connector = 'postgres', url = 'jdbc:postgresql://x', table = 't', key = 'id'"),
            "address of Postg",
        ),
        (
            with_options("connector = 'postgres', url = 'postgresql://x', table = 'a.b.c', key = 'id'"),
            "schema and table",
        ),
        (with_options("connector = 'postgres', url = 'postgresql://x', table = 't'"), "a table needs a key"),
        (
            with_options("connector = 'postgres', url = 'postgresql://x', table = 't'", "STREAM"),
            "the columns of the table's primary key",
        ),
        (with_options("connector = 'postgres', slot = 'My Slot', key = 'id'"), "lower-case letters"),
        (with_options("connector = 'postgres', format = 'json', key = 'id'"), "leave format out"),
        (with_options("connector = 'jdbc', key = 'id'"), "jdbc is one of CREATE SOURCE"),
        (with_options("connector = 'postgres', key = 'id', cursor = 'id'"), "cursor is not an option of a TABLE"),
        (with_options("key = 'id', slot = 'x'"), "slot is not an option of a TABLE"),
        (with_options("connector = 'postgres', key = 'id'", "SOURCE"), "CREATE TABLE accounts [(]columns[)] WITH"),
        (
            with_options("connector = 'files', path = 'x', slot = 'x'", "SOURCE"),
            "slot is an option of connector postgres",
        ),
        (
            with_options("connector = 'jdbc', url = 'postgresql://x', table = 't', cursor = 'id'", "SOURCE"),
            "url = 'jdbc:",
        ),
    ],
)
def test_what_is_wrong(text, message):
    with pytest.raises(SqlError, match=message):
        compile_text(text)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("batch_size = 500", "batch_size = 5", "same"),
        ("shop:${PASSWORD}@db", "shop:${OTHER}@db2", "same"),
        ("'public.accounts'", "'public.customers'", "rebuild"),
        ("batch_size = 500", "slot = 'other'", "rebuild"),
        ("owner STRING, balance", "owner STRING, more STRING, balance", "same"),
    ],
)
def test_what_a_change_means_for_the_capture(before, after, verdict):
    stored = QueryIdentity("id", "name", {}, {}).renew(compile_text(TEXT))
    changes = {change.name: change.verdict for change in compare(stored, compile_text(TEXT.replace(before, after)))}
    assert changes["accounts.source"] == verdict

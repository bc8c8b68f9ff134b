"""Which changes of a file keep the state of its queries: verdicts by the columns that a query reads."""

import json

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity, compare
from klamm.pipeline.sql.core.read_columns import read_columns
from klamm.pipeline.sql.runner import renew_identity
from klamm.pipeline.sql.status import Home

COLUMNS = "account STRING, amount INT, note STRING, at TIMESTAMP"
INPUT = "CREATE STREAM payments ({}) WITH (timestamp = 'at', watermark = '10 seconds'{});"
OTHER = "CREATE STREAM refunds (account STRING, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 hour');"
SUMS = "CREATE TABLE sums AS SELECT account, sum(amount) AS total FROM payments GROUP BY account;"


def identity_of(text):
    stored = QueryIdentity("id", "bank", {}, {}).renew(compile_text(text))
    return QueryIdentity.decode(stored.encode(), "here")


def changes(before, after, stored=None):
    verdicts = compare(stored or identity_of(before), compile_text(after))
    return {change.name: (change.verdict, change.reason) for change in verdicts}


def verdict(query, columns, options=""):
    """Return what a change of the columns of payments means for the query."""
    text = OTHER + query
    return changes(INPUT.format(COLUMNS, options) + text, INPUT.format(columns, options) + text)


def reads(query, declared=COLUMNS):
    pipeline = compile_text(INPUT.format(declared, "") + OTHER + query)
    names = read_columns(pipeline, pipeline.queries[-1])["payments"]
    return "all" if names is None else {name for name in names if name in ("account", "amount", "note", "at", "more")}


@pytest.mark.parametrize(
    "columns",
    [
        COLUMNS + ", more DOUBLE",
        "more DOUBLE, " + COLUMNS,
        "at TIMESTAMP, note STRING, amount INT, account STRING",
        COLUMNS.replace("note STRING", "note BINARY"),
        COLUMNS.replace(", note STRING", ""),
    ],
)
def test_columns_that_a_query_does_not_read_keep_its_state(columns):
    assert verdict(SUMS, columns) == {"sums": ("same", "")}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (COLUMNS.replace("account STRING", "account INT"), "payments.account is INT instead of STRING"),
        (COLUMNS.replace("amount INT", "amount DECIMAL(9,2)"), "payments.amount is DECIMAL(9,2) instead of INT"),
        (COLUMNS.replace("amount INT, ", ""), "payments no longer has amount"),
    ],
)
def test_columns_that_it_reads_need_a_rebuild_and_are_named(columns, expected):
    assert verdict(SUMS, columns) == {
        "sums": ("rebuild", f"{expected}, and its state was computed by the old statement")
    }


def test_a_wider_integer_keeps_a_sum_but_neither_a_maximum_nor_a_group_nor_a_key():
    wider = COLUMNS.replace("amount INT", "amount BIGINT")
    assert verdict(SUMS, wider)["sums"] == ("continues", "payments.amount is BIGINT instead of INT")
    assert verdict(SUMS.replace("sum(amount)", "avg(payments.amount)"), wider)["sums"][0] == "continues"
    for aggregate in ("max(amount)", "sum(amount + 1)", "count(DISTINCT amount)", "sum(amount), min(amount)"):
        assert verdict(SUMS.replace("sum(amount)", aggregate), wider)["sums"][0] == "rebuild", aggregate
    assert verdict(SUMS.replace("account", "amount"), wider)["sums"][0] == "rebuild"
    assert verdict(SUMS, wider, ", deduplicate = 'amount'")["sums"][0] == "rebuild"
    narrower = COLUMNS.replace("amount INT", "amount SMALLINT")
    assert verdict(SUMS, narrower)["sums"][0] == "rebuild"


def test_a_wider_type_of_a_query_without_state_continues():
    query = "CREATE STREAM copy AS SELECT account, amount FROM payments;"
    assert verdict(query, COLUMNS.replace("amount INT", "amount BIGINT")) == {
        "copy": ("continues", "payments.amount is BIGINT instead of INT")
    }


def test_joined_streams_keep_rows_in_the_order_of_their_columns():
    query = """CREATE STREAM pairs AS SELECT p.account, p.note FROM payments p JOIN refunds r
        ON p.account = r.account AND r.at BETWEEN p.at AND p.at + INTERVAL 1 HOUR;"""
    assert verdict(query, COLUMNS + ", more INT")["pairs"][0] == "same"
    assert verdict(query, "note STRING, account STRING, amount INT, at TIMESTAMP")["pairs"][0] == "rebuild"
    assert verdict(query, COLUMNS.replace("amount INT", "amount BIGINT"))["pairs"][0] == "same"


def test_fields_of_csv_are_found_by_their_position():
    csv = ", format = 'csv'"
    assert verdict(SUMS, COLUMNS + ", more INT", csv)["sums"][0] == "same"
    moved = verdict(SUMS, "more INT, " + COLUMNS, csv)["sums"]
    assert moved[0] == "rebuild"
    assert "payments.account is STRING in field 2 instead of STRING in field 1" in moved[1]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("SELECT account FROM payments", {"account", "at"}),
        ("SELECT count(*) AS n FROM payments", {"at"}),
        ("SELECT amount * 2 AS twice FROM payments", {"amount", "at"}),
        ("SELECT p.`note` FROM payments AS p WHERE p.ACCOUNT = 'x'", {"note", "account", "at"}),
        ('SELECT "note" AS x FROM payments', {"note", "at"}),
        ("SELECT * FROM payments", "all"),
        ("SELECT p.* FROM payments p", "all"),
        ("SELECT account FROM (SELECT * FROM payments)", "all"),
        ("SELECT to_json(struct(*)) AS x FROM payments", "all"),
        ("SELECT count(p.*) AS x FROM payments p", "all"),
        ("SELECT a FROM payments AS p (a, b, c, d)", "all"),
        ("SELECT a FROM payments p (a, b, c, d)", "all"),
        ("SELECT payments.account FROM payments NATURAL JOIN refunds", "all"),
        ("SELECT cast(amount AS DECIMAL(9, 2)) AS x FROM payments", {"amount", "at"}),
        ("SELECT account FROM payments WHERE (amount > 1) AND (amount < 9)", {"account", "amount", "at"}),
    ],
)
def test_what_a_select_reads(select, expected):
    assert reads(f"CREATE STREAM query AS {select};") == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("SELECT * FROM payments WHERE amount > 9", {"account", "amount", "at"}),
        ("SELECT *, upper(note) AS loud FROM payments", {"account", "note", "at"}),
        ("SELECT * EXCEPT (note) FROM payments", {"account", "note", "at"}),
        ("SELECT * FROM (SELECT * FROM payments)", {"account", "at"}),
        ("WITH x AS (SELECT * FROM payments) SELECT * FROM x", {"account", "at"}),
        ("SELECT * FROM payments UNION ALL SELECT * FROM payments", "all"),
        ("SELECT DISTINCT * FROM payments", "all"),
        ("SELECT * FROM (SELECT * FROM payments) AS x (account, b, c, d)", "all"),
        ("WITH x (account, b, c, d) AS (SELECT * FROM payments) SELECT * FROM x", "all"),
        ("SELECT account, struct(*) AS whole FROM payments", "all"),
        ("FROM payments", "all"),
    ],
)
def test_a_star_of_a_view_passes_on_what_its_reader_needs(view, expected):
    assert reads(f"CREATE VIEW v AS {view}; CREATE STREAM query AS SELECT account FROM v;") == expected


def test_a_view_of_a_view_with_two_readers_needs_what_both_need():
    views = "CREATE VIEW v AS SELECT * FROM payments; CREATE VIEW w AS SELECT * FROM v;"
    query = "CREATE STREAM query AS SELECT w.account FROM w JOIN v ON w.at = v.at AND v.amount = 1;"
    assert reads(views + query) == {"account", "amount", "at"}
    assert reads(views + "CREATE STREAM query AS SELECT * FROM w;") == "all"


def test_a_new_column_whose_name_the_query_uses_otherwise_is_no_unused_column():
    # `total` is an alias so far; as a column it would be meant by HAVING and ORDER BY.
    assert verdict(SUMS, COLUMNS + ", total INT")["sums"][0] == "rebuild"


def test_a_changed_function_keeps_state_unless_its_type_changed():
    query = """CREATE FUNCTION rate(amount INT) RETURNS INT AS 'mine:rate';
    CREATE TABLE rates AS SELECT account, max(rate(amount)) AS top FROM payments GROUP BY account;"""
    query = query.replace("rate(amount INT) RETURNS", "rate RETURNS")
    text = INPUT.format(COLUMNS, "") + query
    assert changes(text, text.replace("mine:rate", "mine:rate2"))["rates"] == (
        "continues",
        "a function it calls changed",
    )
    assert changes(text, text.replace("RETURNS INT", "RETURNS BIGINT"))["rates"][0] == "rebuild"


def test_an_identity_of_version_1_compares_by_what_is_read_now():
    text = INPUT.format(COLUMNS, "") + SUMS
    document = json.loads(identity_of(text).encode())
    document["version"] = 1
    for query in document["queries"].values():
        del query["functions"]
        for source in query["inputs"].values():
            source.pop("read")
            source.pop("aggregated")
    stored = QueryIdentity.decode(json.dumps(document), "here")
    assert changes("", text, stored) == {"sums": ("same", "")}
    assert changes("", text.replace("note STRING", "note STRING, more INT"), stored) == {"sums": ("same", "")}
    assert changes("", text.replace("amount INT", "amount DOUBLE"), stored)["sums"][0] == "rebuild"
    with pytest.raises(ConfigError, match="version 3; this Klamm supports up to 2"):
        QueryIdentity.decode(json.dumps({**document, "version": 3}), "here")


SINK = "CREATE SINK lake WITH (format = 'delta', path = '/lake/a') AS SELECT account, amount FROM payments;"


def test_a_new_trigger_query_or_sink_and_an_order_of_statements_keep_state():
    text = INPUT.format(COLUMNS, "") + SUMS
    assert changes(text, text.replace("AS SELECT", "WITH (trigger = '1 minute') AS SELECT")) == {"sums": ("same", "")}
    assert changes(text, text + SINK) == {"sums": ("same", ""), "lake": ("new", "")}
    copy = "CREATE STREAM copy AS SELECT account FROM payments;"
    assert changes(text + copy, INPUT.format(COLUMNS, "") + copy + SUMS) == {"sums": ("same", ""), "copy": ("same", "")}


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("path = '/lake/a'", "path = '/lake/b'", "delta at /lake/b lacks the rows that are in delta at /lake/a"),
        ("'delta'", "'parquet'", "parquet at /lake/a lacks the rows that are in delta at /lake/a"),
    ],
)
def test_a_changed_place_of_a_lake_is_refused_with_both_ways(before, after, place, tmp_path):
    text = INPUT.format(COLUMNS, "") + SINK
    changed = compile_text(text.replace(before, after))
    assert changes(text, text.replace(before, after))["lake"] == ("continues from now", place)
    home = Home(str(tmp_path))
    home.keep(identity_of(text))
    with pytest.raises(ConfigError) as refusal:
        renew_identity(changed, home)
    assert str(refusal.value).splitlines() == [
        f"lake has another place: {place}",
        "--continue lake writes only the rows from now on",
        "--rebuild lake reads its topics from the beginning and writes all rows",
    ]
    assert renew_identity(changed, home, continued=["lake"]).generations["lake"] == 0
    assert renew_identity(changed, home, ["lake"]).generations["lake"] == 1
    with pytest.raises(ConfigError, match="there is no query lak to continue"):
        renew_identity(changed, home, continued=["lak"])


def test_a_place_where_a_console_was_before_lacks_all_rows():
    console = "CREATE SINK lake WITH (format = 'console') AS SELECT account, amount FROM payments;"
    text = INPUT.format(COLUMNS, "")
    assert changes(text + console, text + SINK)["lake"] == (
        "continues from now",
        "delta at /lake/a lacks all rows until now",
    )
    assert changes(text + SINK, text + console)["lake"][0] == "continues"

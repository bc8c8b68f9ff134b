"""The live view of a pipeline: what is drawn of a status."""

import io

from rich.console import Console

from klamm.cli.pipeline_view import (
    Messages,
    graph_lines,
    headline,
    join_lines,
    lag_line,
    render_status,
    source_line,
    tree_rows,
)

GRAPH = [
    {"name": "payments", "kind": "stream", "reads": []},
    {"name": "balances", "kind": "table", "reads": ["payments"]},
    {"name": "suspicious", "kind": "stream", "reads": ["payments"]},
    {"name": "joined", "kind": "stream", "reads": ["suspicious", "balances"]},
]
QUERIES = {
    "balances": {
        "state": "running",
        "rows_per_s": 1500.4,
        "lag_records": 12,
        "lag_ms": 3400,
        "state_rows": 40,
        "late_rows": 2,
        "bad_records": {"drop": 3},
        "batch_ms": 500,
    },
    "suspicious": {
        "state": "failed",
        "error_gist": "a record is bad",
        "advice": "klamm pipeline restart bank suspicious",
    },
    "joined": {"state": "paused"},
    "payments.dead_letters": {"state": "restarting", "restart_in_ms": 4000, "error_gist": "away"},
}


def drawn(status, messages=(), *, color=False):
    stream = io.StringIO()
    Console(file=stream, width=100, force_terminal=color, color_system="standard" if color else None).print(
        render_status("bank", status, 43_000, messages)
    )
    return stream.getvalue()


def test_the_graph_with_numbers_of_each_query():
    text = drawn({"state": "running", "pid": 7, "started_ms": 1000, "graph": GRAPH, "queries": QUERIES}, ["a message"])
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == " bank   running, process 7  42s"
    rows = {line.split()[1] if line[0] in "├└│ " else line.split()[0]: line.split() for line in lines[3:9]}
    assert rows["payments"] == ["payments", "stream"]
    assert rows["balances"][2:] == ["running", "1,500", "12", "3.4s", "40", "2", "3", "500ms"]
    assert rows["suspicious"][2] == "failed"
    assert rows["payments.dead_letters"][2:4] == ["in", "4s"]
    assert "suspicious: a record is bad" in lines
    assert "  to go on: klamm pipeline restart bank suspicious" in lines
    assert lines[-1] == "a message"


def test_failed_is_red_and_paused_yellow():
    text = drawn({"state": "running", "graph": GRAPH, "queries": QUERIES}, color=True)
    assert "\x1b[1;31mfailed" in text
    assert "\x1b[33mpaused" in text
    assert "\x1b[32mrunning" in text


def test_before_there_are_queries_the_graph_and_what_it_waits_for_are_shown():
    status = {"state": "starting", "pid": 7, "waits_for": "Spark", "graph": GRAPH, "queries": {}}
    assert headline("bank", status) == "bank: starting, process 7, waits for Spark"
    assert graph_lines(status) == [
        "payments  stream",
        "├─ balances  table",
        "│  └─ joined  stream",
        "└─ suspicious  stream",
        "   └─ joined (above)",
    ]
    assert "waits for Spark" in drawn(status)


def test_queries_that_read_tables_say_which_rows():
    graph = [{**node, "joins": "computed for changed rows" if node["name"] == "joined" else None} for node in GRAPH]
    assert join_lines({"graph": graph}) == ["joined: computed for changed rows"]
    assert join_lines({"graph": GRAPH}) == join_lines({}) == []


def test_a_status_without_a_graph_lists_its_queries():
    assert tree_rows([], ["a", "b"]) == [("a", "a", False), ("b", "b", False)]
    assert "a" in drawn({"state": "gone", "queries": {"a": {}}})


def test_only_the_last_messages_are_kept():
    messages = Messages()
    for number in range(20):
        messages.add(str(number))
    assert list(messages.lines) == [str(number) for number in range(14, 20)]


def test_what_a_capture_of_a_database_does():
    snapshot = {"state": "running", "detail": "snapshot: 2000 of about 5000 rows"}
    assert source_line(snapshot) == "snapshot: 2000 of about 5000 rows"
    assert source_line({"slot_lag_bytes": 3 << 20}).startswith("PostgreSQL keeps 3")
    assert source_line(QUERIES["balances"]) == ""
    text = drawn({"state": "running", "graph": [], "queries": {"accounts.source": snapshot}})
    assert "accounts.source: snapshot: 2000 of about 5000 rows" in text


def test_the_partitions_that_are_most_behind():
    assert lag_line({}) == ""
    assert lag_line({"partition_lag_records": {"orders": {"0": 0}}}) == ""
    lags = {"orders": {"0": 0, "1": 1, "9": 40, "10": 40}, "users": {"0": 1200, "1": 2}}
    assert lag_line({"partition_lag_records": lags, "partition_lag_ms": {"users": {"0": 61_000}}}) == (
        "behind in users-0 by 1200 records (1m1s), orders-9 by 40 records, orders-10 by 40 records, 2 other partitions"
    )

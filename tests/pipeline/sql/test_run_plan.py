"""`plan`: what a run means for state, how much is read again, and which types have changed."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.model.errors import ConfigError
from klamm.pipeline.query_checkpoint import QueryCheckpoint
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.graph_rendering import format_seconds, render_graph
from klamm.pipeline.sql.core.identity import QueryIdentity, compare
from klamm.pipeline.sql.core.read_cost import ReadCost, measured_rate
from klamm.pipeline.sql.core.state_schemas import describe_schemas
from klamm.pipeline.sql.dry_build import build_dry
from klamm.pipeline.sql.run_plan import plan_run
from klamm.pipeline.sql.runner import _with_schemas, renew_identity
from klamm.pipeline.sql.status import Home

TEXT = """
CREATE STREAM s (id STRING, n {kind}) WITH (topic = '{topic}');
CREATE TABLE t AS SELECT id, {value} AS n FROM s GROUP BY id;
CREATE STREAM big AS SELECT * FROM s WHERE n > 5;
"""
SUM, MAX = {"kind": "INT", "value": "sum(n)"}, {"kind": "INT", "value": "max(n)"}


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(1, "1s"), (59_400, "59s"), (200_000, "3m20s"), (7_260_000, "2h1m"), (90_000_000, "1d1h")],
)
def test_durations(duration_ms, text):
    assert format_seconds(duration_ms) == text


def test_rates_are_those_of_the_last_run():
    assert measured_rate({"rows_total": 500, "batch_ms_total": 2000}) == 250
    for status in ({}, {"rows_total": 0, "batch_ms_total": 20}, {"rows_total": 7, "batch_ms_total": None}):
        assert measured_rate(status) is None
    assert ReadCost(1000, 250.0).duration_ms == 4000
    assert ReadCost(1000).duration_ms is None


def test_a_rebuild_says_how_much_is_read_again_and_for_how_long(klamm_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topic = klamm_broker.topic("s")
    with klamm_broker.producer() as producer:
        for number in range(250):
            producer.send(topic, b'{"id": "a", "n": %d}' % number)
    home = Home(".klamm/pipelines/p")
    home.keep(renew_identity(compile_text(TEXT.format(topic=topic, **SUM), "p.sql"), home))
    home.write_status({"state": "stopped", "queries": {"t": {"rows_total": 500, "batch_ms_total": 10_000}}})
    added = "CREATE STREAM small AS SELECT * FROM s WHERE n < 2;"
    (tmp_path / "p.sql").write_text(TEXT.format(topic=topic, **MAX) + added)

    def plan(*words, bootstrap=klamm_broker.bootstrap):
        done = CliRunner().invoke(cli, ["pipeline", "plan", "p.sql", "-b", bootstrap, *words])
        assert done.exit_code == 0, done.output
        return done

    lines = plan().output.splitlines()
    reason = "its SELECT changed, and its state was computed by the old statement"
    assert lines[1].endswith(f"[rebuild: {reason}; reads 250 offsets, 5s at 50 a second]")
    assert lines[2].endswith("[same]")
    assert lines[3].endswith("[new; reads 250 offsets]")
    rows = {row["name"]: row for row in map(json.loads, plan("-o", "jsonl").stdout.splitlines())}
    assert (rows["t"]["offsets"], rows["t"]["duration_ms"]) == (250, 5000)
    assert (rows["small"]["offsets"], rows["small"]["duration_ms"]) == (250, None)
    assert rows["big"]["offsets"] is None

    without = plan(bootstrap="127.0.0.1:1")
    assert f"[rebuild: {reason}]" in without.output
    assert "how much would be read again is not known" in without.output


def test_a_rebuild_says_which_records_are_gone(klamm_broker, klamm_admin, tmp_path):
    topic = klamm_broker.topic("s")
    with klamm_broker.producer() as producer:
        for number in range(10):
            producer.send(topic, b'{"id": "a", "n": %d}' % number)
    home = Home(str(tmp_path / "home"))
    home.keep(renew_identity(compile_text(TEXT.format(topic=topic, **SUM), "p.sql"), home))
    changed = compile_text(TEXT.format(topic=topic, **MAX), "p.sql", {"bootstrap": klamm_broker.bootstrap})

    def lines():
        changes, unknown = plan_run(changed, home, {"bootstrap.servers": klamm_broker.bootstrap})
        assert unknown is None
        return render_graph(changed, changes)

    assert not any("retention" in line for line in lines())
    klamm_admin.delete_records({(topic, 0): 4})
    (line,) = [line for line in lines() if "rebuild" in line]
    assert line.endswith(
        "reads 6 offsets; retention has removed 4 offsets, so that its values change: needs --accept-lost t]"
    )
    # A generation that began behind them has computed nothing from them.
    QueryCheckpoint.at(f"{home.path}/t.0").record_starts({"s": {topic: {"0": 4}}})
    assert not any("retention" in line for line in lines())


def test_types_that_spark_resolves_are_compared(spark, tmp_path):
    home = Home(str(tmp_path / "home"))
    before = compile_text(TEXT.format(topic="s", **SUM), "p.sql")
    identity = renew_identity(before, home)
    schemas = describe_schemas(before, build_dry(before, spark=spark))
    assert schemas["t"]["output"] == {"id": "STRING", "n": "BIGINT"}
    stored = QueryIdentity(identity.id, identity.name, identity.queries, identity.generations, schemas=schemas)
    home.keep(stored)
    columns = build_dry(before, spark=spark)
    assert {change.verdict for change in plan_run(before, home, columns=columns)[0]} == {"same"}

    # As if a function, or the registry, had another type now.
    other = {**columns, "t": {"id": "STRING", "n": "DOUBLE"}}
    client = {"bootstrap.servers": "127.0.0.1:1"}
    (change,) = [change for change in plan_run(before, home, client, other)[0] if change.name == "t"]
    assert (change.verdict, change.reason) == (
        "rebuild",
        "t.n is DOUBLE instead of BIGINT, and its state has the old type",
    )
    # An adopted or restored query has a new generation and the same state.
    engine = SimpleNamespace(output_columns=other)
    with pytest.raises(ConfigError, match=r"t must be rebuilt: t\.n is DOUBLE instead of BIGINT"):
        _with_schemas(stored.with_generation("t", 7), frozenset(), before, engine)
    assert _with_schemas(stored, frozenset({"t"}), before, engine).schemas["t"]["output"]["n"] == "DOUBLE"


@pytest.mark.parametrize(
    "change",
    [
        ("lake/a", "lake/b"),
        ("db.first", "db.second"),
        ("cat_1", "cat_2"),
    ],
)
def test_another_place_of_a_lake_table_is_not_silent(change):
    text = (
        "CREATE STREAM s (n INT); CREATE SINK l WITH (format = 'iceberg', path = 'lake/a', table = 'db.first',"
        " option.catalog = 'cat_1') AS SELECT n FROM s;"
    )
    identity = QueryIdentity("id", "p", {}, {}).renew(compile_text(text))
    (verdict,) = compare(identity, compile_text(text.replace(*change)))
    assert verdict.verdict == "continues from now"
    assert "lacks the rows that are in iceberg at lake/a, db.first, cat_1" in verdict.reason

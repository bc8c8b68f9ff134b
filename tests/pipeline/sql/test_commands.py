"""`klamm pipeline`: what needs no Spark, as it is typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.client.types import Record
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.dead_letters import parse_dead_letter
from klamm.pipeline.sql.known_homes import data_root
from klamm.pipeline.sql.runner import renew_identity, write_starting
from klamm.pipeline.sql.status import Home

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline" / "sql"
TEXT = (
    "CREATE STREAM s (id STRING, n INT);\n"
    "CREATE TABLE t AS SELECT id, sum(n) AS n FROM s GROUP BY id;\n"
    "CREATE STREAM big AS SELECT * FROM s WHERE n > 5;\n"
)


@pytest.fixture
def typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.sql").write_text(TEXT)

    # Not the broker that a person may run on the usual port.
    monkeypatch.setenv("KLAMM_BOOTSTRAP", "127.0.0.1:1")

    def call(*words):
        # As a whole command: click keeps a verb's help flags as its first caller had them.
        return CliRunner().invoke(cli, ["pipeline", *words])

    return call


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.sql")))
def test_examples_are_fine(typed, name):
    done = typed("check", str(EXAMPLES / f"{name}.sql"))
    assert done.exit_code == 0, done.output
    assert "fine" in done.output


def test_check_says_where(typed, tmp_path):
    (tmp_path / "p.sql").write_text(TEXT.replace("FROM s WHERE", "FROM ss WHERE"))
    done = typed("check", "p.sql")
    assert done.exit_code == 1
    assert "p.sql:3:36: there is no stream or table ss; did you mean s?" in done.output
    done = typed("check", "p.sql", "-o", "json")
    assert done.exit_code == 1
    (problem,) = json.loads(done.output)
    assert (problem["line"], problem["column"], problem["level"]) == (3, 36, "error")


def test_check_takes_settings(typed):
    assert typed("check", "p.sql", "--set", "trigger=1 minute").exit_code == 0
    assert (
        "--set: there is no setting triger; did you mean trigger?"
        in typed("check", "p.sql", "--set", "triger=1").output
    )
    assert typed("check", "p.sql", "--set", "trigger").exit_code == 2


def test_plan_draws_and_compares(typed, tmp_path):
    done = typed("plan", "p.sql")
    assert done.output.splitlines() == [
        "s  stream (topic s, json)",
        "├─ t  table (topic t, json, key id, keeps state)",
        "└─ big  stream (topic big, json)",
    ]
    home = Home(str(tmp_path / ".klamm" / "pipelines" / "p"))
    home.keep(renew_identity(compile_text(TEXT, "p.sql"), home))
    (tmp_path / "p.sql").write_text(TEXT.replace("sum(n)", "max(n)").replace("> 5", "> 6"))
    done = typed("plan", "p.sql")
    assert "[rebuild: its SELECT changed, and its state was computed by the old statement]" in done.output
    assert "[continues: its SELECT changed]" in done.output
    rows = [json.loads(line) for line in typed("plan", "p.sql", "-o", "jsonl").stdout.splitlines()]
    assert [row["change"] for row in rows] == [None, "rebuild", "continues"]


def test_ls_show_and_stop(typed, tmp_path):
    assert typed("ls").output == f"no pipeline ran in {data_root()}\n"
    home = Home(str(tmp_path / ".klamm" / "pipelines" / "p"))
    home.keep(renew_identity(compile_text(TEXT, "p.sql"), home))
    status = {"batch": 3, "rows": 7, "rows_per_s": 3.5, "lag_records": 4, "failures": 1, "error": "away"}
    status |= {"partition_lag_records": {"s": {"0": 0, "1": 4}}, "partition_lag_ms": {"s": {"1": 2000}}}
    home.write_status({"state": "stopped", "pid": 7, "queries": {"t": status}, "error": None})
    (row,) = json.loads(typed("ls", "-o", "json").output)
    assert (row["pipeline"], row["state"], row["queries"], row["lag_records"]) == ("p", "stopped", 1, 4)
    shown = json.loads(typed("show", "p", "-o", "json").output)
    assert shown["queries"]["t"] == status
    table = typed("show", "p", "-o", "table").output
    assert "p: stopped, process 7" in table
    assert "t: away" in table
    assert "t: behind in s-1 by 4 records (2s)" in table
    assert "p does not run" in typed("stop", "p").output
    assert "did you mean p?" in typed("show", "pp").output


def test_a_letter_is_read_from_its_headers():
    headers = [("own", b"1")] + [
        (f"dead_letter.{name}", value.encode())
        for name, value in {
            "pipeline": "p",
            "stream": "s",
            "topic": "in",
            "partition": "1",
            "offset": "17",
            "timestamp": "5",
            "error": "no JSON",
        }.items()
    ]
    record = Record("in.dead_letters", 0, 3, 9, b"k", b"{", headers)
    letter = parse_dead_letter(record)
    assert (letter.stream, letter.topic, letter.partition, letter.offset, letter.error) == ("s", "in", 1, 17, "no JSON")
    assert (letter.key, letter.value, letter.headers) == (b"k", b"{", (("own", b"1"),))
    assert parse_dead_letter(record._replace(headers=[("own", b"1")])) is None


def test_plan_marks_the_reader_of_a_stream_without_duplicates_as_keeping_state(typed, tmp_path):
    (tmp_path / "p.sql").write_text(
        "CREATE STREAM s (id STRING) WITH (deduplicate = 'id'); CREATE STREAM x AS SELECT * FROM s;"
    )
    assert typed("plan", "p.sql").output.splitlines() == [
        "s  stream (topic s, json)",
        "└─ x  stream (topic x, json, keeps state)",
    ]


def test_show_has_the_graph_before_there_are_queries(typed, tmp_path):
    home = Home(str(tmp_path / ".klamm" / "pipelines" / "p"))
    with home.hold_lock():
        write_starting(home, compile_text(TEXT, "p.sql"), "Spark")
        lines = typed("show", "p", "-o", "table").output.splitlines()
    assert lines[0].startswith("p: starting, process ")
    assert lines[0].endswith(", waits for Spark")
    assert lines[1:] == ["s  stream", "├─ t  table", "└─ big  stream"]


def test_pause_resume_and_restart_need_a_pipeline_that_runs(typed, tmp_path):
    home = Home(str(tmp_path / ".klamm" / "pipelines" / "p"))
    home.write_status({"state": "stopped", "pid": 7, "queries": {"t": {}}, "error": None})
    for verb in ("pause", "resume", "restart"):
        assert "p does not run" in typed(verb, "p", "t").output


@pytest.mark.parametrize(("option", "verb"), [("--continue", "continue"), ("--rebuild", "rebuild")])
def test_options_of_run_name_queries(typed, klamm_broker, klamm_name, tmp_path, option, verb):
    topic = klamm_broker.topic("in")
    (tmp_path / "p.sql").write_text(
        f"SET name = '{klamm_name('p')}'; CREATE STREAM s (n INT) WITH (topic = '{topic}');"
        "CREATE SINK kept WITH (format = 'noop') AS SELECT n FROM s;"
    )
    done = typed("run", "p.sql", "-b", klamm_broker.bootstrap, option, "ketp")
    assert done.exit_code == 1
    assert f"there is no query ketp to {verb}" in done.output


def test_only_a_rebuild_accepts_lost_records(typed, klamm_broker, klamm_name, tmp_path):
    topic = klamm_broker.topic("in")
    (tmp_path / "p.sql").write_text(
        f"SET name = '{klamm_name('p')}'; CREATE STREAM s (n INT) WITH (topic = '{topic}');"
        "CREATE SINK kept WITH (format = 'noop') AS SELECT n FROM s;"
    )
    result = typed("run", "p.sql", "-b", klamm_broker.bootstrap, "--accept-lost", "kept")
    assert result.exit_code == 1
    assert "--accept-lost kept is for a query that is rebuilt: add --rebuild kept" in result.output

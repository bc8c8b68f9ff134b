"""`klamm schema` against a registry: what a person types and reads."""

import json

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.telemetry.log import Level, configure
from klamm.testing import unique

from .small_store import record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, c=False)


@pytest.fixture
def run(registry):
    def call(*args, code=0, given=None):
        result = CliRunner().invoke(cli, ["schema", *args, "--registry", registry.url], input=given)
        assert result.exit_code == code, result.output
        return result.output

    # The registry runs in this process: its access log would come between the lines of the command.
    configure(Level.WARNING)
    yield call
    configure()


@pytest.fixture
def file(tmp_path):
    def write(text, name="schema.avsc"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def rows(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_put_show_and_list(run, file):
    subject = unique("s")
    assert "version 1, id" in run("put", subject, file(A))
    assert "has this schema already: version 1" in run("put", subject, file(A))
    assert "version 2" in run("put", subject, "-", given=B)
    (row,) = rows(run("ls", subject))
    assert (row["subject"], row["versions"], row["latest"], row["type"]) == (subject, 2, 2, "AVRO")
    assert rows(run("show", subject, "--version", "1"))[0]["schema"] == A
    table = run("show", subject, "-o", "table")
    assert table.startswith(f"{subject} version 2: id ")
    assert '"name": "b"' in table
    assert "there is" in run("show", unique("none"), code=3)


def test_check_and_diff_name_the_level(run, file):
    subject = unique("s")
    run("put", subject, file(A))
    assert "compatible (BACKWARD)" in run("check", subject, file(B), "-o", "table")
    refused = run("check", subject, file(C), "-o", "table", code=1)
    assert f"{subject}: not compatible (BACKWARD)" in refused
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused
    assert "409" in run("put", subject, file(C), code=1)
    broken = rows(run("diff", subject, file(C)))
    assert [(row["level"], row["rule"]) for row in broken] == [("BACKWARD,FULL", "READER_FIELD_MISSING_DEFAULT_VALUE")]
    assert run("diff", subject, file(B), "-o", "table") == "compatible under every level\n"


def test_references(run, file):
    inner, outer = unique("inner"), unique("outer")
    run("put", inner, file(A))
    text = '{"type":"record","name":"O","fields":[{"name":"r","type":"R"}]}'
    run("put", outer, file(text), "--reference", f"R={inner}:1")
    assert f"uses R = {inner}:1" in run("show", outer, "-o", "table")
    assert run("diff", outer, file(text), "--reference", f"R={inner}:1") == ""
    run("put", outer, file(text), "--reference", "R", code=2)


def test_deletes_are_confirmed(run, file):
    subject = unique("s")
    run("put", subject, file(A))
    run("put", subject, file(B))
    assert f"- {subject} version 1" in run("rm", subject, "--version", "1", "--dry-run")
    run("rm", subject, code=6)
    assert run("rm", subject, "--version", "1", "--yes") == f"Deleted {subject} version 1.\n"
    run("rm", subject, "--yes")
    assert rows(run("ls", subject)) == []
    assert len(rows(run("ls", subject, "--deleted"))) == 1
    assert run("rm", subject, "--permanent", "--yes").count("Deleted") == 2
    run("rm", subject, "--yes", code=3)


def test_an_export_is_imported_elsewhere(run, file):
    context, other = f".{unique('c')}", f".{unique('d')}"
    inner = f":{context}:inner"
    run("put", inner, file(A))
    run("put", inner, file(B))
    run("put", f":{context}:outer", file('{"type":"array","items":"R"}'), "--reference", f"R={inner}:1")
    exported = run("export", f":{context}:")
    assert [row["id"] for row in rows(exported)] == [1, 2, 3]
    moved = exported.replace(context, other)
    assert run("import", file(moved, "e.jsonl"), "--dry-run").count("+ ") == 3
    assert "Imported 3 versions of 2 subjects" in run("import", file(moved, "e.jsonl"), "--keep-ids")
    before, after = (
        [(row["id"], row["version"], row["schema"]) for row in rows(run("export", f":{name}:"))]
        for name in (context, other)
    )
    assert before == after
    assert "no export" in run("import", file("{}"), code=1)


def test_a_registry_that_does_not_run(file, monkeypatch):
    monkeypatch.setattr("klamm.registry.client_settings._RETRIES", 0)
    result = CliRunner().invoke(cli, ["schema", "ls", "--registry", "http://127.0.0.1:1"])
    assert result.exit_code == 5
    assert "`klamm registry` runs one" in result.output

"""The mark of a protected context holds for its cluster, whatever address leads there."""

import json

import pytest
from click.testing import CliRunner

from harness import KlammProcess, unique
from klamm.cli import exit_codes
from klamm.cli.main import cli


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    path = tmp_path / "contexts.json"
    monkeypatch.setenv("KLAMM_CONTEXTS", str(path))
    for name in ("KLAMM_BOOTSTRAP", "KLAMM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return path


def run(*args, exits=0, stdin=None):
    result = CliRunner().invoke(cli, list(args), input=stdin, prog_name="klamm")
    assert result.exit_code == exits, result.output
    return result


@pytest.fixture
def other(klamm):
    """Another address of the same node."""
    return f"localhost:{klamm.port}"


def test_another_address_of_the_cluster_asks_too(klamm, other):
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "--protected")
    name = unique("guarded")
    refused = run("topic", "create", name, "--yes", "-b", other, exits=exit_codes.NOT_AGREED)
    assert "the context prod is protected" in refused.stderr
    run("produce", name, "-b", other, stdin="x\n", exits=exit_codes.NOT_AGREED)
    states = {row["check"]: row["state"] for row in map(json.loads, run("doctor", "-b", other).stdout.splitlines())}
    assert states["round trip"] == "left out"
    assert name not in run("topic", "ls", "-b", other).stdout
    run("topic", "create", name, "--confirm", "prod", "-b", other)
    run("topic", "delete", name, "--confirm", "prod", "-b", other)
    run("ctx", "add", "alias", "-b", other)
    run("topic", "create", name, "--ctx", "alias", exits=exit_codes.NOT_AGREED)


def test_a_context_shows_which_cluster_it_is(klamm):
    about = json.loads(run("cluster", "show", "-b", klamm.bootstrap, "-o", "json").stdout)
    run("ctx", "add", "dev", "-b", klamm.bootstrap)
    assert json.loads(run("ctx", "show", "-o", "json").stdout)["cluster_id"] == about["cluster_id"]
    assert json.loads(run("ctx", "ls").stdout)["cluster_id"] == about["cluster_id"]


def test_a_cluster_that_did_not_answer_is_known_at_its_first_answer(klamm, other, kept):
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "--protected")
    held = json.loads(kept.read_text())
    held["contexts"]["prod"]["cluster_id"] = None  # as an older version, or a first use, leaves it
    for first in (["topic", "ls"], ["topic", "create", unique("t"), "--yes", "-b", other]):
        kept.write_text(json.dumps(held))
        run(*first, exits=exit_codes.NOT_AGREED if "-b" in first else 0)
        assert json.loads(kept.read_text())["contexts"]["prod"]["cluster_id"]


def test_another_cluster_is_not_held_back(klamm, tmp_path):
    run("ctx", "add", "gone", "-b", "127.0.0.1:1", "--protected")
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "--protected")
    with KlammProcess(tmp_path / "dev") as dev:
        run("topic", "create", "free", "-b", dev.bootstrap)
        run("topic", "delete", "free", "--yes", "-b", dev.bootstrap)


def test_a_cluster_made_anew_is_known_again(klamm, other, kept):
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "--protected")
    held = json.loads(kept.read_text())
    held["contexts"]["prod"]["cluster_id"] = "AAAAAAAAAAAAAAAAAAAAAA"
    kept.write_text(json.dumps(held))
    name = unique("t")
    run("topic", "create", name, exits=exit_codes.NOT_AGREED)
    run("topic", "create", name, "-b", other, exits=exit_codes.NOT_AGREED)


def test_an_address_that_is_none_is_not_kept():
    assert "write HOST:PORT" in run("ctx", "add", "x", "-b", "127.0.0.1:abc", exits=exit_codes.USAGE).stderr


def test_kafkas_own_names_do_not_ask(klamm):
    run("ctx", "add", "prod", "-b", klamm.bootstrap, "--protected")
    name = unique("script")
    run("kafka-topics", "--create", "--topic", name, "--bootstrap-server", klamm.bootstrap)
    run("kafka-topics", "--delete", "--topic", name, "--bootstrap-server", klamm.bootstrap)

"""Where state is found: by a pipeline's name and its cluster, from whichever folder a command is typed."""

import json
import os

import pytest
from click.testing import CliRunner

import klamm
from klamm.cli.main import cli
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.known_homes import data_root
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import describe_place, find_home, home_of, known_homes, stored_home
from klamm.pipeline.sql.status import Home

TEXT = (
    "CREATE STREAM s (n INT) WITH (topic = '{numbers}'); CREATE STREAM c WITH (topic = '{copies}') AS SELECT n FROM s;"
)
NOWHERE = {"bootstrap": "127.0.0.1:1"}


def pipeline(settings, name="bank.sql"):
    return compile_text(TEXT.format(numbers="numbers", copies="copies"), name, settings)


def keep(*parts):
    home = Home(os.path.join(*map(str, parts)))
    home.keep(QueryIdentity("id", "bank", {}, {}))
    return home


def test_the_data_folder_is_the_users():
    assert data_root({"XDG_DATA_HOME": "/data"}) == "/data/klamm/pipelines"
    assert data_root({}) == os.path.expanduser("~/.local/share/klamm/pipelines")


def test_state_is_by_name_and_cluster_wherever_it_is_started(klamm_broker, klamm_admin, tmp_path, monkeypatch):
    cluster = klamm_admin.describe_cluster().cluster_id
    settings = {"bootstrap": klamm_broker.bootstrap}
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        home = home_of(pipeline(settings))
        assert home.path == os.path.join(data_root(), cluster, "bank")
        assert describe_place(pipeline(settings), home) is None
    assert stored_home(pipeline(settings)) is None
    keep(home.path)
    assert stored_home(pipeline(settings)).path == home.path


def test_a_folder_that_exists_wins_and_is_reported(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    beside = keep(tmp_path, "files", ".klamm", "pipelines", "bank")
    compiled = pipeline(NOWHERE, str(tmp_path / "files" / "bank.sql"))
    assert home_of(compiled).path == beside.path
    keep(".klamm", "pipelines", "bank")
    assert home_of(compiled).path == os.path.join(".klamm", "pipelines", "bank")
    line = describe_place(compiled, home_of(compiled))
    assert line.startswith(f"state is in {tmp_path}/here/.klamm/pipelines/bank, which exists; ")
    assert stored_home(compiled).path == os.path.join(".klamm", "pipelines", "bank")


def test_a_folder_that_is_named_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep(".klamm", "pipelines", "bank")
    named = pipeline({**NOWHERE, "checkpoint": "named"})
    assert home_of(named).path == "named"
    assert describe_place(named, home_of(named)) is None
    assert stored_home(named) is None


def test_without_the_cluster_the_only_pipeline_of_the_name_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert stored_home(pipeline(NOWHERE)) is None
    first = keep(data_root(), "cluster-1", "bank")
    assert stored_home(pipeline(NOWHERE)).path == first.path
    keep(data_root(), "cluster-2", "bank")
    with pytest.raises(ConfigError, match=r"bank has state of several clusters .*does not answer"):
        stored_home(pipeline(NOWHERE))


def test_commands_find_pipelines_of_all_clusters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keep(data_root(), "cluster-1", "bank")
    shop = keep(data_root(), "cluster-1", "shop")
    second = keep(data_root(), "cluster-2", "bank")
    local = keep(".klamm", "pipelines", "old")
    known = [(candidate.name, candidate.cluster) for candidate in known_homes()]
    assert known == [("old", ""), ("bank", "cluster-1"), ("shop", "cluster-1"), ("bank", "cluster-2")]
    assert find_home("shop").path == shop.path
    assert find_home("old").path == local.path
    assert find_home(second.path).path == second.path
    with pytest.raises(ConfigError, match="there are 2 pipelines bank; name one by its folder:\n"):
        find_home("bank")
    with pytest.raises(ConfigError, match="did you mean shop"):
        find_home("shp")
    with pytest.raises(ConfigError, match="has checkpoints only"):
        known_homes("s3a://bucket/pipelines")
    rows = json.loads(CliRunner().invoke(cli, ["pipeline", "ls", "-o", "json"]).output)
    assert [(row["pipeline"], row["cluster"]) for row in rows] == known


def test_a_state_option_wins_over_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.sql").write_text("SET checkpoint = 'named';" + TEXT.format(numbers="a", copies="b"))
    keep("own", "bank")

    def plan(*words):
        done = CliRunner().invoke(cli, ["pipeline", "plan", "bank.sql", "-o", "jsonl", *words])
        assert done.exit_code == 0, done.output
        return {row["name"]: row["change"] for row in map(json.loads, done.stdout.splitlines())}

    assert plan()["c"] is None
    assert plan("--state", "own")["c"] == "new"
    assert plan("--home", "own")["c"] == "new"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", [None, pytest.param("file://{}", marks=pytest.mark.long)])
def test_a_run_from_another_folder_continues(spark, patiently, klamm_broker, tmp_path, monkeypatch, state):
    names = {name: klamm_broker.topic(name) for name in ("numbers", "copies")}
    settings = {"bootstrap": klamm_broker.bootstrap, "partitions": "1"}
    if state is not None:
        settings["checkpoint"] = state.format(tmp_path / "far")
    reports = []
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with klamm_broker.producer() as producer:
            producer.send(names["numbers"], json.dumps({"n": number}).encode())
        compiled = compile_text(TEXT.format(**names), "bank.sql", settings)
        patiently(run_pipeline, compiled, once=True, spark=spark, report=reports.append)
        assert os.listdir() == []
        assert find_home("bank").status()["state"] == "stopped"
    copies = klamm.read_topic(names["copies"], bootstrap=klamm_broker.bootstrap, timeout_s=60)["value"].to_pylist()
    assert sorted(json.loads(value)["n"] for value in copies) == [0, 1]
    assert not [line for line in reports if line.startswith("state is in")]

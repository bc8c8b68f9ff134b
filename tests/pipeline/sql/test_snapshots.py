"""Restore points: kept between batches, and started from without a row lost or doubled."""

import json
import shutil
import threading

import pytest
from click.testing import CliRunner

import klamm
from klamm.cli.main import cli
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.snapshots import find_snapshot, list_snapshots, remove_snapshot, take_snapshot
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.supervisor import Supervisor

NOW_MS = 1_767_225_600_000
TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
CREATE TABLE counts WITH (topic = '{counts}', key = 'parity') AS
  SELECT n % 2 AS parity, {seen} AS seen FROM numbers GROUP BY n % 2;
CREATE SINK in_delta WITH (format = 'delta', path = '{lake}') AS SELECT n FROM numbers;
"""
QUERIES = ("copies", "counts", "in_delta")


def make_home(tmp_path):
    home = Home(str(tmp_path / "bank"))
    home.keep(QueryIdentity("id", "bank", {"sums": {}, "new": {}}, {"sums": 1, "new": 0}))
    for folder in ("sums.1", "sums.0", "numbers.dead_letters.0"):
        for log in ("offsets", "commits"):
            (tmp_path / "bank" / folder / log).mkdir(parents=True)
            (tmp_path / "bank" / folder / log / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"in":{"0":7}}')
    return home


def test_a_snapshot_has_the_current_checkpoints(tmp_path):
    home = make_home(tmp_path)
    (tmp_path / "bank" / "sums.1" / "klamm").mkdir()
    for name in ("written", "joined.sqlite", "joined.sqlite-wal"):
        (tmp_path / "bank" / "sums.1" / "klamm" / name).write_text("x")
    taken = take_snapshot(home, "first", NOW_MS)
    assert taken.batches == {"sums": 3, "numbers.dead_letters": 3}
    assert taken.positions["sums"] == {"in-0": 7}
    assert find_snapshot(home, "first") == taken
    assert taken.checkpoint("new") is None
    assert sorted(path.name for path in (tmp_path / "bank" / "snapshots" / "first").iterdir()) == [
        "numbers.dead_letters.0",
        "pipeline.json",
        "snapshot.json",
        "sums.1",
    ]
    # Stores of joined tables are changed in place: a link would change with them.
    assert [path.name for path in (tmp_path / "bank/snapshots/first/sums.1/klamm").iterdir()] == ["written"]
    # Files are replaced in a checkpoint, never changed: the snapshot keeps what it had.
    (tmp_path / "bank" / "sums.1" / "commits" / "3").unlink()
    assert (tmp_path / "bank" / "snapshots" / "first" / "sums.1" / "commits" / "3").exists()


def test_labels(tmp_path):
    home = make_home(tmp_path)
    assert take_snapshot(home, None, NOW_MS).label == "2026-01-01T00-00-00Z"
    take_snapshot(home, "second", NOW_MS + 1)
    with pytest.raises(ConfigError, match="there is a snapshot second already"):
        take_snapshot(home, "second", NOW_MS)
    for label in ("../x", "", ".x", "a b"):
        with pytest.raises(ConfigError, match="is not a label" if label else "already"):
            take_snapshot(home, label, NOW_MS)
    with pytest.raises(ConfigError, match=r"there is no snapshot secnd .*did you mean second"):
        find_snapshot(home, "secnd")
    with pytest.raises(ConfigError, match="there is no snapshot"):
        find_snapshot(home, "..")
    assert [taken.label for taken in list_snapshots(home)] == ["2026-01-01T00-00-00Z", "second"]
    remove_snapshot(home, "second")
    assert len(list_snapshots(home)) == 1


def test_the_commands(tmp_path):
    home = make_home(tmp_path)

    def call(*words):
        return CliRunner().invoke(cli, ["pipeline", *words])

    assert call("snapshots", home.path).output == f"{home.path} has no snapshots\n"
    assert call("snapshot", home.path, "--as", "one").output == f"Kept 2 checkpoints of {home.path} as one.\n"
    (row,) = json.loads(call("snapshots", home.path, "-o", "json").output)
    assert (row["snapshot"], row["queries"], row["batches"]) == ("one", 2, "sums 3, numbers.dead_letters 3")
    assert call("snapshot", home.path, "--remove", "one").exit_code == 0
    assert call("snapshot", home.path, "--remove", "one").exit_code == 1


class Handle:
    """A run of a query that goes on until it is stopped."""

    lastProgress, recentProgress = None, ()  # noqa: N815 - Spark's names

    def __init__(self):
        self.isActive = True
        self.status = {"isTriggerActive": False}

    def exception(self):
        return None

    def stop(self):
        self.isActive = False


class Query:
    """A query that counts its starts."""

    in_passes = False
    checkpoint = "nowhere"

    def __init__(self, name):
        self.name = name
        self.node = compile_text("CREATE STREAM s (a INT); CREATE STREAM x AS SELECT * FROM s;").node("x")
        self.handles = []

    def start(self, **_):
        self.handles.append(Handle())
        return self.handles[-1]


def test_a_pipeline_that_runs_is_held_between_batches(tmp_path, monkeypatch):
    home = make_home(tmp_path)
    queries = [Query("sums"), Query("new"), Query("off")]
    home.keep_paused(["off"])
    running_at_the_copy = []

    def copy(*args):
        running_at_the_copy.extend(handle for query in queries for handle in query.handles if handle.isActive)
        return take_snapshot(*args)

    monkeypatch.setattr("klamm.pipeline.sql.snapshots.take_snapshot", copy)
    with home.hold_lock():
        thread = threading.Thread(target=Supervisor(queries, home).run, kwargs={"once": False})
        thread.start()
        try:
            while {query["state"] for query in home.status()["queries"].values()} != {"running", "paused"}:
                assert thread.is_alive()
                thread.join(0.01)
            done = CliRunner().invoke(cli, ["pipeline", "snapshot", home.path, "--as", "live"])
            assert done.exit_code == 0, done.output
            assert not running_at_the_copy
            assert find_snapshot(home, "live").batches == {"sums": 3, "numbers.dead_letters": 3}
            while [len(query.handles) for query in queries] != [2, 2, 0]:
                assert thread.is_alive()
                thread.join(0.01)
            assert home.read_paused() == {"off"}
        finally:
            home.request_stop()
            thread.join(60)


class Site:
    """A pipeline with a stream, a table with state and a lake sink."""

    def __init__(self, spark, patiently, broker, name, folder):
        self.spark, self.patiently, self.broker = spark, patiently, broker
        self.topics = {topic: name(topic) for topic in ("numbers", "copies", "counts")}
        self.home, self.lake = Home(str(folder / "home")), folder / "lake"
        self.sent = 0
        self.reports = []

    def send(self, count):
        with self.broker.producer() as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topics["numbers"], b'{"n": %d}' % number)
        self.sent += count

    def run(self, seen="count(*)", **options):
        settings = {"bootstrap": self.broker.bootstrap, "checkpoint": self.home.path, "partitions": "1"}
        text = TEXT.format(**self.topics, lake=self.lake, seen=seen)
        pipeline = compile_text(text, f"{self.topics['copies']}.sql", {**settings, "restarts": "2"})
        self.patiently(run_pipeline, pipeline, once=True, spark=self.spark, report=self.reports.append, **options)

    def values(self, topic):
        table = klamm.read_topic(self.topics[topic], bootstrap=self.broker.bootstrap, timeout_s=60)
        return [json.loads(value) for value in table["value"].to_pylist()]

    def is_exact(self):
        from deltalake import DeltaTable

        expected = list(range(self.sent))
        assert sorted(value["n"] for value in self.values("copies")) == expected
        assert sorted(DeltaTable(str(self.lake)).to_pyarrow_table()["n"].to_pylist()) == expected
        counts = {value["parity"]: value["seen"] for value in self.values("counts")}
        assert counts == {0: (self.sent + 1) // 2, 1: self.sent // 2}
        return True


@pytest.mark.timeout(600)
def test_a_start_from_a_snapshot_is_exact(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    site = Site(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1)
    site.send(5)
    site.run()
    take_snapshot(site.home, "five", NOW_MS)

    # Nothing was written since then, and the checkpoints are gone.
    for query in QUERIES:
        shutil.rmtree(f"{site.home.path}/{query}.0")
    site.run(restore="five")
    assert site.is_exact()
    assert [line for line in site.reports if "snapshot five" in line] == [
        f"{query}: continues from snapshot five, after batch 0" for query in QUERIES
    ]

    take_snapshot(site.home, "again", NOW_MS + 1)
    site.send(4)
    site.run()
    site.send(2)
    site.reports.clear()
    site.run(restore="again")
    assert site.is_exact()
    assert "counts: continues from the state of snapshot again; its rows up to batch 1 come again" in site.reports
    assert f"copies: continues where topic {site.topics['copies']} ends, after batch 1" in site.reports
    assert f"in_delta: continues where {site.lake} ends, after batch 1" in site.reports

    # Refused before anything is prepared: another generation, or a statement with other state.
    with pytest.raises(ConfigError, match="copies cannot start from snapshot five: it was rebuilt or adopted since"):
        site.run(restore="five")
    take_snapshot(site.home, "last", NOW_MS + 2)
    with pytest.raises(ConfigError, match="counts must be rebuilt"):
        site.run(restore="last", seen="max(n)")
    with pytest.raises(ConfigError, match="there is no snapshot lost"):
        site.run(restore="lost")
    site.send(1)
    site.run()
    assert site.is_exact()

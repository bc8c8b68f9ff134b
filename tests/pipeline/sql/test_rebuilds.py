"""A rebuilt table or lake sink: readers see the old rows, then the new ones, and each change once, whatever dies."""

import json

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.rebuilds import Rebuild
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.topics import ClusterTopics

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', max_records = '4', bad_records = 'fail');
CREATE TABLE sums WITH (topic = '{sums}', key = 'k') AS
  SELECT n % 3 AS k, {total} AS total FROM numbers {where} GROUP BY n % 3;
CREATE SINK in_delta WITH (format = 'delta', path = '{lake}/delta') AS SELECT n, {sign} AS sign FROM numbers;
CREATE SINK in_files WITH (format = 'parquet', path = '{lake}/files') AS SELECT n, {sign} AS sign FROM numbers;
CREATE SINK in_iceberg WITH (format = 'iceberg', path = '{lake}/iceberg', table = 'db.n') AS
  SELECT n, {sign} AS sign FROM numbers;
CREATE SINK newest WITH (format = 'delta', path = '{lake}/newest', mode = 'upsert', key = 'k', order_by = 'n') AS
  SELECT n % 3 AS k, n, {sign} AS sign FROM numbers;
"""
OLD = {"total": "sum(n)", "where": "", "sign": "1"}
NEW = {"total": "count(*)", "where": "WHERE n % 3 <> 2", "sign": "-1"}
SINKS = ("in_delta", "in_files", "in_iceberg", "newest")


class Site:
    """A pipeline whose queries take several batches to read the source."""

    def __init__(self, spark, patiently, broker, name, folder):
        self.spark, self.patiently, self.broker = spark, patiently, broker
        self.topics = {topic: name(topic) for topic in ("numbers", "sums")}
        self.home, self.lake = folder / "home", folder / "lake"
        self.sent = 0
        self.reports = []

    def send(self, count):
        with self.broker.producer() as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topics["numbers"], b'{"n": %d}' % number)
        self.sent += count

    def run(self, version, sinks=SINKS, **options):
        text = TEXT.format(**self.topics, **version, lake=self.lake)
        statements = [part for part in text.split(";") if "SINK" not in part or part.split()[2] in sinks]
        settings = {"bootstrap": self.broker.bootstrap, "checkpoint": str(self.home), "partitions": "1"}
        settings |= {"restarts": "0"}
        pipeline = compile_text(";".join(statements), f"{self.topics['sums']}.sql", settings)
        self.patiently(run_pipeline, pipeline, once=True, spark=self.spark, report=self.reports.append, **options)

    def records(self):
        table = klamm.read_topic(self.topics["sums"], bootstrap=self.broker.bootstrap, timeout_s=60)
        return [
            (json.loads(row["key"]), None if row["value"] is None else json.loads(row["value"])["total"])
            for row in table.to_pylist()
        ]

    def lake_rows(self):
        from deltalake import DeltaTable
        from pyarrow import parquet
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{self.lake}/iceberg/catalog.db")
        tables = {
            "in_delta": DeltaTable(str(self.lake / "delta")).to_pyarrow_table(),
            "in_files": parquet.read_table(self.lake / "files"),
            "in_iceberg": catalog.load_table("db.n").scan().to_arrow(),
            "newest": DeltaTable(str(self.lake / "newest")).to_pyarrow_table(),
        }
        return {name: sorted((row["n"], row["sign"]) for row in table.to_pylist()) for name, table in tables.items()}

    def delta_rows(self):
        from deltalake import DeltaTable

        rows = DeltaTable(str(self.lake / "delta")).to_pyarrow_table().to_pylist()
        return sorted((row["n"], row["sign"]) for row in rows)

    def expected_lake(self, sign):
        rows = [(n, sign) for n in range(self.sent)]
        return {**dict.fromkeys(SINKS[:3], rows), "newest": rows[-3:]}


@pytest.fixture
def site(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    site = Site(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1)
    return site


@pytest.mark.long
def test_a_rebuilt_table_changes_by_the_difference_and_lakes_in_one_commit(site):
    from deltalake import DeltaTable

    site.send(10)
    site.run(OLD)
    before = site.records()
    assert dict(before) == {0: 18, 1: 12, 2: 15}
    assert site.lake_rows() == site.expected_lake(1)
    version = DeltaTable(str(site.lake / "delta")).version()

    site.run(NEW, rebuild=["sums", *SINKS])
    # Three batches of four records were read again; the topic has one more record for each row that is different.
    after = site.records()
    assert after[: len(before)] == before
    assert sorted(after[len(before) :]) == [(0, 4), (1, 3), (2, None)]
    assert site.lake_rows() == site.expected_lake(-1)
    assert DeltaTable(str(site.lake / "delta")).version() == version + 1
    assert any(line.startswith("sums: rebuilding from 10 offsets; topic ") for line in site.reports)
    # What was kept aside is gone.
    assert not list(site.home.glob("*/klamm/staged"))
    assert not list(site.home.glob("*/klamm/rebuild"))

    site.send(2)
    site.run(NEW)
    assert sorted(site.records()[len(after) :]) == [(1, 4)]
    assert site.lake_rows() == site.expected_lake(-1)


class Killed(RuntimeError):
    """Stands for the end of the process: what Spark has not committed is run again by the next start."""


KILLS = {
    "before the rows are kept": (Rebuild, "stage", False),
    "after the rows were kept": (Rebuild, "stage", True),
    "before the switch": (ClusterTopics, "write", False),
    "after the switch": (ClusterTopics, "write", True),
    "before a lake is replaced": (ClusterTopics, "replace", False),
    "after a lake was replaced": (ClusterTopics, "replace", True),
    "before what was kept is removed": (Rebuild, "clear", False),
    "after what was kept was removed": (Rebuild, "clear", True),
}


@pytest.mark.long
def test_a_rebuild_that_is_killed_continues(site, monkeypatch):
    sinks = ("in_delta",)
    site.send(10)
    site.run(OLD, sinks)
    version = OLD
    for point, (owner, name, after) in KILLS.items():
        version = NEW if version is OLD else OLD
        before = site.records()
        with monkeypatch.context() as patch:
            kill(patch, owner, name, after)
            with pytest.raises((ConfigError, Killed), match=f"killed at {name}"):
                site.run(version, sinks, rebuild=["sums", "in_delta"])
        site.run(version, sinks)
        expected = {0: 4, 1: 3, 2: None} if version is NEW else {0: 18, 1: 12, 2: 15}
        changed = site.records()[len(before) :]
        assert sorted(changed) == sorted(expected.items()), point
        sign = int(version["sign"])
        assert site.delta_rows() == [(n, sign) for n in range(site.sent)], point


def kill(monkeypatch, owner, name, after):
    original = getattr(owner, name)

    def dying(self, *args, **options):
        if after:
            original(self, *args, **options)
        raise Killed(f"killed at {name}")

    monkeypatch.setattr(owner, name, dying)


def test_a_sink_is_not_rebuilt_from_what_retention_has_left(site, klamm_admin):
    site.send(10)
    site.run(OLD, ("in_delta",))
    klamm_admin.delete_records({(site.topics["numbers"], 0): 4})
    refusal = r"in_delta cannot be rebuilt in .*/delta: retention has removed 4 offsets of "
    with pytest.raises(ConfigError, match=refusal):
        site.run(OLD, ("in_delta",), rebuild=["in_delta"])


def test_the_values_of_a_table_are_not_replaced_by_those_of_fewer_records(site, klamm_admin):
    site.send(10)
    site.run(OLD, ("in_delta",))
    before = site.records()
    klamm_admin.delete_records({(site.topics["numbers"], 0): 4})
    refusal = r"sums cannot be rebuilt in topic .*: retention has removed 4 offsets of .*--rebuild sums --accept-lost"
    with pytest.raises(ConfigError, match=refusal):
        site.run(OLD, ("in_delta",), rebuild=["sums"])
    # The table goes on as if nothing had been asked for.
    site.send(2)
    site.run(OLD, ("in_delta",))
    assert sorted(site.records()[len(before) :]) == [(1, 22), (2, 26)]

    kept = site.records()
    site.run(OLD, ("in_delta",), rebuild=["sums"], accept_lost=["sums"])
    assert sorted(site.records()[len(kept) :]) == [(0, 15), (1, 21), (2, 24)]
    assert any("sums: retention has removed 4 offsets of" in line for line in site.reports)


def test_only_a_query_that_is_rebuilt_accepts_lost_records(site):
    site.send(1)
    with pytest.raises(ConfigError, match="--accept-lost sums is for a query that is rebuilt: add --rebuild sums"):
        site.run(OLD, ("in_delta",), accept_lost=["sums"])


def test_a_rebuild_without_records_removes_all_rows(site, klamm_admin):
    site.send(6)
    site.run(OLD, ("in_delta",))
    before = site.records()
    klamm_admin.delete_topics([site.topics["numbers"]])
    klamm_admin.create_topic(site.topics["numbers"], 1)
    # There is no batch that could switch: the rows of before would stay until a record comes.
    site.run(OLD, ("in_delta",), rebuild=["sums", "in_delta"])
    assert sorted(site.records()[len(before) :]) == [(0, None), (1, None), (2, None)]
    assert site.delta_rows() == []
    assert not list(site.home.glob("*/klamm/rebuild"))

    with site.broker.producer() as producer:
        producer.send(site.topics["numbers"], b'{"n": 7}')
    site.run(OLD, ("in_delta",))
    assert site.records()[len(before) + 3 :] == [(1, 7)]
    assert site.delta_rows() == [(7, 1)]


WINDOWS = """
CREATE STREAM clicks (page STRING, at TIMESTAMP) WITH (
  topic = '{clicks}', timestamp = 'at', watermark = '1 minute', max_records = '3', bad_records = 'fail');
CREATE TABLE minutes WITH (topic = '{minutes}', key = 'page, minute', emit = 'final') AS
  SELECT page, window.start AS minute, {count} AS clicks FROM clicks GROUP BY page, window(at, '1 minute');
"""


def test_rows_that_the_watermark_emits_do_not_go_and_come_back(site, klamm_admin, klamm_name):
    names = {name: klamm_name(name) for name in ("clicks", "minutes")}
    klamm_admin.create_topic(names["clicks"], 1)
    with site.broker.producer() as producer:
        for minute in range(8):
            value = {"page": "ab"[minute % 2], "at": f"2026-01-01T00:{minute:02}:30Z"}
            producer.send(names["clicks"], json.dumps(value).encode())

    def run(count, **options):
        settings = {"bootstrap": site.broker.bootstrap, "checkpoint": str(site.home), "partitions": "1"}
        text = WINDOWS.format(count=count, **names)
        pipeline = compile_text(text, f"{names['minutes']}.sql", {**settings, "restarts": "0"})
        site.patiently(run_pipeline, pipeline, once=True, spark=site.spark, **options)
        return klamm.read_topic(names["minutes"], bootstrap=site.broker.bootstrap, timeout_s=60)["value"].to_pylist()

    before = run("count(*)")
    # The watermark is at 00:06:30: windows up to the one of minute 5 are closed.
    assert [json.loads(value)["clicks"] for value in before] == [1] * 6
    assert run("count(*)", rebuild=["minutes"]) == before
    doubled = run("2 * count(*)", rebuild=["minutes"])
    assert doubled[:6] == before
    assert [json.loads(value)["clicks"] for value in doubled[6:]] == [2] * 6

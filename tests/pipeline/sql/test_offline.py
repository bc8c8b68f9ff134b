"""The offline load as it is typed: sinks of each format, cron's --once, backfills, compaction, topics as of a time."""

import json
import os
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.model.errors import ConfigError
from klamm.pipeline import as_of
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.backfill import plan_backfill, run_backfill
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import find_home
from klamm.pipeline.sql.topics import lake_table

pytestmark = pytest.mark.timeout(600)
NAMES = ("files", "delta", "iceberg")
DAY_MS = 86_400_000
FIRST_MS = 1_767_225_600_000
FOR_EVER = {"retention.ms": "-1"}
"""Records are older than brokers usually keep them."""
EXAMPLE = (Path(__file__).parents[3] / "examples" / "pipeline" / "sql" / "audit.sql").read_text()


def read(name):
    if name == "delta":
        rows = deltalake.DeltaTable("lake/delta").to_pyarrow_dataset().to_table()
    elif name == "iceberg":
        catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{os.getcwd()}/lake/warehouse/catalog.db")
        rows = catalog.load_table("bank.audit").scan().to_arrow()
    else:
        rows = ds.dataset(f"lake/{name}", format="parquet", partitioning="hive").to_table()
    return sorted(int(row) for row in rows["amount"].to_pylist())


@pytest.fixture
def bank(klamm_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topic = klamm_broker.topic("payments", partitions=2, config=FOR_EVER)

    def pay(numbers):
        with klamm_broker.producer() as producer:
            for number in numbers:
                value = json.dumps({"account": f"a{number % 3}", "amount": number}).encode()
                producer.send(topic, value, partition=number % 2, timestamp=FIRST_MS + number // 10 * DAY_MS)

    text = EXAMPLE.replace("topic = 'payments'", f"topic = '{topic}'")
    (tmp_path / "audit.sql").write_text(text)
    pipeline = compile_text(
        text, "audit.sql", {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "state")}
    )
    return pay, pipeline, topic


def typed(broker, *words):
    return CliRunner().invoke(cli, ["pipeline", *words, "-b", broker.bootstrap])


def test_a_lake_is_loaded_once(spark, klamm_broker, bank, patiently):
    """--once, and again with the commit logs of all queries lost; then compaction, as it is typed."""
    pay, pipeline, _ = bank
    pay(range(15))
    patiently(run_pipeline, pipeline, spark=spark, once=True)
    for name in NAMES:
        assert read(name) == list(range(15)), name
        for path in Path(f"state/{name}.0/commits").iterdir():
            path.unlink()
    pay(range(15, 25))
    patiently(run_pipeline, pipeline, spark=spark, once=True)
    for name in NAMES:
        assert read(name) == list(range(25)), name

    done = typed(klamm_broker, "compact", "audit.sql", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "files day=2026-01-02: " in done.output
    done = typed(klamm_broker, "compact", "audit.sql")
    assert done.exit_code == 0, done.output
    assert [line.split(":")[0] for line in done.output.splitlines()] == list(NAMES)
    for name in NAMES:
        assert read(name) == list(range(25)), name
    assert "Nothing to change" in typed(klamm_broker, "compact", "audit.sql", "delta").output
    assert "did you mean delta?" in typed(klamm_broker, "compact", "audit.sql", "delt").output


def test_a_backfill_is_written_once(spark, klamm_broker, bank):
    pay, pipeline, topic = bank
    pay(range(30))
    day = ReadBound(everywhere=FIRST_MS + DAY_MS, timed=True), ReadBound(everywhere=FIRST_MS + 2 * DAY_MS, timed=True)
    for name in NAMES:
        job = plan_backfill(pipeline, name, *day)
        assert [(range_.partition, range_.start, range_.end) for range_ in job.ranges] == [(0, 5, 10), (1, 5, 10)]
        assert run_backfill(pipeline, job, spark=spark) is True
        assert read(name) == list(range(10, 20)), name
        assert run_backfill(pipeline, job, spark=spark) is False
        os.remove("state/backfills.json")  # died before it was noted: the table knows
        assert run_backfill(pipeline, job, spark=spark) is False
        assert read(name) == list(range(10, 20)), name
    wider = plan_backfill(pipeline, name, ReadBound(everywhere=EARLIEST), ReadBound(everywhere=LATEST))
    with pytest.raises(ConfigError, match="overlapping range before"):
        run_backfill(pipeline, wider, spark=spark)
    whole = plan_backfill(pipeline, name, ReadBound(everywhere=EARLIEST), ReadBound(everywhere=LATEST), replace=True)
    assert run_backfill(pipeline, whole, spark=spark) is True
    assert read(name) == list(range(30)), name
    done = typed(klamm_broker, "backfill", "audit.sql", "delta", "--from", "earliest", "--to", "3", "--dry-run")
    assert done.exit_code == 0, done.output
    assert f"+ read {topic}-1 from offset 0 to 3" in done.output
    assert "+ write rows of delta to delta lake/delta" in done.output
    done = typed(klamm_broker, "backfill", "audit.sql", "detla", "--from", "earliest", "--dry-run")
    assert "did you mean delta?" in done.output

    # The topic as it was, by time and by offsets.
    servers = {"kafka.bootstrap.servers": klamm_broker.bootstrap}
    early = as_of(spark, topic, FIRST_MS + DAY_MS, options=servers)
    assert sorted(json.loads(row.value)["amount"] for row in early.collect()) == list(range(10))
    assert [row.offset for row in as_of(spark, topic, {0: 1, 1: 0}, options=servers).collect()] == [0]


def test_a_backfill_as_it_is_typed(klamm_broker, bank, monkeypatch):
    """Spark is not started: what the job is, what is asked first, and what is said."""
    pay, _, topic = bank
    pay(range(30))
    jobs, written = [], [True, False]

    def run(pipeline, job, **_):
        jobs.append(job)
        return written.pop(0)

    monkeypatch.setattr("klamm.pipeline.sql.backfill.run_backfill", run)
    day = ("--from", "2026-01-02T00:00:00Z", "--to", "2026-01-03T00:00:00+00:00")
    done = typed(klamm_broker, "backfill", "audit.sql", "delta", *day)
    assert (done.exit_code, done.stdout) == (0, "Filled delta from 10 offsets.\n")
    done = typed(klamm_broker, "backfill", "audit.sql", "delta", "--from", "9", "--replace")
    assert (done.exit_code, len(jobs)) == (exit_codes.NOT_AGREED, 1)
    places = json.dumps({topic: {"0": 3, "1": 99}})
    done = typed(klamm_broker, "backfill", "audit.sql", "delta", "--from", "9", "--to", places, "--replace", "--yes")
    assert done.stdout == "delta was filled with this range before: nothing was written.\n", done.output
    assert [(range_.start, range_.end) for range_ in jobs[1].ranges] == [(3, 3), (9, 15)]
    assert (jobs[0].until_ms, jobs[1].until_ms, jobs[1].replace) == (FIRST_MS + 2 * DAY_MS, None, True)
    done = typed(klamm_broker, "backfill", "audit.sql", "delta", "--from", "yesterday")
    assert (done.exit_code, "is no time" in done.output) == (2, True)
    assert "Nothing to change" in typed(klamm_broker, "backfill", "audit.sql", "delta", "--from", "latest").output


def test_a_table_as_of_a_time_and_a_stream_filled_once(spark, klamm_broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topic, out = klamm_broker.topic("balances", config=FOR_EVER), klamm_broker.topic("big")
    changes = [(b"a", b'{"v": 1}'), (b"b", b'{"v": 2}'), (b"a", b'{"v": 3}'), (b"b", None), (b"c", b'{"v": 4}')]
    with klamm_broker.producer() as producer:
        for place, (key, value) in enumerate(changes):
            producer.send(topic, value, key=key, timestamp=FIRST_MS + place * 1000)
    servers = {"kafka.bootstrap.servers": klamm_broker.bootstrap}

    def balances(at):
        rows = as_of(spark, topic, at, newest=True, options=servers).collect()
        return {bytes(row.key).decode(): json.loads(row.value)["v"] for row in rows}

    assert balances(FIRST_MS + 2000) == {"a": 1, "b": 2}
    assert balances("2026-01-01T00:00:03Z") == {"a": 3, "b": 2}
    assert balances({0: 5}) == {"a": 3, "c": 4}
    text = (
        f"CREATE STREAM s (v INT) WITH (topic = '{topic}', bad_records = 'drop');"
        f"CREATE STREAM big WITH (topic = '{out}') AS SELECT v FROM s WHERE v > 1;"
        f"CREATE TABLE t WITH (key = 'v') AS SELECT v, count(*) AS c FROM s GROUP BY v;"
        "CREATE SINK shown WITH (format = 'noop') AS SELECT v FROM s;"
        f"CREATE TABLE b (k STRING, v INT) WITH (topic = '{topic}', key = 'k');"
        "CREATE SINK joined WITH (format = 'parquet', path = 'joined') AS"
        " SELECT s.v AS paid, b.v AS then FROM s JOIN b ON b.k = 'a';"
    )
    pipeline = compile_text(text, "p.sql", {"bootstrap": klamm_broker.bootstrap})
    job = plan_backfill(pipeline, "BIG", ReadBound(everywhere=0), ReadBound(everywhere=3))
    for left in (True, False):
        assert run_backfill(pipeline, job, spark=spark) is left
    os.remove(os.path.join(find_home("p").path, "backfills.json"))
    run_backfill(pipeline, job, spark=spark)
    rows = spark.read.format("klamm").options(**servers, subscribe=out).load()
    assert sorted(json.loads(row.value)["v"] for row in rows.collect()) == [2, 3]
    # A table that is joined is as it was when the range ends: a is 1 then, and 3 by now.
    until = ReadBound(everywhere=FIRST_MS + 2000, timed=True)
    assert (
        run_backfill(pipeline, plan_backfill(pipeline, "joined", ReadBound(everywhere=0), until), spark=spark) is True
    )
    joined = ds.dataset("joined", format="parquet").to_table().to_pylist()
    assert sorted((item["paid"], item["then"]) for item in joined) == [(1, 1), (2, 1)]
    for name, words in (("t", "--from earliest"), ("shown", "nothing to fill"), ("absent", "no sink, stream or table")):
        with pytest.raises(ConfigError, match=words):
            plan_backfill(pipeline, name, ReadBound(everywhere=0), ReadBound(everywhere=3))


def test_what_a_sink_may_say():
    stream = "CREATE STREAM s (n INT); CREATE SINK x WITH ({}) AS SELECT n FROM s;"
    table = lake_table(
        compile_text(stream.format("format = 'iceberg', option.uri = 'http://c', table = 'a.b'")).node("x")
    )
    assert (table.identifier, table.options, table.local) == ("a.b", {"uri": "http://c"}, None)
    for options, words in (
        ("format = 'iceberg'", "needs a path"),
        ("format = 'delta', path = 'x', table = 'a.b'", "table names an Iceberg table"),
        ("format = 'iceberg', path = 'x', table = 'a b'", "namespace.name"),
        ("format = 'detla', path = 'x'", "did you mean delta"),
    ):
        with pytest.raises(SqlError, match=words):
            compile_text(stream.format(options))

"""Checkpoints and sinks that were restored, removed or moved: refused with the repair, and nothing lost or doubled.

`make campaign` runs them with a sink of every kind. The usual tests have those that differ in how a batch is committed;
tests/pipeline/spark/test_lake.py and tests/pipeline/test_sink_ledger.py compare each kind of sink with a checkpoint of
each step of a batch, `backups_of_steps.py` a whole pipeline.
"""

import os
import shutil

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.runner import run_pipeline

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
CREATE TABLE counts WITH (topic = '{counts}', key = 'parity') AS
  SELECT n % 2 AS parity, count(*) AS seen FROM numbers GROUP BY n % 2;
CREATE SINK in_delta WITH (format = 'delta', path = '{lake}/delta') AS SELECT n FROM numbers;
"""
MORE = """
CREATE SINK in_files WITH (format = 'parquet', path = '{lake}/files') AS SELECT n FROM numbers;
CREATE SINK in_iceberg WITH (format = 'iceberg', path = '{lake}/iceberg', table = 'db.numbers') AS
  SELECT n FROM numbers;
CREATE SINK delta_keys WITH (
  format = 'delta', path = '{lake}/delta_keys', mode = 'upsert', key = 'n', order_by = 'n') AS SELECT n FROM numbers;
CREATE SINK iceberg_keys WITH (
  format = 'iceberg', path = '{lake}/iceberg_keys', table = 'db.keys', mode = 'upsert', key = 'n', order_by = 'n') AS
  SELECT n FROM numbers;
"""
QUERIES: tuple[str, ...] = ("copies", "counts", "in_delta")
if os.environ.get("KLAMM_CAMPAIGN") == "all":
    TEXT += MORE
    QUERIES += ("in_files", "in_iceberg", "delta_keys", "iceberg_keys")
SINKS = QUERIES[2:]


class Site:
    """A pipeline with a sink of every kind, its home, and a source that grows."""

    def __init__(self, spark, patiently, broker, name, folder):
        self.spark, self.patiently, self.broker = spark, patiently, broker
        self.topics = {topic: name(topic) for topic in ("numbers", "copies", "counts")}
        self.home, self.lake = folder / "home", folder / "lake"
        self.sent = 0

    def send(self, count):
        with self.broker.producer() as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topics["numbers"], b'{"n": %d}' % number)
        self.sent += count

    def run(self, text=TEXT, **options):
        settings = {"bootstrap": self.broker.bootstrap, "checkpoint": str(self.home), "partitions": "1"}
        settings |= {"restarts": "2"}
        pipeline = compile_text(text.format(**self.topics, lake=self.lake), f"{self.topics['copies']}.sql", settings)
        self.patiently(run_pipeline, pipeline, once=True, spark=self.spark, **options)

    def refusal(self, text=TEXT):
        with pytest.raises(ConfigError) as refusal:
            self.run(text)
        return {line.partition(":")[0]: line for line in str(refusal.value).splitlines()}

    def values(self, topic):
        rows = klamm.read_topic(self.topics[topic], bootstrap=self.broker.bootstrap, timeout_s=60).to_pylist()
        return [row["value"] for row in rows]

    def rows(self):
        from deltalake import DeltaTable
        from pyarrow import parquet
        from pyiceberg.catalog import load_catalog

        rows = {
            "copies": [klamm_number(value) for value in self.values("copies")],
            "in_delta": DeltaTable(str(self.lake / "delta")).to_pyarrow_table()["n"].to_pylist(),
        }
        if "in_files" in QUERIES:
            rows["in_files"] = parquet.read_table(self.lake / "files")["n"].to_pylist()
            rows["delta_keys"] = DeltaTable(str(self.lake / "delta_keys")).to_pyarrow_table()["n"].to_pylist()
            for query, folder, table in (
                ("in_iceberg", "iceberg", "numbers"),
                ("iceberg_keys", "iceberg_keys", "keys"),
            ):
                catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{self.lake}/{folder}/catalog.db")
                rows[query] = catalog.load_table(f"db.{table}").scan().to_arrow()["n"].to_pylist()
        return {query: sorted(numbers) for query, numbers in rows.items()}

    def is_exact(self):
        expected = list(range(self.sent))
        assert self.rows() == dict.fromkeys(("copies", *SINKS), expected)
        counts = {value.split(b'"seen"')[0]: value for value in self.values("counts")}
        assert sum(int(value.rpartition(b":")[2].rstrip(b"}")) for value in counts.values()) == self.sent
        return True


def klamm_number(value):
    return int(value.rpartition(b":")[2].rstrip(b"}"))


@pytest.fixture
def site(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    site = Site(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1)
    return site


def test_restored_and_removed_checkpoints_are_refused(site, tmp_path):
    site.send(5)
    site.run()
    copy = tmp_path / "copy"
    shutil.copytree(site.home, copy)
    site.send(4)
    site.run()
    assert site.is_exact()
    saved = tmp_path / "saved"
    shutil.copytree(site.home, saved)

    # Restored from an earlier copy: the next batch would be number 1 again, with other records.
    shutil.rmtree(site.home)
    shutil.copytree(copy, site.home)
    site.send(2)
    refused = site.refusal()
    assert set(refused) == set(QUERIES)
    for query, line in refused.items():
        assert "checkpoint and sink disagree" in line
        assert "batches up to 1, and the checkpoint continues with batch 1: it was set back" in line
        assert f"--rebuild {query}" in line

    # Folders of queries removed, the identity kept.
    for query in QUERIES:
        shutil.rmtree(site.home / f"{query}.0")
    refused = site.refusal()
    assert set(refused) == set(QUERIES)
    assert all("the checkpoint has no batches: it was removed" in line for line in refused.values())

    # The newest checkpoint, but the tables are gone.
    shutil.rmtree(site.home)
    shutil.copytree(saved, site.home)
    shutil.move(site.lake, tmp_path / "moved")
    refused = site.refusal()
    assert set(refused) == set(SINKS)
    assert all("has written batches up to 1" in line and "has no rows" in line for line in refused.values())
    # Another path is another table, which lacks the rows before.
    shutil.rmtree(site.lake, ignore_errors=True)  # a catalog was made there, if there is one
    shutil.move(tmp_path / "moved", site.lake)
    assert "in_delta has another place" in site.refusal(TEXT.replace("{lake}/delta", "{lake}/elsewhere"))

    # With everything as it was, it continues.
    site.run()
    assert site.is_exact()


@pytest.mark.long
def test_repairs_end_as_a_recomputation_would(site, tmp_path):
    site.send(5)
    site.run()
    copy = tmp_path / "copy"
    shutil.copytree(site.home, copy)
    site.send(4)
    site.run()

    # Set back: streams and lakes continue where they end, the table counts again from the copy.
    shutil.rmtree(site.home)
    shutil.copytree(copy, site.home)
    site.send(2)
    site.run(adopt=QUERIES)
    assert site.is_exact()
    site.send(1)
    site.run(adopt=QUERIES)  # the same command again changes nothing
    assert site.is_exact()

    # The lake is gone, and loaded again.
    shutil.rmtree(site.lake)
    site.run(adopt=SINKS)
    assert site.is_exact()

    # The home is gone: the cluster has the identity, tables with state are rebuilt.
    shutil.rmtree(site.home)
    refused = site.refusal()
    assert set(QUERIES) < set(refused)
    site.send(3)
    with pytest.raises(ConfigError, match="counts cannot be adopted: its state is lost with the checkpoint"):
        site.run(adopt=QUERIES)
    site.run(adopt=[query for query in QUERIES if query != "counts"], rebuild=["counts"])
    assert site.is_exact()

    # Another folder, while this one runs and after it.
    registry = PipelineRegistry({"bootstrap.servers": site.broker.bootstrap})
    record = registry.read(site.topics["copies"])
    with (
        registry.running(record.identity, "/elsewhere", pytest.fail),
        pytest.raises(ConfigError, match=r"runs already, process .* in /elsewhere"),
    ):
        site.run()
    first, site.home = site.home, tmp_path / "second"
    assert any(f"it has run in {registry.host}:{first}" in line for line in site.refusal().values())


def test_a_plain_query_on_a_restored_checkpoint_writes_nothing(spark, klamm_broker, klamm_name, tmp_path, patiently):
    source, target = klamm_broker.topic("source"), klamm_broker.topic("target")
    servers = {"kafka.bootstrap.servers": klamm_broker.bootstrap}

    def send(first, last):
        with klamm_broker.producer() as producer:
            for number in range(first, last):
                producer.send(source, str(number).encode())

    def run():
        frame = spark.readStream.format("klamm").options(**servers, subscribe=source, startingOffsets="earliest").load()
        writer = frame.select("value").writeStream.format("klamm").options(**servers, topic=target)
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    def values():
        table = klamm.read_topic(target, bootstrap=klamm_broker.bootstrap, timeout_s=60)
        return sorted(int(value) for value in table["value"].to_pylist())

    send(0, 3)
    patiently(run)
    shutil.copytree(tmp_path / "c", tmp_path / "copy")
    send(3, 5)
    patiently(run)
    shutil.rmtree(tmp_path / "c")
    shutil.copytree(tmp_path / "copy", tmp_path / "c")
    send(5, 9)
    with pytest.raises(Exception, match="checkpoint and sink disagree"):
        patiently(run)
    assert values() == list(range(5))

"""A whole pipeline whose checkpoints are on a file system that only Hadoop's classes reach, as hdfs:// and s3a:// are.

viewfs:// stands for them: Hadoop has it without a server, and no path of it can be opened as a file. Its files are in a
folder of the test.
"""

import json
import shutil

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.snapshots import take_snapshot
from klamm.pipeline.sql.spark_jvm import hadoop_configuration
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.topics import ClusterTopics

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}');
CREATE TABLE names (k INT, name STRING) WITH (topic = '{names}', key = 'k');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n FROM numbers;
CREATE TABLE sums WITH (topic = '{sums}', key = 'k') AS SELECT n % 3 AS k, {total} AS total FROM numbers GROUP BY n % 3;
CREATE STREAM named WITH (topic = '{named}') AS
  SELECT p.n, c.name FROM numbers p LEFT JOIN names c ON p.n = c.k;
CREATE TABLE named_sums WITH (topic = '{named_sums}', key = 'k') AS
  SELECT s.k, s.total, c.name FROM sums s LEFT JOIN names c ON s.k = c.k;
CREATE SINK in_delta WITH (format = 'delta', path = '{lake}') AS SELECT n FROM numbers;
"""
TOPICS = ("numbers", "names", "copies", "sums", "named", "named_sums")
QUERIES = ("copies", "sums", "named", "named_sums", "in_delta", "numbers.dead_letters")


class RemoteSite:
    """The pipeline, its sources, and the folder behind its remote path."""

    def __init__(self, spark, patiently, broker, name, folder):
        self._spark, self._patiently, self._broker = spark, patiently, broker
        self.topics = {topic: name(topic) for topic in TOPICS}
        self.far, self.lake = folder / "far", folder / "lake"
        self.far.mkdir()
        self.numbers, self.names, self.bad = [], {}, 0
        hadoop_configuration(spark).set("fs.viewfs.mounttable.klamm.link./far", f"file://{self.far}")

    def pipeline(self, total="sum(n)"):
        settings = {"bootstrap": self._broker.bootstrap, "checkpoint": "viewfs://klamm/far/sums", "partitions": "1"}
        settings |= {"restarts": "3", "name": self.topics["sums"]}
        return compile_text(TEXT.format(**self.topics, lake=self.lake, total=total), "sums.sql", settings)

    def run(self, total="sum(n)", **options):
        self._patiently(run_pipeline, self.pipeline(total), once=True, spark=self._spark, **options)

    def send(self, first, last):
        with self._broker.producer() as producer:
            for number in range(first, last):
                producer.send(self.topics["numbers"], b'{"n": %d}' % number)
            producer.send(self.topics["numbers"], b"{")
        self.numbers += range(first, last)
        self.bad += 1

    def name(self, **names):
        with self._broker.producer() as producer:
            for name, key in names.items():
                row = json.dumps({"k": key, "name": name}).encode()
                producer.send(self.topics["names"], row, key=str(key).encode()).result(30)
                self.names[key] = name

    def rows(self, topic):
        table = klamm.read_topic(self.topics.get(topic, topic), bootstrap=self._broker.bootstrap, timeout_s=60)
        return [(row["key"], row["value"]) for row in table.to_pylist()]

    def newest(self, topic):
        return [json.loads(value) for value in dict(self.rows(topic)).values() if value is not None]

    def check(self, aggregate=sum, letters=1):
        """Compare everything that was written with plain Python; each bad record has so many dead letters."""
        from deltalake import DeltaTable

        assert sorted(json.loads(value)["n"] for _, value in self.rows("copies")) == self.numbers
        assert sorted(json.loads(value)["n"] for _, value in self.rows("named")) == self.numbers
        assert sorted(DeltaTable(str(self.lake)).to_pyarrow_table()["n"].to_pylist()) == self.numbers
        assert len(self.rows(f"{self.topics['numbers']}.dead_letters")) == self.bad * letters
        sums = {k: aggregate([number for number in self.numbers if number % 3 == k]) for k in range(3)}
        assert {row["k"]: row["total"] for row in self.newest("sums")} == sums
        named = {row["k"]: (row["total"], row["name"]) for row in self.newest("named_sums")}
        assert named == {k: (total, self.names.get(k)) for k, total in sums.items()}


@pytest.fixture
def site(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    site = RemoteSite(spark, patiently, klamm_broker, klamm_name, tmp_path)
    klamm_admin.create_topic(site.topics["numbers"], 1)
    klamm_admin.create_topic(site.topics["names"], 1)
    return site


def test_a_pipeline_on_a_remote_path(site, tmp_path_factory, tmp_path, monkeypatch):
    site.name(zero=0, one=1)
    site.send(0, 6)
    site.run()
    site.check()
    remote = site.far / "sums"
    assert {path.name for path in remote.iterdir() if path.is_dir()} >= {f"{query}.0" for query in QUERIES}
    assert (remote / "pipeline.json").exists()
    home = home_of(site.pipeline())
    with pytest.raises(ConfigError, match="they are on a remote file system"):
        take_snapshot(home, "before", 0)

    # A batch dies when its topic has it and the checkpoint has not; the query is restarted and runs it again.
    copy = tmp_path / "copy"
    shutil.copytree(remote, copy)
    write, deaths = ClusterTopics.write, set()

    def die_once(self, frame, topic, node, ledger, batch):
        write(self, frame, topic, node, ledger, batch)
        if ledger.query in ("copies", "named") and ledger.query not in deaths:
            deaths.add(ledger.query)
            raise MemoryError("the batch dies here")

    monkeypatch.setattr(ClusterTopics, "write", die_once)
    site.name(two=2, uno=1)
    site.send(6, 10)
    site.run()
    monkeypatch.setattr(ClusterTopics, "write", write)
    assert deaths == {"copies", "named"}
    site.check()

    # Another machine has no folder of this pipeline, and continues by the remote identity.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("other")))
    site.send(10, 12)
    site.run()
    site.check()

    # A remote checkpoint that was set back is refused; what has no state of its own continues where its output ends.
    shutil.rmtree(remote / "copies.0")
    shutil.copytree(copy / "copies.0", remote / "copies.0")
    site.send(12, 14)
    with pytest.raises(ConfigError, match=r"copies: checkpoint and sink disagree.*it was set back"):
        site.run()
    site.run(adopt=["copies"])
    site.check()

    # A rebuild keeps its rows aside in the remote checkpoint, and removes them after the switch.
    before = len(site.rows("sums"))
    site.run(total="count(*)", rebuild=["sums", "numbers.dead_letters"])
    site.check(len, letters=2)  # what was sent to a topic cannot be taken back
    assert len(site.rows("sums")) == before + 3
    assert not list(remote.glob("sums.1/klamm/staged*"))

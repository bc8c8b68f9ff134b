"""What a pipeline leaves for long runs, on Spark: checkpoints by address, bad records counted, a line per batch."""

import json
import logging
import shutil

import pytest

import klamm
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.known_homes import data_root
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'drop');
CREATE STREAM words (word STRING NOT NULL) WITH (topic = '{words}');
CREATE STREAM sums WITH (topic = '{sums}') AS
  SELECT n FROM numbers UNION ALL SELECT n + 100 AS n FROM numbers UNION ALL SELECT length(word) * 1000 AS n FROM words;
"""


def values(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [json.loads(row) for row in table["value"].to_pylist()]


@pytest.fixture
def log(tmp_path):
    logger = logging.getLogger("klamm.pipeline")
    handler = logging.FileHandler(tmp_path / "log")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield tmp_path / "log"
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        handler.close()


def test_checkpoints_by_address(spark, patiently, klamm_broker, tmp_path, monkeypatch, log):
    monkeypatch.chdir(tmp_path)
    names = {name: klamm_broker.topic(name) for name in ("numbers", "words", "sums")}
    far = tmp_path / "far"
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": f"file://{far}", "partitions": "1", "metrics": "0"}
    pipeline = compile_text(TEXT.format(**names), "long.sql", settings)
    home = home_of(pipeline)
    reports = []

    def send(*numbers):
        with klamm_broker.producer() as producer:
            for n in numbers:
                producer.send(names["numbers"], json.dumps({"n": n}).encode())
            producer.send(names["numbers"], b"no number")
            for value in (b'{"word": "a"}', b'{"word": 5, "x', b"null"):
                producer.send(names["words"], value)

    def run():
        patiently(run_pipeline, pipeline, once=True, spark=spark, log_batches=True, report=reports.append)

    send(1, 2)
    run()
    assert home.path.startswith(data_root())
    assert any(line.startswith("metrics on http://127.0.0.1:") for line in reports)
    first = json.loads((far / "pipeline.json").read_text())
    assert sorted(row["n"] for row in values(klamm_broker, names["sums"])) == [1, 2, 101, 102, 1000]
    queries = home.status()["queries"]
    assert queries["words.dead_letters"]["bad_records"] == {"dead_letter": 2}
    assert queries["sums"]["bad_records"]["drop"] in (1, 2)  # the stream is read twice: Spark may share the count
    assert queries["words.dead_letters"]["rows_total"] == 3
    lines = [line for line in log.read_text().splitlines() if "batch done" in line]
    assert {line.split(" query=")[1].split()[0] for line in lines} == {"words.dead_letters", "sums"}

    # Another machine, which knows nothing of the pipeline: what lies beside the checkpoints counts.
    shutil.rmtree(home.path)
    send(3)
    run()
    assert json.loads((far / "pipeline.json").read_text()) == first
    assert home.identity().id == first["id"]
    sums = sorted(row["n"] for row in values(klamm_broker, names["sums"]))
    assert sums == [1, 2, 3, 101, 102, 103, 1000, 1000]
    assert {path.name for path in far.iterdir()} >= {"sums.0", "words.dead_letters.0", "pipeline.json"}

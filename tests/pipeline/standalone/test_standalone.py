"""A pipeline on a real master with two workers, whose executors know nothing of klamm; one of them is killed.

`make campaign` kills five, one after the other.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import klamm
from klamm.pipeline.sql.state_folders import find_home
from pipeline.standalone.cluster import PATIENCE_S, SMALL, bare_python, standalone

pytestmark = pytest.mark.timeout(900)
KILLS = 5 if os.environ.get("KLAMM_CAMPAIGN") == "all" else 1

TEXT = """
SET name = 'far';
SET max_records = 500;
SET bad_records = 'drop';
CREATE FUNCTION origin RETURNS STRING AS 'far_functions.places:origin';
CREATE STREAM numbers (n INT, parity STRING) WITH (topic = '{numbers}');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT n, origin(n) AS origin FROM numbers;
CREATE TABLE sums WITH (topic = '{sums}') AS SELECT parity, sum(n) AS total FROM numbers GROUP BY parity;
"""
FUNCTION = """
def origin(n):
    from klamm.records import kernels_compiled
    from klamm.records.kernels import decode
    return f"{decode.__file__} {kernels_compiled()}"
"""
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.extraJavaOptions": SMALL,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.network.timeout": "300s",
}


class Run:
    """`klamm pipeline run` in a process of its own."""

    def __init__(self, folder, *options):
        self.log = folder / "run.log"
        path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "klamm", "pipeline", "run", *options],
                stdout=out,
                stderr=out,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def words(self):
        return self.log.read_text(errors="replace")

    def until(self, reached, cluster):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            result = reached()
            if result:
                return result
            assert self.process.poll() is None, self.words()
            time.sleep(0.1)
        raise AssertionError(f"{self.words()}\n{cluster.words()}")

    def address(self):
        match = re.search(r"metrics on (http://\S+)", self.words())
        return match[1] if match else None

    def metrics(self):
        """As Prometheus reads them: {(name, query): value}."""
        with urllib.request.urlopen(self.address(), timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        return {
            (sample.name.removeprefix("klamm_pipeline_"), sample.labels.get("query")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def send(broker, topic, numbers):
    with broker.producer() as producer:
        for n in numbers:
            producer.send(topic, json.dumps({"n": n, "parity": "odd" if n % 2 else "even"}).encode(), partition=n % 2)
        producer.send(topic, b"{broken", partition=0)


def rows(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [json.loads(row) for row in table["value"].to_pylist()]


@pytest.mark.long
def test_exactly_once_although_executors_are_killed(klamm_own_broker, tmp_path):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    broker = klamm_own_broker
    python = bare_python(tmp_path)
    for package, there in (("pyarrow", True), ("klamm", False), ("crc32c", False), ("pandas", False)):
        command = ["env", "-u", "PYTHONPATH", python, "-c", f"import {package}"]
        done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
        assert (done.returncode == 0) == there, done.stderr
    names = {topic: broker.topic(topic, partitions=2) for topic in ("numbers", "copies")}
    names["sums"] = broker.topic("sums")
    send(broker, names["numbers"], range(1200))
    (tmp_path / "far.sql").write_text(TEXT.format(**names))
    (tmp_path / "far_functions").mkdir()
    (tmp_path / "far_functions" / "__init__.py").touch()
    (tmp_path / "far_functions" / "places.py").write_text(FUNCTION)
    with standalone(tmp_path) as cluster:
        settings = {**SETTINGS, "spark.pyspark.python": str(python)}
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = ["far.sql", "--master", cluster.master, "-b", broker.bootstrap, "--metrics", "0", "--log-batches"]
        run = Run(tmp_path, *command, *options)
        try:
            run.until(run.address, cluster)
            for done in range(1, KILLS + 1):
                run.until(lambda done=done: run.metrics().get(("batches_total", "copies"), 0) >= done, cluster)
                chance.choice(run.until(cluster.executors, cluster)).kill()
                send(broker, names["numbers"], range(400 + 800 * done, 1200 + 800 * done))
            count = 1200 + 800 * KILLS
            run.until(lambda: len(rows(broker, names["copies"])) >= count, cluster)
            totals = {"even": sum(range(0, count, 2)), "odd": sum(range(1, count, 2))}
            run.until(lambda: newest(broker, names["sums"]) == totals, cluster)
            run.until(lambda: run.metrics()["lag_records", "copies"] == 0, cluster)
            run.until(lambda: cluster.started() > 2, cluster)
            metrics = run.metrics()
            stopping = [sys.executable, "-m", "klamm", "pipeline", "stop", "far"]
            subprocess.run(stopping, cwd=tmp_path, check=True, timeout=PATIENCE_S)
            assert run.process.wait(PATIENCE_S) == 0, run.words()
        finally:
            run.kill()
    copies = rows(broker, names["copies"])
    assert Counter(copy["n"] for copy in copies) == Counter(range(count))
    check_origin({copy["origin"] for copy in copies})
    check_metrics(metrics, count)
    check_state(Path(find_home("far").path) / "sums.0")
    lines = [line for line in run.words().splitlines() if "batch done query=copies " in line]
    assert sum(int(re.search(r" rows=(\d+)", line)[1]) for line in lines) >= count + KILLS + 1


def newest(broker, topic):
    return {row["parity"]: row["total"] for row in rows(broker, topic)}


def check_origin(origins):
    """What ran is the copy in an executor's folder, compiled where the package here is."""
    from klamm.records import kernels_compiled

    for origin in origins:
        path, _, compiled = origin.partition(" ")
        assert re.search(r"/work-[01]/app-[^/]+/\d+/\.?/?klamm/records/kernels/decode\.", path), path
        assert compiled == str(kernels_compiled())


def check_metrics(metrics, count):
    assert metrics["running", None] == 1
    assert metrics["rows_total", "copies"] >= count + KILLS + 1
    assert metrics["batches_total", "copies"] == metrics["batch_duration_seconds_count", "copies"] >= 4
    assert metrics["batch_duration_seconds_sum", "copies"] > 0
    assert metrics["lag_seconds", "copies"] == 0
    assert metrics["state_rows", "sums"] == 2
    assert metrics["state_bytes", "sums"] > 0
    assert metrics["bad_records_total", "copies"] >= KILLS + 1


def check_state(checkpoint):
    """State is RocksDB's: so says the checkpoint, and so do its files."""
    offsets = (checkpoint / "offsets" / "0").read_text()
    assert "state.RocksDBStateStoreProvider" in offsets
    assert any(path.suffix in (".zip", ".changelog") for path in (checkpoint / "state" / "0" / "0").rglob("*"))

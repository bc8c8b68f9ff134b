"""Every command that needs no Spark works without Java and PySpark; the one that does says so before anything else."""

import os
import subprocess
import sys

import pytest

from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import renew_identity
from klamm.pipeline.sql.status import Home

TEXT = """
CREATE STREAM s (id STRING, n INT) WITH (topic = '{topic}');
CREATE TABLE t AS SELECT id, sum(n) AS n FROM s GROUP BY id;
"""
ALONE = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from klamm.cli.main import main
main()
"""


@pytest.fixture
def typed(tmp_path, klamm_broker):
    """A command in a process that finds neither Java nor PySpark."""
    topic = klamm_broker.topic("in")
    (tmp_path / "p.sql").write_text(TEXT.format(topic=topic))
    home = Home(str(tmp_path / ".klamm" / "pipelines" / "p"))
    home.keep(renew_identity(compile_text((tmp_path / "p.sql").read_text(), "p.sql"), home))
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path)

    def call(*words):
        return subprocess.run(
            [sys.executable, "-c", ALONE, "pipeline", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return call


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("check", "p.sql", "--topics"), 0, "fine"),
        (("plan", "p.sql"), 0, "t  table"),
        (("ls",), 0, "never ran"),
        (("show", "p"), 0, "never ran"),
        (("stop", "p"), 1, "p does not run"),
        (("dlq", "ls", "p.sql"), 0, ""),
        (("compact", "p.sql"), 0, "Nothing to change."),
    ],
)
def test_what_needs_no_spark(typed, klamm_broker, words, code, message):
    cluster = ("-b", klamm_broker.bootstrap) if words[0] in ("check", "dlq") else ()
    done = typed(*words, *cluster)
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_run_says_what_to_install_before_it_tries_anything(typed, tmp_path):
    for command in (("run", "p.sql"), ("backfill", "p.sql", "t", "--from", "earliest")):
        done = typed(*command, "-b", "127.0.0.1:1", "--set", "name=q")
        assert done.returncode == 1, done.stderr
        assert "Spark needs Java 17 or newer and there is no java on the path: install one" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / ".klamm" / "pipelines" / "q").exists()

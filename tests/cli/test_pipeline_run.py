"""`klamm pipeline run` and what starts Spark beside it, as a person types them: in a terminal, and into a pipe."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import pytest

import klamm

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
TEXT = """
SET name = '{name}';
CREATE STREAM numbers (n INT) WITH (topic = '{numbers}', bad_records = 'drop');
CREATE STREAM copies WITH (topic = '{copies}', partitions = 1) AS SELECT n FROM numbers;
CREATE TABLE sums WITH (topic = '{sums}', key = 'k', partitions = 1) AS SELECT n % 2 AS k, {total} AS total FROM numbers
  GROUP BY n % 2;
"""
NOISE = re.compile(
    r"Traceback|BrokenPipe|WARN|log4j|Using Spark|Setting default log level|To adjust logging|Ivy|WARNING:"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
)
"""Lines of Spark's start, traces, and ids that say nothing to a person."""


class Typed:
    """A file, its topics, and commands about it in processes of their own."""

    def __init__(self, broker, name, folder):
        self.broker, self.folder = broker, folder
        self.names = {word: name(word) for word in ("numbers", "copies", "sums")}
        self.names["numbers"] = broker.topic("numbers")
        self.write()
        with broker.producer() as producer:
            for number in range(4):
                producer.send(self.names["numbers"], b'{"n": %d}' % number)
        self.environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "TERM": "xterm", "COLUMNS": "120"}

    def write(self, total="sum(n)", **more):
        text = TEXT.format(name=self.names["copies"], total=total, **{**self.names, **more})
        (self.folder / "p.sql").write_text(text)

    def command(self, *words):
        run = [sys.executable, "-c", "from klamm.cli.main import main; main()", "pipeline", *words]
        return [*run, "-b", self.broker.bootstrap]

    def run(self, *words, **pipes):
        pipes = pipes or {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment, text=True, check=False, timeout=500, **pipes
        )

    def copies(self):
        table = klamm.read_topic(self.names["copies"], bootstrap=self.broker.bootstrap, timeout_s=60)
        return sorted(json.loads(value)["n"] for value in table["value"].to_pylist())


@pytest.fixture
def typed(klamm_broker, klamm_name, tmp_path):
    return Typed(klamm_broker, klamm_name, tmp_path)


def test_a_terminal_shows_the_view_and_nothing_of_spark(typed):
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        typed.command("run", "p.sql", "--once"),
        cwd=typed.folder,
        env=typed.environment,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    shown = b""
    # At its end Linux reports an error of input and output.
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert process.wait(60) == 0, text
    assert not NOISE.search(text), NOISE.search(text)
    for word in (typed.names["copies"], "copies", "sums", "numbers"):
        assert word in text
    assert typed.copies() == [0, 1, 2, 3]


def test_a_pipe_that_is_closed_leaves_no_trace_and_no_damage(typed):
    """As `run ... | true` and `run ... 2>&1 | true` do it: the second one ends, as every command of a pipe does."""
    reading, closed = os.pipe()
    os.close(reading)
    errors = typed.folder / "errors"
    with errors.open("w") as file:
        done = typed.run("run", "p.sql", "--once", "--progress", stdout=closed, stderr=file)
    assert not NOISE.search(errors.read_text()), errors.read_text()
    assert done.returncode == 0, errors.read_text()
    assert typed.copies() == [0, 1, 2, 3]
    with typed.broker.producer() as producer:
        producer.send(typed.names["numbers"], b'{"n": 4}')
    typed.run("run", "p.sql", "--once", stdout=closed, stderr=closed)
    os.close(closed)
    done = typed.run("run", "p.sql", "--once")
    assert done.returncode == 0, done.stderr
    assert not NOISE.search(done.stderr), done.stderr
    assert typed.copies() == [0, 1, 2, 3, 4]


def test_check_and_plan_with_spark(typed):
    done = typed.run("check", "p.sql", "--spark")
    assert (done.returncode, done.stdout) == (0, "p.sql: fine, 3 statements\n"), done.stderr
    assert not NOISE.search(done.stderr), done.stderr
    typed.write(total="sum(m)")
    done = typed.run("check", "p.sql", "--spark")
    assert done.returncode == 1
    assert re.search(r"p\.sql:\d+:\d+: .*\bm\b", done.stderr), done.stderr
    assert not NOISE.search(done.stderr), done.stderr

    typed.write()
    assert typed.run("run", "p.sql", "--once").returncode == 0
    done = typed.run("plan", "p.sql", "--spark")
    assert done.stdout.count("[same]") == 2, done.stdout + done.stderr
    assert not NOISE.search(done.stderr), done.stderr

"""`make demo` as people run it: a process, a node, Spark, and an exit code."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.fixture
def run_demo(tmp_path):
    """Start the demo with a temporary folder of its own, in which nothing may be left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    started = []

    def start(*words):
        with open(tmp_path / "out.txt", "wb") as out:
            process = subprocess.Popen(
                [sys.executable, str(DEMO), *words],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
        started.append(process)
        return process, tmp_path / "out.txt"

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def left_behind(folder):
    """Processes that have to do with a folder."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [process.cwd(), *process.cmdline()]
            if process.pid != os.getpid() and any(str(folder) in word for word in words):
                left.append(" ".join(words))
    return left


def nothing_is_left(tmp_path):
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "temporary"]
    deadline = time.monotonic() + 60
    while (left := left_behind(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_books_are_equal_at_the_end(run_demo, tmp_path):
    process, out = run_demo("--seconds", "3", "--rate", "150")
    code = process.wait(540)
    output = out.read_text()
    assert code == 0, output
    assert "Klamm is ready on 127.0.0.1:" in output
    assert "Equal: every transaction counts once, everywhere." in output
    rows = [line for line in output.splitlines() if line.startswith("│")]
    assert len(rows) == 10, output
    assert all("equal" in row for row in rows), output
    for words in ("balances table", "spend per minute", "suspicious", "dead letters", "rows in the lake"):
        assert any(words in row for row in rows), words
    nothing_is_left(tmp_path)


@pytest.mark.timeout(300)
def test_two_interrupts_end_everything_at_once(run_demo, tmp_path):
    process, out = run_demo()
    deadline = time.monotonic() + 120
    while "Opening the bank" not in out.read_text():
        assert process.poll() is None, out.read_text()
        assert time.monotonic() < deadline, out.read_text()
        time.sleep(0.05)
    while process.poll() is None:
        assert time.monotonic() < deadline + 120, out.read_text()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
    assert process.returncode == 128 + signal.SIGINT, out.read_text()
    assert "Interrupted: the books were not checked." in out.read_text()
    nothing_is_left(tmp_path)


def test_without_java_one_sentence_says_what_to_install(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    run = subprocess.run(
        [sys.executable, str(DEMO)],
        cwd=tmp_path,
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("Spark needs Java 17 or newer and there is no java on the path: install one")
    assert len(run.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []

"""A real `klamm` process for a test: started, stopped, killed and started again on the same port and data."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from klamm.net.free_ports import free_ports

KLAMM = (sys.executable, "-c", "from klamm.cli.main import main; main()")
"""The `klamm` command of the interpreter that runs the tests."""

READY_S = 60.0
STOP_S = 60.0
_LOUD = re.compile(r"\b(warning|error|critical|Traceback)\b", re.IGNORECASE)
_READY = re.compile(r"Klamm is ready on (\S+):(\d+)\n")
_KEEP_LOG_CHARS = 4000
_STORY_LINES = 6
_STORY_LINE_CHARS = 180

launched: dict["KlammProcess", None] = {}
"""Every process a test has started, so that a failure shows their logs; emptied before each test."""


class KlammFailed(AssertionError):
    """The process did not start or stop in time; contains its standard error."""


class KlammProcess:
    """One node in a process of its own; the first start takes a free port, later ones the same again."""

    ready_s = READY_S
    """How long a start may take."""

    def __init__(self, folder: Path, *, overrides: dict[str, str] | None = None, log_level: str = "info") -> None:
        self.folder = Path(folder)
        self.data = self.folder / "data"
        self.overrides = dict(overrides or {})
        self.log_level = log_level
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "stderr.log"
        self._mark = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill9()

    @property
    def bootstrap(self) -> str:
        """What a client is given."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start and wait for the line that it prints when it serves."""
        self.launch()
        return self.wait_ready()

    def command(self) -> list[str]:
        """What is run."""
        command = [*KLAMM, "up", "--data", str(self.data), "--port", str(self.port), "--log-level", self.log_level]
        # First, so that a test may override it: most look at what the node prints, and none needs the usual port.
        command += ["--override", "metrics.listeners=", "--no-console"]
        for key, value in self.overrides.items():
            command += ["--override", f"{key}={value}"]
        return command

    def launch(self) -> None:
        """Start without waiting."""
        assert self.process is None
        # Not port 0: the system would choose one of those it gives to connections too, and give it to one while the
        # node is down.
        self.port = self.port or free_ports("127.0.0.1", 1)[0]
        launched[self] = None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )

    def wait_ready(self, timeout_s: float | None = None) -> Self:
        """Wait for the line that it prints when it serves."""
        line = self._first_line(self.ready_s if timeout_s is None else timeout_s)
        match = _READY.fullmatch(line)
        if match is None:
            self.kill9()
            raise KlammFailed(f"the node said {line!r} instead of being ready:\n{self.stderr()}")
        return self

    def _first_line(self, timeout_s: float) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        line = b""
        fd = self.process.stdout.fileno()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                break
            more = os.read(fd, 1)
            if not more:
                break
            line += more
        return line.decode()

    def stop(self) -> None:
        """SIGTERM; it must end by itself, with 0, with no more output on standard output."""
        self.ask_to_stop()
        self.wait_stopped()

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        """Wait for the end of a process that was sent a signal to stop."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            rest, _ = process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            _end(process)
            raise KlammFailed(f"the node did not stop within {STOP_S} s:\n{self.stderr()}") from None
        if process.returncode != 0 or rest:
            raise KlammFailed(f"the node ended with {process.returncode}, printed {rest!r}:\n{self.stderr()}")

    def kill9(self) -> None:
        """SIGKILL; harmless when it is not running."""
        if self.process is not None:
            process, self.process = self.process, None
            _end(process)

    def pause(self) -> None:
        """SIGSTOP: it holds its sockets and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, clean: bool = True) -> None:
        """Stop (or kill) and start again."""
        if clean:
            self.stop()
        else:
            self.kill9()
        self.start()

    def log(self) -> str:
        """All the process wrote to standard error since its last start."""
        with contextlib.suppress(FileNotFoundError):
            return self._log.read_bytes()[self._mark :].decode(errors="replace")
        return ""

    def story(self) -> str:
        """The last lines of the log, over all its starts, warnings before all else: to show with a failed test."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            loud = [line for line in lines if _LOUD.search(line)][-_STORY_LINES:]
            last = [line for line in lines[-_STORY_LINES:] if line not in loud]
            return "\n".join(line[:_STORY_LINE_CHARS] for line in [*loud, *last])
        return ""

    def stderr(self) -> str:
        """The end of the log, to show with a failure."""
        return self.log()[-_KEEP_LOG_CHARS:]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()

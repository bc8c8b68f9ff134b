"""A program as a process of its own: its output in a file, gone when the run ends, killed at will."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

from compat.brokers import die_with_parent

LINE_TIMEOUT_S = 180.0


class Process:
    """A child process; `with Process(...) as program:` leaves none behind.

    Standard output and error go to one file, so that a program that talks much never waits for its reader.
    """

    def __init__(
        self, command: list[str], log: Path, *, cwd: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd or log.parent,
                env={**os.environ, **(environment or {})},
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no Python locks taken
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill9()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """All the program has printed so far."""
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.text.splitlines()[-lines:])

    def wait_line(self, part: str, *, times: int = 1, timeout_s: float = LINE_TIMEOUT_S) -> None:
        """Wait until lines with this text have been printed so many times."""
        deadline = time.monotonic() + timeout_s
        while self.text.count(part) < times:
            if not self.is_running and self.text.count(part) < times:
                raise AssertionError(f"the program ended without printing {part!r}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{part!r} was not printed in {timeout_s:.0f} s:\n{self.tail()}")
            time.sleep(0.1)

    def wait(self, timeout_s: float = LINE_TIMEOUT_S) -> int:
        """The exit code, once the program has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        raise AssertionError(f"the program did not end in {timeout_s:.0f} s:\n{self.tail()}")

    def stop(self, timeout_s: float = LINE_TIMEOUT_S) -> int:
        """SIGTERM, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill9(self) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()


def run(command: list[str], log: Path, *, timeout_s: float = LINE_TIMEOUT_S, cwd: Path | None = None) -> str:
    """Run a program to its end; gives its output, raises with it where the exit code is not 0."""
    with Process(command, log, cwd=cwd) as program:
        code = program.wait(timeout_s)
        assert code == 0, f"exit code {code}:\n{program.tail()}"
        return program.text

# ruff: noqa: INP001 - a script of the Makefile
"""pip install with progress: PySpark alone is 460 MB, and no output for two minutes looks like a hang.

    python tools/install.py --editable '.[all]'

One line that changes on a terminal, one every few seconds elsewhere. When pip fails, its last output is printed.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO, Final

_EVERY_S: Final = 15.0
_LAST_LINES: Final = 40
_WIDTH: Final = 78
_STEPS: Final = (
    (re.compile(r"\s*Collecting (\S+)"), "resolving {}"),
    (re.compile(r"\s*Downloading (\S+)"), "downloading {}"),
    (re.compile(r"\s*Building wheel for (\S+)"), "building {}"),
    (re.compile(r"\s*Building editable for (\S+)"), "building {}"),
    (re.compile(r"\s*Installing collected packages: (.*)"), "installing {} packages"),
)


class PipProgress:
    """The current step of pip, in a few words."""

    def __init__(self) -> None:
        self.step = "starting pip"
        self._download = ""

    def read_line(self, line: str) -> None:
        """Read the next line of pip's output."""
        progress = re.match(r"Progress (\d+) of (\d+)", line)
        if progress:
            done, size = (int(group) / 1e6 for group in progress.groups())
            if size >= 1:
                self.step = f"{self._download}: {done:.0f} of {size:.0f} MB"
            return
        for pattern, step in _STEPS:
            match = pattern.match(line)
            if match:
                what = match[1].split("/")[-1]
                if step.startswith("installing"):
                    what = str(match[1].count(",") + 1)
                elif step.startswith("downloading"):
                    what = "-".join(what.split("-")[:2]).removesuffix(".tar.gz")
                    self._download = step.format(what)
                self.step = step.format(what)


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def install(words: list[str]) -> int:
    """Run pip; returns its exit code."""
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(  # noqa: S603 - our own pip
        [sys.executable, "-m", "pip", "install", "--progress-bar", "raw", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        _follow(process.stdout, last_lines)
    if process.returncode:
        sys.stdout.write("\n".join(last_lines) + "\n")
    return process.returncode


def _follow(stream: IO[str], last_lines: deque[str]) -> None:
    """Show the progress until pip ends."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(stream, lines), daemon=True).start()
    progress = PipProgress()
    began = shown_at = time.monotonic()
    alive = sys.stdout.isatty()
    line: str | None = ""
    while line is not None:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            line = ""
        if line:
            progress.read_line(line)
            if not line.startswith("Progress "):
                last_lines.append(line)
        now = time.monotonic()
        words = f"   {now - began:3.0f} s  {progress.step}"
        if alive:
            sys.stdout.write(f"\r\x1b[K{words[:_WIDTH]}")
            sys.stdout.flush()
        elif now - shown_at >= _EVERY_S:
            shown_at = now
            sys.stdout.write(words + "\n")
            sys.stdout.flush()
    if alive:
        sys.stdout.write("\r\x1b[K")


if __name__ == "__main__":
    try:
        sys.exit(install(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

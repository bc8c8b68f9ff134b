"""One line per event, with fields: what happened, to whom, with which numbers.

    log = get_logger("storage", node=1)
    log.info("leader elected", epoch=7)
    2026-11-15 10:00:00.123 INFO storage leader elected node=1 epoch=7

State changes are info, refusals warnings, requests debug. Lines go to standard error; standard output belongs
to the command line. A level that is off costs one comparison.
"""

from __future__ import annotations

import sys
import time
import traceback
from enum import IntEnum
from typing import Any, Final, TextIO


class Level(IntEnum):
    """How much an event matters."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    OFF = 100


class _Sink:
    """Where all loggers write, and from which level on."""

    def __init__(self) -> None:
        self.level: int = Level.INFO
        self.stream: TextIO | None = None  # standard error as it is when the line is written
        self.now_ns = time.time_ns


_SINK: Final = _Sink()


def configure(level: Level = Level.INFO, stream: TextIO | None = None) -> None:
    """Choose the level and, for tests, another place to write to."""
    _SINK.level = level
    _SINK.stream = stream


class Logger:
    """A room's voice, with the fields bound to it in front of those of each event."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """The same voice with more fields."""
        return Logger(self._name, {**self._fields, **fields})

    def enabled(self, level: Level) -> bool:
        """Whether a line of this level would be written; ask before an expensive field."""
        return level >= _SINK.level

    def debug(self, event: str, **fields: Any) -> None:
        """A request, a step: of interest to someone who looks for a fault."""
        if _SINK.level <= 10:
            self._write("DEBUG", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """A change of state."""
        if _SINK.level <= 20:
            self._write("INFO", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """A refusal, or something an operator should look at."""
        if _SINK.level <= 30:
            self._write("WARNING", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something is broken."""
        if _SINK.level <= 40:
            self._write("ERROR", event, fields)

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """A failure nobody expected, with its traceback on the lines below."""
        if _SINK.level <= 40:
            self._write("ERROR", event, {**fields, "error": repr(error)}, "".join(traceback.format_exception(error)))

    def _write(self, level: str, event: str, fields: dict[str, Any], more: str = "") -> None:
        now = _SINK.now_ns()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now // 1_000_000_000))
        shown = "".join(f" {key}={_shown(value)}" for key, value in {**self._fields, **fields}.items())
        line = f"{stamp}.{now // 1_000_000 % 1000:03d} {level} {self._name} {event}{shown}\n{more}"
        stream = _SINK.stream or sys.stderr
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):  # a closed terminal must not stop a broker
            _SINK.level = Level.OFF


def get_logger(name: str, **fields: Any) -> Logger:
    """The voice of a room, e.g. `get_logger("raft", node=1)`."""
    return Logger(name, fields)


def _shown(value: Any) -> str:
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted) + '"'

"""One line per event, with fields: what happened, to which partition or node, with which numbers.

    log = get_logger("storage", node=1)
    log.info("leader elected", epoch=7)
    2026-11-15 10:00:00.123 INFO storage leader elected node=1 epoch=7

State changes are info, refusals warnings, requests debug. Lines go to standard error; standard output belongs
to the command line. A level that is off costs one comparison.

The client and the pipeline are libraries and log through the standard library's `logging`, so that the program they
are part of decides about their records. In Klamm's own processes `capture_stdlib` writes those records as lines of this
log.
"""

from __future__ import annotations

import logging
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


def capture_stdlib() -> None:
    """Write the records of the standard library's loggers below `klamm` as lines of this log, by the level set here."""
    logger = logging.getLogger("klamm")
    if not any(isinstance(handler, StdlibHandler) for handler in logger.handlers):
        logger.addHandler(StdlibHandler())
    logger.setLevel(logging.DEBUG)  # the sink's level decides, and it may change while the process runs


class StdlibHandler(logging.Handler):
    """Takes records of `logging`: the first name below `klamm` is the line's, an exception follows the line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if record.levelno < _SINK.level:
            return
        name = record.name.removeprefix("klamm.").partition(".")[0]
        error = record.exc_info[1] if record.exc_info else None
        more = "".join(traceback.format_exception(error)) if error is not None else ""
        _write_line(record.levelname, name, record.getMessage(), {}, more)


class Logger:
    """The log of one package, with the fields bound to it in front of those of each event."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """The same log with more fields."""
        return Logger(self._name, {**self._fields, **fields})

    def enabled(self, level: Level) -> bool:
        """Whether a line of this level would be written; ask before an expensive field."""
        return level >= _SINK.level

    def debug(self, event: str, **fields: Any) -> None:
        """A request or a step, of interest while looking for a fault."""
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
        """An unexpected failure, with its traceback on the lines below."""
        if _SINK.level <= 40:
            self._write("ERROR", event, {**fields, "error": repr(error)}, "".join(traceback.format_exception(error)))

    def _write(self, level: str, event: str, fields: dict[str, Any], more: str = "") -> None:
        _write_line(level, self._name, event, {**self._fields, **fields}, more)


def get_logger(name: str, **fields: Any) -> Logger:
    """The log of a package, e.g. `get_logger("raft", node=1)`."""
    return Logger(name, fields)


def _write_line(level: str, name: str, event: str, fields: dict[str, Any], more: str) -> None:
    now = _SINK.now_ns()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now // 1_000_000_000))
    pairs = "".join(f" {key}={_quote(value)}" for key, value in fields.items())
    line = f"{stamp}.{now // 1_000_000 % 1000:03d} {level} {name} {event}{pairs}\n{more}"
    stream = _SINK.stream or sys.stderr
    try:
        stream.write(line)
        stream.flush()
    except (OSError, ValueError):  # a closed terminal must not stop a broker
        _SINK.level = Level.OFF


def _quote(value: Any) -> str:
    """The text of a value, in quotes where it would break the line or look like another field."""
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted) + '"'

"""The structured log: one line per event, with fields.

    log = get_logger("storage", node=1)
    log.info("leader elected", epoch=7)
    2026-11-15 10:00:00.123 INFO storage leader elected node=1 epoch=7

State changes are info, refusals warnings, requests debug. Lines go to standard error; standard output is for the
command line. A disabled level costs one comparison.

The client and the pipeline are libraries and log through the standard library's `logging`, which the application
configures. In Klamm's own processes `capture_stdlib` writes those records as lines of this log.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from enum import IntEnum
from typing import Any, Final, TextIO


class Level(IntEnum):
    """The severity of an event; the numbers are those of `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    OFF = 100


_ERROR_CHARS_MAX: Final = 1000
"""Of the text of an error, and of each line of its traceback: an error may quote a request or a record."""


class _Sink:
    """The level and the stream of all loggers."""

    def __init__(self) -> None:
        self.level: int = Level.INFO
        self.stream: TextIO | None = None  # None: sys.stderr at the time of the line, which tests replace
        self.now_ns = time.time_ns


_SINK: Final = _Sink()


def configure(level: Level = Level.INFO, stream: TextIO | None = None) -> None:
    """Set the level and, for tests, another stream."""
    _SINK.level = level
    _SINK.stream = stream


def capture_stdlib() -> None:
    """Write the records of the standard library's loggers below `klamm` as lines of this log, by the level set here."""
    logger = logging.getLogger("klamm")
    if not any(isinstance(handler, StdlibHandler) for handler in logger.handlers):
        logger.addHandler(StdlibHandler())
    logger.setLevel(logging.DEBUG)  # the sink's level decides, and it may change while the process runs


class StdlibHandler(logging.Handler):
    """Writes records of `logging`: the package below `klamm` is the line's name, a traceback follows the line."""

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
        """Whether a line of this level would be written; for callers that must compute an expensive field."""
        return level >= _SINK.level

    def debug(self, event: str, **fields: Any) -> None:
        """A request or a step, for debugging."""
        if _SINK.level <= 10:  # a literal here and below: an attribute of an IntEnum would double the cost
            self._write("DEBUG", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """A change of state."""
        if _SINK.level <= 20:
            self._write("INFO", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """A refused request, or a condition that an operator should check."""
        if _SINK.level <= 30:
            self._write("WARNING", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """A failure."""
        if _SINK.level <= 40:
            self._write("ERROR", event, fields)

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """An unexpected failure, with its traceback on the lines below."""
        if _SINK.level <= 40:
            stack = "".join(_cut(line) for line in traceback.format_exception(error))
            self._write("ERROR", event, {**fields, "error": _describe_error(error)}, stack)

    def _write(self, level: str, event: str, fields: dict[str, Any], more: str = "") -> None:
        _write_line(level, self._name, event, {**self._fields, **fields}, more)


def _describe_error(error: BaseException) -> str:
    """The type of an error and its text, bounded."""
    if isinstance(error, UnicodeEncodeError | UnicodeDecodeError):
        # Its repr has the whole text that was encoded: a page with records and tokens.
        return f"{type(error).__name__}({error.encoding!r}, position {error.start}, {error.reason!r})"
    return _cut(repr(error))


def _cut(text: str) -> str:
    if len(text) <= _ERROR_CHARS_MAX:
        return text
    return f"{text[:_ERROR_CHARS_MAX]}...\n" if text.endswith("\n") else f"{text[:_ERROR_CHARS_MAX]}..."


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
    is_printable = text.isprintable()
    if text and is_printable and " " not in text and '"' not in text and "=" not in text:
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    # Character by character only where it is needed: a thousand peers that leave at once are a thousand lines.
    if not is_printable:
        quoted = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in quoted)
    return f'"{quoted}"'

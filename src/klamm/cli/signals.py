"""Ctrl-C and SIGTERM: commands clean up and leave; what a person sees of a record is seen whole, and counted."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from typing import Final, NoReturn, Self

GRACE_S: Final = 1.0
"""How long a record may delay the end after a signal: writing to a pipe that is not read blocks for ever."""
_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


def _stop(number: int) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def end_on_sigterm() -> None:
    """Let SIGTERM be raised where the process is, as Ctrl-C is, unless it has another handler."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop_on_signal)


def leave_full_pipe() -> None:
    """Once it is time to end, do not wait for a reader that does not read: not here, nor when Python flushes."""
    with contextlib.suppress(OSError, ValueError):  # no file at all, as in a test
        output = sys.stdout.fileno()
        if not select.select([], [output], [], 0)[1]:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)


class WholeRecords:
    """Both signals wait until `obey` is called, between two records: what was written and what not is then known.

    A second signal does not wait, nor does the first for longer than a moment. In a thread that gets no signals this
    does nothing.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*_NUMBERS, signal.SIGALRM):
                if number == signal.SIGALRM or signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given

    def obey(self) -> None:
        """End here if a signal has arrived."""
        if self._asked is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _stop(self._asked)

    def _take(self, number: int, _frame: object) -> None:
        if self._asked is None and number != signal.SIGALRM:
            self._asked = number
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
            return
        _stop(self._asked or number)


def _stop_on_signal(number: int, _frame: object) -> None:
    _stop(number)

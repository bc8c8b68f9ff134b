"""Ctrl-C and SIGTERM: commands clean up and exit; a record is printed whole, and then counted as read."""

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
    # A program that embeds the command line, or nohup, may have set a handler that must stay.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop_on_signal)


def leave_full_pipe() -> None:
    """Once it is time to end, do not wait for a reader that does not read: not here, nor when Python flushes."""
    with contextlib.suppress(OSError, ValueError):  # no file at all, as in a test
        output = sys.stdout.fileno()
        # Not writable means full: a flush at exit would block for as long as the reader sleeps.
        if not select.select([], [output], [], 0)[1]:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)


class WholeRecords:
    """Defers both signals until `raise_pending` is called between two records, where it is certain what was written.

    A second signal is not deferred, and the first for GRACE_S at most. Outside of the main thread, which alone gets
    signals, this does nothing.
    """

    def __init__(self) -> None:
        self._pending: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*_NUMBERS, signal.SIGALRM):
                # `nohup` and shells ignore SIGINT for background jobs; that must stay so.
                if number == signal.SIGALRM or signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            # The alarm must not fire after the handlers are restored: its default ends the process.
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given

    def raise_pending(self) -> None:
        """End here if a signal has arrived."""
        if self._pending is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _stop(self._pending)

    def _take(self, number: int, _frame: object) -> None:
        if self._pending is None and number != signal.SIGALRM:
            self._pending = number
            # A write to a full pipe never reaches `raise_pending`; the alarm interrupts it.
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
            return
        _stop(self._pending or number)


def _stop_on_signal(number: int, _frame: object) -> None:
    _stop(number)

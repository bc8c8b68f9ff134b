"""Ctrl-C and SIGTERM: commands clean up and leave; what a person sees of a record is seen whole, and counted."""

from __future__ import annotations

import signal
import threading
from typing import Final, NoReturn, Self

GRACE_S: Final = 1.0
"""How long a record may take to be written once somebody has asked to end: a pipe that nobody reads takes for ever."""
_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


def _stop(number: int) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def end_on_sigterm() -> None:
    """Let SIGTERM be raised where the process is, as Ctrl-C is, unless somebody else wants it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: _stop(number))


class WholeRecords:
    """Between `begins` and `ends` both signals wait: who reads in a group must know what was written and what not.

    A second signal does not wait, nor does the first for longer than a moment. In a thread that gets no signals this
    does nothing.
    """

    def __init__(self) -> None:
        self._busy = False
        self._asked: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*_NUMBERS, signal.SIGALRM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None) or number == signal.SIGALRM:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given

    def begins(self) -> None:
        """A record is about to be written."""
        self._busy = True

    def ends(self) -> None:
        """It was; whoever has asked meanwhile is obeyed."""
        self._busy = False
        if self._asked is not None:
            _stop(self._asked)

    def _take(self, number: int, _frame: object) -> None:
        if self._busy and self._asked is None and number != signal.SIGALRM:
            self._asked = number
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
            return
        self._busy = False
        _stop(self._asked or number)

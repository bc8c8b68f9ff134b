"""An event loop that handles our connections while it waits, so that a turn needs one wait and not two.

asyncio wraps every ready socket in a handle, and what is scheduled meanwhile runs only after another poll of the
sockets. Here the loop's selector calls the connections itself as soon as the wait is over, ends the turn, and returns
to asyncio what is asyncio's. Timers, tasks and signals are untouched; any other loop works too, at a higher cost.
"""

import asyncio
import contextlib
import math
import select
from collections.abc import Callable, Mapping
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from time import monotonic
from typing import TYPE_CHECKING, Any

from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.net.loop_turn import LoopTurn

log = get_logger("net")

TurnCallback = Callable[[], None]
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT

TURNS_MAX = 64
"""Turns that may follow one another before asyncio runs its own part, such as removing cancelled timers."""


TURNS = (True, *([False] * 31)) * (TURNS_MAX // 32)
"""Whether a turn of a row is timed: reading the clock at the start of each would cost every request."""


class _SocketCallbacks:
    """What to call when a connection can be read or written."""

    __slots__ = ("applied", "read", "write")

    def __init__(self) -> None:
        self.read: TurnCallback | None = None
        self.write: TurnCallback | None = None
        self.applied = 0
        """The mask that is registered with the kernel."""

    @property
    def mask(self) -> int:
        return (_IN if self.read is not None else 0) | (_OUT if self.write is not None else 0)


class Poller(BaseSelector):
    """The selector of a `TurnLoop`; connections use `add_reader` and its siblings as they would asyncio's."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}
        self._watched: dict[int, _SocketCallbacks] = {}
        self._changed: set[int] = set()
        """Descriptors whose mask differs from the kernel's; applied before the next wait, so that a change and its
        opposite cost no system call."""
        self.turn: LoopTurn | None = None
        self.loop: Any = None
        """The event loop whose timers and callbacks end a row of turns; without it each wait is one turn."""
        self.dispatching: list[tuple[int, int]] | None = None
        """The ready sockets while their connections are called: a new list for every turn, which then ends without
        being scheduled."""
        self._ready_max = 1
        """How many sockets may be ready: counted when one is added or removed, and not for every wait."""
        self.on_turn: Callable[[float, int, bool], None] = _ignore_turn
        """Called with the seconds, the ready sockets and whether records were written, for one turn in 32 of a row."""

    # Our connections

    def add_reader(self, fd: int, callback: TurnCallback) -> None:
        """Call back whenever `fd` can be read."""
        watch = self._watched.get(fd) or self._watch(fd)
        watch.read = callback
        self._change(fd, watch)

    def add_writer(self, fd: int, callback: TurnCallback) -> None:
        """Call back whenever `fd` can be written."""
        watch = self._watched.get(fd) or self._watch(fd)
        watch.write = callback
        self._change(fd, watch)

    def remove_reader(self, fd: int) -> None:
        """Read no more for now."""
        watch = self._watched.get(fd)
        if watch is not None:
            watch.read = None
            self._change(fd, watch)

    def remove_writer(self, fd: int) -> None:
        """Nothing waits to be written."""
        watch = self._watched.get(fd)
        if watch is not None:
            watch.write = None
            self._change(fd, watch)

    def _watch(self, fd: int) -> _SocketCallbacks:
        watch = self._watched[fd] = _SocketCallbacks()
        self._count_watched()
        return watch

    def _count_watched(self) -> None:
        self._ready_max = len(self._keys) + len(self._watched) or 1

    def _change(self, fd: int, watch: _SocketCallbacks) -> None:
        mask = watch.mask
        if not mask:
            # At once: the descriptor may be closed next, and its number be another connection's.
            del self._watched[fd]
            self._count_watched()
            self._changed.discard(fd)
            self._epoll.unregister(fd)
        elif not watch.applied:
            self._epoll.register(fd, mask)
            watch.applied = mask
        elif mask != watch.applied:
            self._changed.add(fd)

    def _apply_changes(self) -> None:
        for fd in self._changed:
            watch = self._watched[fd]
            mask = watch.mask
            if mask != watch.applied:
                self._epoll.modify(fd, mask)
                watch.applied = mask
        self._changed.clear()

    # The wait

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Wait, handle our connections, end the turn; returns what asyncio watches itself.

        Turns that concern only our connections follow one another here: asyncio is given its turn when something of
        its own is ready or due, and every so often.
        """
        turn, loop = self.turn, self.loop
        if turn is not None and turn.scheduled:
            # What was staged outside of a wait borrows receive buffers: write it before they are read into again.
            turn.end()
        if loop is None or (timeout is not None and timeout <= 0):
            return self._turn(-1 if timeout is None else timeout, timed=False)[1]
        timers = loop._scheduled
        # asyncio computed `timeout` from this timer; a connection that sets an earlier one ends the row of turns.
        first = timers[0] if timers else None
        due = math.inf if timeout is None else monotonic() + timeout
        for timed in TURNS:
            handled, ready = self._turn(-1 if timeout is None else timeout, timed)
            if not handled:
                break
            now = monotonic()
            if timed and turn is not None:
                self.on_turn(now - turn.began, handled, bool(turn.wrote))
            if ready or loop._ready or loop._stopping or (timers[0] if timers else None) is not first:
                break
            if timeout is not None:
                timeout = due - now
                if timeout <= 0:
                    break
        return ready

    def _turn(self, timeout: float, timed: bool) -> tuple[int, list[tuple[SelectorKey, int]]]:
        """One wait; how many sockets were ready, and which of them are asyncio's."""
        if self._changed:
            self._apply_changes()
        ready: list[tuple[SelectorKey, int]] = []
        watched = self._watched
        try:
            events = self._epoll.poll(timeout, self._ready_max)
        except InterruptedError:
            return 0, ready
        turn = self.turn
        self.dispatching = events
        if timed and turn is not None:
            turn.wrote = False
            turn.note_began(monotonic())
        try:
            for fd, event in events:
                watch = watched.get(fd)
                if watch is None:
                    # asyncio's, or a connection that an earlier one of this wait closed.
                    key = self._keys.get(fd)
                    if key is not None:
                        # As asyncio's own selector: an error or hang-up is reported as readable and writable.
                        mask = (EVENT_READ if event & ~_OUT else 0) | (EVENT_WRITE if event & ~_IN else 0)
                        ready.append((key, mask & key.events))
                    continue
                try:
                    if event & ~_IN and watch.write is not None:
                        watch.write()
                    # Writing may have closed it, and a connection accepted since may have the same number.
                    if event & ~_OUT and watch.read is not None and watched.get(fd) is watch:
                        watch.read()
                except Exception as error:  # noqa: BLE001 - one connection's bug must not stop the loop
                    log.failure("connection handler failed", error, peer=_peer_address(watch))
        finally:
            self.dispatching = None
        if turn is not None and turn.scheduled:
            turn.end()
        return len(events), ready

    # The interface of a selector, for asyncio

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Watch something for asyncio."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is registered already")
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        self._count_watched()
        self._epoll.register(fd, (_IN if events & EVENT_READ else 0) | (_OUT if events & EVENT_WRITE else 0))
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        """Watch it no longer."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys.pop(fd)
        self._count_watched()
        with contextlib.suppress(OSError):  # closed before it was unregistered
            self._epoll.unregister(fd)
        return key

    def get_map(self) -> Mapping[Any, SelectorKey]:
        """What asyncio watches, by descriptor."""
        return self._keys

    def get_key(self, fileobj: Any) -> SelectorKey:
        """What is known of one descriptor; KeyError when nothing is."""
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def close(self) -> None:
        """Watch nothing more."""
        self._epoll.close()
        self._keys.clear()
        self._watched.clear()


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a `Poller` inside."""

    def __init__(self) -> None:
        self.poller = Poller()
        super().__init__(self.poller)
        self.poller.loop = self


def _ignore_turn(_seconds: float, _sockets: int, _wrote: bool) -> None:
    """The default of `on_turn`."""


def _peer_address(watch: _SocketCallbacks) -> tuple[str, int] | None:
    """The peer of the connection whose callbacks these are; None for one that is closed, or is no channel."""
    owner = getattr(watch.read or watch.write, "__self__", None)
    return getattr(owner, "peer_address", None)

"""The network of a simulation: connections whose bytes arrive late, in order per direction, or not at all.

What TCP promises holds: bytes of one direction keep their order, none is lost unless the connection is. A cut path
holds bytes back; when it heals in time they arrive, otherwise the connection breaks at the end that has waited too
long. A machine without power answers nothing, a machine whose process died answers with a reset.
"""

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any

from simulation.loop import Handle, Process, SimLoop

GIVE_UP_S = 20.0
"""How long bytes are sent again before a connection is given up."""
WINDOW_BYTES = 256 * 1024
"""What an end takes before its peer has read."""


class End(ABC):
    """One end of a connection."""

    def __init__(self, net: "SimNet", process: Process, number: int) -> None:
        self.net = net
        self.process = process
        self.number = number
        self.peer: End
        self.closed = False
        self.fin_sent = False
        self.mute = False
        """Whether the other end hears nothing of this one any more."""
        self.arrives_at = 0.0
        """When the last bytes this end sent arrive."""
        self.held: list[tuple[str, bytes]] = []
        """What this end sent while the path was cut."""
        self.in_flight = 0
        self.encrypted = False
        """Whether this end began TLS."""

    @property
    def host(self) -> str:
        """Where it is."""
        return self.process.host

    def send(self, data: bytes) -> None:
        """Let bytes travel."""
        self.in_flight += len(data)
        self.net.carry(self, "data", data)

    def shut(self) -> None:
        """Say that nothing more comes."""
        if not self.fin_sent and not self.closed:
            self.fin_sent = True
            self.net.carry(self, "fin", b"")

    def drop(self, *, notify_peer: bool = True) -> None:
        """Close; the other end gets a FIN or a reset unless this machine has lost its power."""
        if not self.closed:
            self.closed = True
            if notify_peer:
                self.net.carry(self, "reset" if not self.fin_sent else "fin", b"")

    # What arrives; the kinds of ends differ in what they do with it.

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Bytes of the peer are here."""

    @abstractmethod
    def on_fin(self) -> None:
        """The peer sends nothing more."""

    @abstractmethod
    def on_reset(self, error: OSError) -> None:
        """The connection is no more."""

    @abstractmethod
    def on_window_open(self) -> None:
        """The peer has read what this end sent."""


class SimTransport(End):
    """An end as an asyncio transport."""

    protocol: Any = None
    """Set once the connection is established."""
    extra: dict[str, Any]

    def write(self, data: Any) -> None:
        """Send."""
        if not self.closed:
            self.send(bytes(data))

    def writelines(self, parts: Any) -> None:
        """Send several parts."""
        self.write(b"".join(parts))

    def set_protocol(self, protocol: Any) -> None:
        """Let another protocol receive what arrives from now on."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """Whether it has ended."""
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Addresses."""
        return self.extra.get(name, default)

    def pause_reading(self) -> None:
        """Nothing to do: what arrives has arrived."""

    def resume_reading(self) -> None:
        """Nothing to do."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There are none."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits here."""
        return 0

    def can_write_eof(self) -> bool:
        """Yes."""
        return True

    def write_eof(self) -> None:
        """Send a FIN."""
        self.shut()

    def abort(self) -> None:
        """Break the connection."""
        self._finish(None, notify_peer=True)

    def close(self) -> None:
        """End the connection."""
        self.shut()
        self._finish(None, notify_peer=True)

    def _force_close(self, error: Exception | None) -> None:
        """End the connection for an error that asyncio's TLS has met."""
        self._finish(error, notify_peer=True)

    def _finish(self, error: Exception | None, *, notify_peer: bool) -> None:
        if not self.closed:
            self.drop(notify_peer=notify_peer)
            self.net.loop.call_in(self.process, 0.0, self.protocol.connection_lost, error)

    def receive(self, data: bytes) -> None:
        """Hand bytes to the protocol."""
        self.net.read(self, len(data))
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        rest = memoryview(data)
        while rest and not self.closed:
            space = memoryview(self.protocol.get_buffer(len(rest)))
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self.protocol.buffer_updated(count)
            rest = rest[count:]

    def on_fin(self) -> None:
        """The peer is done, and so are we; perhaps before there is a protocol."""
        if self.protocol is None:
            self.drop(notify_peer=True)
            return
        keep = self.protocol.eof_received() if hasattr(self.protocol, "eof_received") else None
        if not keep:
            self.close()

    def on_reset(self, error: OSError) -> None:
        """Tell the protocol, if there is one yet."""
        if self.protocol is not None:
            self._finish(error, notify_peer=False)
        else:
            self.drop(notify_peer=False)

    def on_window_open(self) -> None:
        """Nothing waits here."""


class SimSocket(End):
    """An end as the server's channels know it: a socket that does not block."""

    def __init__(
        self, net: "SimNet", process: Process, number: int, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__(net, process, number)
        self.local = local
        self.remote = remote
        self.inbox = bytearray()
        self.eof = False
        self.error: OSError | None = None
        self.reader: Handle | None = None
        self.writer: Handle | None = None
        self.waking = False

    def fileno(self) -> int:
        """A number that stands for this socket."""
        return self.number

    def getsockname(self) -> tuple[str, int]:
        """This end's address."""
        return self.local

    def getpeername(self) -> tuple[str, int]:
        """The other end's address."""
        return self.remote

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def getsockopt(self, *_: Any) -> int:
        """Nothing was set."""
        return 0

    def setblocking(self, _: bool) -> None:
        """Never blocks."""

    def recv(self, size: int) -> bytes:
        """Read what has arrived; for TLS, which decrypts it."""
        space = memoryview(bytearray(size))
        return bytes(space[: self.recv_into(space)])

    def recv_into(self, view: memoryview) -> int:
        """Read what has arrived."""
        if self.error is not None:
            raise self.error
        if not self.inbox:
            if self.eof:
                return 0
            raise BlockingIOError
        count = min(len(view), len(self.inbox))
        view[:count] = self.inbox[:count]
        del self.inbox[:count]
        self.net.read(self, count)
        return count

    def send(self, data: Any, _flags: int = 0) -> int:  # type: ignore[override]
        """Send as much as there is room for."""
        if self.error is not None:
            raise self.error
        free = WINDOW_BYTES - self.in_flight
        if free <= 0:
            raise BlockingIOError
        piece = bytes(data[:free])
        super().send(piece)
        return len(piece)

    def shutdown(self, _how: int) -> None:
        """Send a FIN."""
        if self.error is not None:
            raise self.error
        self.shut()

    def close(self) -> None:
        """End it; unread bytes turn the FIN into a RST."""
        self.net.sockets.pop(self.number, None)
        self.drop()

    def receive(self, data: bytes) -> None:
        """Keep bytes until they are read."""
        self.inbox += data
        self.wake()

    def on_fin(self) -> None:
        """The peer sends nothing more."""
        self.eof = True
        self.wake()

    def on_reset(self, error: OSError) -> None:
        """Reading and writing fail from now on."""
        self.error = error
        self.wake()
        self.on_window_open()

    def on_window_open(self) -> None:
        """Call the writer."""
        if self.writer is not None and (self.in_flight < WINDOW_BYTES or self.error is not None):
            self.net.loop.call_in(self.process, 0.0, self._call_writer)

    def _call_writer(self) -> None:
        writer = self.writer
        if writer is not None and writer.callback is not None and not self.closed:
            writer.callback(*writer.args)
            self.on_window_open()

    @property
    def readable(self) -> bool:
        """Whether reading would not block."""
        return bool(self.inbox) or self.eof or self.error is not None

    def wake(self) -> None:
        """Have the reader called as long as there is something to read."""
        if self.reader is not None and not self.waking and self.readable:
            self.waking = True
            self.net.loop.call_in(self.process, 0.0, self._call_reader)

    def _call_reader(self) -> None:
        self.waking = False
        reader = self.reader
        if reader is not None and reader.callback is not None and not self.closed and self.readable:
            reader.callback(*reader.args)
            if not self.closed:
                self.wake()


class SimListener:
    """A listening socket."""

    def __init__(self, net: "SimNet", process: Process, number: int, address: tuple[str, int]) -> None:
        self.net = net
        self.process = process
        self.number = number
        self.address = address
        self.backlog: list[SimSocket] = []
        self.reader: Handle | None = None
        self.writer: Handle | None = None

    def fileno(self) -> int:
        """A number that stands for it."""
        return self.number

    def getsockname(self) -> tuple[str, int]:
        """Where it listens."""
        return self.address

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        """The next connection."""
        if not self.backlog:
            raise BlockingIOError
        sock = self.backlog.pop(0)
        return sock, sock.remote

    def wake(self) -> None:
        """Have connections accepted."""
        if self.reader is not None and self.backlog:
            self.net.loop.call_in(self.process, 0.0, self._call_reader)

    def _call_reader(self) -> None:
        reader = self.reader
        if reader is not None and reader.callback is not None and self.backlog:
            reader.callback(*reader.args)

    def close(self) -> None:
        """Listen no more."""
        self.net.sockets.pop(self.number, None)
        if self.net.listeners.get(self.address) is self:
            del self.net.listeners[self.address]
        for sock in self.backlog:
            sock.close()
        self.backlog.clear()


class SimNet:
    """All machines, the paths between them, and what is on its way."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.sockets: dict[int, Any] = {}
        self.ends: dict[int, End] = {}
        self.dark: set[str] = set()
        """Machines without power."""
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): what travels that way is held back."""
        self.slow: dict[tuple[str, str], float] = {}
        """(from, to): seconds added at most."""
        self.base_delay = random.uniform(0.0001, 0.002)
        self.reset_chance = 0.0
        self._numbers = 1000
        self._ports = 20000

    # --- paths -------------------------------------------------------------------------------------------------------

    def delay(self, source: str, target: str) -> float:
        """How long something takes from one machine to another, this time."""
        extra = self.slow.get((source, target))
        chance = self.random.random()
        return self.base_delay * (0.5 + chance) + (extra * chance * chance if extra else 0.0)

    def open_path(self, source: str, target: str) -> bool:
        """Whether bytes get through."""
        return (source, target) not in self.cuts and source not in self.dark and target not in self.dark

    def cut(self, source: str, target: str) -> None:
        """Hold back what travels one way."""
        self.cuts.add((source, target))

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Let paths carry again: one, or all."""
        if source is None or target is None:
            self.cuts.clear()
        else:
            self.cuts.discard((source, target))
        for end in list(self.ends.values()):
            if end.held and self.open_path(end.host, end.peer.host):
                held, end.held = end.held, []
                for kind, data in held:
                    self.carry(end, kind, data)

    def forget(self, end: End) -> None:
        """Break one end of a connection; the other one hears nothing of it, now or later."""
        end.mute = True
        error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        self.loop.call_in(end.process, 0.0, self._on_broken, end, error)

    def carry(self, end: End, kind: str, data: bytes) -> None:
        """Let something travel from an end to its peer."""
        if end.mute:
            return
        source, target = end.process.host, end.peer.process.host
        if end.held or not self.open_path(source, target):
            if not end.held:
                self.loop.call_in(self.loop.outside, GIVE_UP_S, self._give_up, end)
            end.held.append((kind, data))
            return
        if self.reset_chance and kind == "data" and source != target and self.random.random() < self.reset_chance:
            self.reset(end)
            return
        loop = self.loop
        when = max(loop.time() + self.delay(source, target), end.arrives_at)
        end.arrives_at = when
        # Not by a delay: `now + (when - now)` may round below the time of bytes that were sent before.
        loop.call_in_at(end.peer.process, when, self._arrive, end, kind, data)

    def _arrive(self, end: End, kind: str, data: bytes) -> None:
        peer = end.peer
        # What is encrypted is never the same twice; how much it is must be.
        encrypted = end.encrypted or peer.encrypted
        self.loop.add_to_digest(b"%d" % len(data) if encrypted and data else data or kind.encode())
        if peer.closed:
            return
        if kind == "data":
            peer.receive(data)
        elif kind == "fin":
            peer.on_fin()
        else:
            self.ends.pop(peer.number, None)
            peer.on_reset(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _give_up(self, end: End) -> None:
        if end.held:
            end.held.clear()
            self._break(end)

    def _break(self, end: End) -> None:
        if not end.closed and end.process.alive:
            error = ConnectionResetError(errno.ETIMEDOUT, "Connection timed out")
            self.loop.call_in(end.process, 0.0, self._on_broken, end, error)

    def _on_broken(self, end: End, error: OSError) -> None:
        if not end.closed:
            end.on_reset(error)

    def reset(self, end: End) -> None:
        """Break a connection at both ends, not at the same instant."""
        for one in (end, end.peer):
            one.mute = True  # bytes behind those that were lost must not arrive before the reset does
            if not one.closed and one.process.alive:
                error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
                self.loop.call_in(one.process, self.delay(end.host, end.peer.host), self._on_broken, one, error)

    def read(self, end: End, count: int) -> None:
        """An end has read bytes: its peer may send as many."""
        peer = end.peer
        peer.in_flight -= count
        if peer.in_flight + count >= WINDOW_BYTES:
            peer.on_window_open()

    # --- connecting --------------------------------------------------------------------------------------------------

    async def connect(
        self, process: Process, factory: Callable[[], Any], host: str, port: int, *, encrypted: bool = False
    ) -> tuple[Any, Any]:
        """A connection to a listener, as `loop.create_connection` makes one."""
        loop = self.loop
        attempt: asyncio.Future[Any] = loop.create_future()
        loop.call_in(
            loop.outside, self.delay(process.host, host), self._attempt_connect, attempt, process, (host, port), 1.0
        )
        transport: SimTransport = await attempt
        transport.encrypted = encrypted
        protocol = factory()
        transport.protocol = protocol
        protocol.connection_made(transport)
        if transport.closed:  # it ended before the connect callback ran
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            loop.call_in(process, 0.0, protocol.connection_lost, error)
        return transport, protocol

    def _attempt_connect(
        self, attempt: "asyncio.Future[Any]", process: Process, address: tuple[str, int], again_s: float
    ) -> None:
        host = address[0]
        if attempt.done() or not process.alive:
            return
        if not self.open_path(process.host, host) or not self.open_path(host, process.host):
            if again_s < GIVE_UP_S:
                self.loop.call_in(
                    self.loop.outside, again_s, self._attempt_connect, attempt, process, address, 2 * again_s
                )
            return
        listener = self.listeners.get(address)
        back = self.delay(host, process.host)
        if listener is None:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            self.loop.call_in(process, back, self._complete, attempt, None, refused)
            return
        self._ports += 1
        near = SimTransport(self, process, self._number())
        local = (process.host, self._ports)
        far = SimSocket(self, listener.process, self._number(), address, local)
        near.peer, far.peer = far, near
        near.extra = {"peername": address, "sockname": local, "socket": None}
        self.ends[near.number] = near
        self.ends[far.number] = far
        self.sockets[far.number] = far
        listener.backlog.append(far)
        listener.wake()
        self.loop.call_in(process, back, self._complete, attempt, near, None)

    def _complete(self, attempt: "asyncio.Future[Any]", near: SimTransport | None, error: OSError | None) -> None:
        if attempt.done():
            if near is not None:
                near.drop()
        elif error is not None:
            attempt.set_exception(error)
        else:
            attempt.set_result(near)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- the server's side -------------------------------------------------------------------------------------------

    def listen(self, process: Process, host: str, port: int) -> SimListener:
        """A listening socket of a process."""
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = SimListener(self, process, self._number(), (host, port))
        self.listeners[host, port] = listener
        self.sockets[listener.number] = listener
        return listener

    def watch(self, number: int, kind: str, handle: Handle | None) -> bool:
        """Set or take away who is called when a socket can be read or written."""
        sock = self.sockets.get(number)
        if sock is None:
            return False
        had = getattr(sock, kind) is not None
        setattr(sock, kind, handle)
        if handle is not None:
            if kind == "reader":
                sock.wake()
            else:
                sock.on_window_open()
        return had

    # --- processes ---------------------------------------------------------------------------------------------------

    def on_process_ended(self, process: Process, *, notify_peer: bool) -> None:
        """A process is gone: its machine resets what it held, unless it went with the machine."""
        for listener in [candidate for candidate in self.listeners.values() if candidate.process is process]:
            listener.close()
        for end in [candidate for candidate in self.ends.values() if candidate.process is process]:
            end.drop(notify_peer=notify_peer)
            del self.ends[end.number]
            self.sockets.pop(end.number, None)

    def power_back(self, host: str) -> None:
        """A machine runs again: peers of its old connections get a reset."""
        self.dark.discard(host)
        for end in list(self.ends.values()):
            if end.peer.process.host == host and end.peer.closed and not end.closed:
                end.held.clear()
                error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
                self.loop.call_in(end.process, self.delay(host, end.host), self._on_broken, end, error)

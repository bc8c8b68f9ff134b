"""One client connection: bytes in, frames to the handler, replies out in request order.

Requests of one connection are handled as they arrive; a reply that is not ready yet holds back those behind it. While
the peer does not read its replies, or too many requests wait, the connection is not read: TCP then slows the peer down.
"""

import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from klamm.net.file_region import FileRegion, RegionRest, ReplyPart
from klamm.net.sockets import set_receive_low_water, strip_mapping
from klamm.protocol.framing import LARGE_BYTES, BorrowedFrames
from klamm.security.core.principal import ANONYMOUS
from klamm.telemetry.log import Level, get_logger
from klamm.telemetry.request_times import ApiTimes

if TYPE_CHECKING:
    from klamm.net.server import NetServer

log = get_logger("net")

REQUEST_BYTES_MIN = 8
"""API key, version and correlation id: less is no request."""

BUFFER_IDLE_BYTES_MAX = 128 * 1024
"""A larger receive buffer than this is given back when the connection has been quiet for a while."""

IN_FLIGHT_MAX = 512
"""Requests of one connection that may wait for their replies; past it the connection is not read."""

REPLIES_PER_TURN_MAX = 128
"""Queued replies after which they are sent; small requests can have large replies, and many fit in a buffer."""

SEND_BYTES_PER_TURN = 4 * 1024 * 1024
"""What one connection may send before others are served; a consumer with fast disks would keep the loop for itself."""


class FrameHandler(Protocol):
    """What handles each whole frame; it replies through the channel, at once or later."""

    def handle(self, channel: "Channel", view: memoryview, start: int, end: int) -> None:
        """Handle the frame in `view[start:end]`, which is borrowed until the turn ends."""

    def on_closed(self, channel: "Channel") -> None:
        """Drop the state of a connection that is closed."""


class Slot:
    """A place in the order of replies, filled later."""

    __slots__ = ("_began", "_channel", "_request_began", "_times", "parts")

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._times: ApiTimes | None = None
        self._began = self._request_began = 0.0
        self.parts: Sequence[ReplyPart] | None = None

    def begin(self, times: ApiTimes | None, now: float, request_began: float) -> None:
        """Count the time from now until `send` as one in which the reply had to wait."""
        self._times = times
        self._began = now
        self._request_began = request_began

    def send(self, parts: Sequence[ReplyPart]) -> None:
        """Fill the place; an empty sequence means that no reply is owed after all."""
        self.parts = parts
        channel = self._channel
        if self._times is not None:
            now = channel.now()
            self._times.observe_reply(now - self._began, now - self._request_began)
        channel.on_slot_filled()

    def abandon(self) -> None:
        """Close the connection because the reply cannot be made: all replies behind it would wait for ever."""
        self._channel.close("a reply could not be made")


class Channel:
    """A connection with its receive buffer and its queue of replies."""

    __slots__ = (
        "_awaiting_large",
        "_awaiting_write",
        "_blocked_at",
        "_fd",
        "_finishing",
        "_handled_turn",
        "_held",
        "_leaving",
        "_low_water",
        "_muted_until",
        "_out",
        "_reading",
        "_received",
        "_server",
        "_slots",
        "_sock",
        "_turn",
        "active_tick",
        "closed",
        "context",
        "dirty",
        "handler",
        "listener",
        "local_address",
        "now",
        "peer_address",
        "principal",
        "request_began",
        "state",
        "times",
    )

    def __init__(self, server: "NetServer", sock: socket.socket, listener: str, context: object) -> None:
        self._server = server
        self._turn = server.turn
        # The turn whose write may borrow frames of the receive buffer; at first one that has ended.
        self._handled_turn = server.turn.number - 1
        self._sock = sock
        # Kept: `fileno` of a closed socket is -1, and the watcher must be given the number it was registered with.
        self._fd = sock.fileno()
        self._received = BorrowedFrames(REQUEST_BYTES_MIN, server.config.request_bytes_max)
        self._out: list[ReplyPart] = []
        self._slots: deque[Slot] = deque()
        self._reading = False
        self._awaiting_large = False  # the rest of a large frame
        self._awaiting_write = False
        self._leaving = False
        self._finishing = False
        self._held = False
        self._low_water = 0
        self._muted_until = 0.0
        self.dirty = False
        self.closed = False
        self.active_tick = 0
        self.handler = server.handler
        """What handles the frames of this connection; replaced when it has logged in."""
        self.principal = ANONYMOUS
        self.listener = listener
        self.context = context
        self.local_address: tuple[str, int] = sock.getsockname()[:2]
        host, port = sock.getpeername()[:2]
        self.peer_address: tuple[str, int] = (strip_mapping(host), port)
        self.state: Any = None  # what the handler remembers of this connection
        self.times: ApiTimes | None = None
        """The times of the API whose request is being handled, for replies that are made later."""
        self._blocked_at = 0.0
        self.now = server.loop.time
        self.request_began = 0.0
        """When the request that is being handled was read; 0 for one on a quick path."""

    def limit_frames(self, size_min: int, size_max: int) -> None:
        """Accept frames of these sizes only: before the login smaller ones than after it."""
        self._received.limit(size_min, size_max)

    # Reading

    def start(self) -> None:
        """Begin to read."""
        self._reading = True
        self._server.watcher.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        turn = self._turn
        if turn.scheduled and turn.number == self._handled_turn:
            # `resume_reading` handled frames in this turn. Handlers borrow them until the write, and a read would
            # overwrite them; the socket is still readable after it.
            return
        received = self._received
        # One read a turn, also when more has come: other connections have their share of the turn.
        try:
            count = self._sock.recv_into(received.free_space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(f"reading failed: {error.strerror}")
            return
        if not count:
            self._finish()
            return
        received.add(count)
        self.active_tick = self._server.tick
        self._handle_frames()

    def _handle_frames(self) -> None:
        received = self._received
        handle = self.handler.handle
        frames = received.take_frames()
        view = received.view  # `free_space` may replace the buffer, but not before the next read
        self._handled_turn = self._turn.number
        for start, end in frames:
            handle(self, view, start, end)
            if self.closed:
                return
            if not self._reading or len(self._slots) > IN_FLIGHT_MAX or len(self._out) > REPLIES_PER_TURN_MAX:
                # Backpressure, also when `handle` paused the connection: the frames behind stay in the buffer.
                received.put_back(end)
                self.pause_reading()
                return
        # After the whole frames before it: their requests are sound, and their replies are queued.
        if received.problem:
            self.close(received.problem)
        # A large frame on its way: one wake-up when all of it is there instead of one per segment.
        elif received.lacking >= LARGE_BYTES or self._awaiting_large:
            self._follow_large_frame(completed=bool(frames) or not received.lacking)

    def _follow_large_frame(self, *, completed: bool) -> None:
        """Reserve memory for a large frame on its way, or return it; without memory left the connection waits."""
        received, memory = self._received, self._server.request_memory
        is_large = received.lacking >= LARGE_BYTES
        if memory is not None:
            if completed:
                self._server.release_memory(self)
            if is_large and not memory.take(self, received.pending + received.lacking):
                self.pause_reading()
                return
        # Also for the last bytes of the frame, which are less than a large frame lacks.
        self._awaiting_large = is_large or (self._awaiting_large and not completed)
        self._set_low_water()

    def _set_low_water(self) -> None:
        size = self._received.low_water
        if size != self._low_water:
            self._low_water = size
            set_receive_low_water(self._sock, size or 1)

    def pause_reading(self) -> None:
        """Take no more requests for now."""
        if self._reading and not self.closed:
            self._reading = False
            self._server.watcher.remove_reader(self._fd)

    def hold(self) -> None:
        """Handle no further request until `release`: the one being handled takes several turns to be read."""
        self._held = True
        self.pause_reading()

    def release(self) -> None:
        """Continue with the requests behind the one that was held for."""
        self._held = False
        if not self.closed:
            self.resume_reading()

    def mute(self, throttle_ms: int) -> None:
        """Handle no further request for a while; replies are sent (KIP-219)."""
        loop = self._server.loop
        until = loop.time() + throttle_ms / 1000
        if self.closed or until <= self._muted_until:
            return
        self._muted_until = until
        self.pause_reading()
        # The frames behind this one are not looked at before the time is over: a large one must not keep its memory.
        if self._server.request_memory is not None:
            self._server.release_memory(self)
        loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        # A later `mute` may have prolonged the time; its own timer follows. Timers may fire a clock tick early.
        if self._muted_until and self._server.loop.time() >= self._muted_until - 0.001:
            self._muted_until = 0.0
            if not self.closed:
                self.resume_reading()

    def resume_reading(self) -> None:
        """Take requests again if no other reason to pause is left; replies leave when the turn ends."""
        if self._held:
            return
        # The end of the input was read before the pause: no request follows, only the last replies.
        if self._finishing:
            self._finish()
            return
        if self._leaving:
            self._shut_down_sending()
            return
        if self._muted_until:
            return
        # Half of the limit, so that a connection at its limit is not paused and resumed with every reply.
        if self._reading or self.closed or self._out or len(self._slots) > IN_FLIGHT_MAX // 2:
            return
        self.start()
        # Also when no byte is left: the low-water mark may still be that of the frame before the pause.
        self._handle_frames()

    def shrink(self) -> None:
        """Free a grown buffer; called when the connection has been quiet."""
        self._received.shrink(BUFFER_IDLE_BYTES_MAX)

    def count_queued(self) -> int:
        """Return how many whole requests have come and are not handled, because the connection is held or muted."""
        return 0 if self._reading or self.closed else self._received.count_frames()

    def queue_seconds(self, now: float) -> float:
        """Return how long this turn has been going on, as far as its start is known."""
        return now - self._turn.note_began(now)

    @property
    def last_turn(self) -> int:
        """The turn in which the last request came, or in which the connection was opened."""
        return self._handled_turn

    @property
    def idle(self) -> bool:
        """Whether no request is being handled; replies that the peer does not read do not keep the connection open.

        A peer that has ended its input is most often gone, so requests it still waits for do not keep it open either.
        """
        return not self._slots or self._finishing

    # Replying

    def reply(self, part: ReplyPart) -> None:
        """Queue the whole reply to the request being handled; it leaves when the turn ends."""
        if self._slots:  # replies leave in request order: this one waits behind those that are not ready
            slot = Slot(self)
            slot.parts = (part,)
            self._slots.append(slot)
            return
        self._out.append(part)
        if not self.dirty:
            self.dirty = True
            self._turn.mark(self)

    def reply_parts(self, parts: Sequence[ReplyPart]) -> None:
        """Queue a reply made of several parts, some of which may be regions of files."""
        if self._slots:
            slot = Slot(self)
            slot.parts = parts
            self._slots.append(slot)
            return
        self._out.extend(parts)
        if not self.dirty:
            self.dirty = True
            self._turn.mark(self)

    def defer(self) -> Slot:
        """Reserve the place of a reply that is made later."""
        slot = Slot(self)
        now = self.now()
        slot.begin(self.times, now, self.request_began or now)
        self._slots.append(slot)
        return slot

    def on_slot_filled(self) -> None:
        """Move replies that are ready and next in order to the queue."""
        slots = self._slots
        if self.closed or not slots or slots[0].parts is None:
            return
        while slots and slots[0].parts is not None:
            self._out.extend(slots.popleft().parts or ())
        if not self.dirty:
            self.dirty = True
            self._turn.mark(self)

    def flush(self) -> None:
        """Send what is queued; what the socket does not take waits until it is writable."""
        self.dirty = False
        if self.closed:
            return
        # While the socket is full another attempt would only cost a system call.
        if not self._awaiting_write:
            self._send()
        if not self._reading:
            self.resume_reading()

    def _on_writable(self) -> None:
        self.active_tick = self._server.tick
        if self._out and type(self._out[0]) is RegionRest and self._send_more(self._out[0]):
            return
        self._send()
        if self.closed or self._out:
            return
        self._awaiting_write = False
        if self.times is not None:
            self.times.send.observe(self.now() - self._blocked_at)
        # Reading first: both changes then reach the kernel as one system call.
        if not self._reading:
            self.resume_reading()
        if not self._awaiting_write and not self.closed:
            self._server.watcher.remove_writer(self._fd)

    def _send_more(self, rest: RegionRest) -> bool:
        """Send more of a large region without the general queue; True while some of it is left."""
        try:
            sent = self._server.sendfile(self._fd, rest.fileno(), rest.position, rest.length)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            self.end(f"sending failed: {error.strerror}")
            return True
        if not sent:
            # The size was sent already, so the peer would take the next reply for the missing bytes.
            self.close("sending failed: the file ended before the bytes of the reply")
            return True
        rest.position += sent
        rest.length -= sent
        if rest.length:
            return True
        del self._out[0]
        return False

    def _send(self) -> None:
        try:
            done = self._send_queued()
        except (BlockingIOError, InterruptedError):
            done = False
        except OSError as error:
            self.end(f"sending failed: {error.strerror}")
            return
        if done:
            self.active_tick = self._server.tick
        elif not self._awaiting_write:
            # A peer that does not read its replies is not read: its requests would fill memory with more of them.
            self._awaiting_write = True
            self._blocked_at = self.now()
            self._server.watcher.add_writer(self._fd, self._on_writable)
            self.pause_reading()

    def _send_queued(self) -> bool:
        """Send in order; True once nothing is left, False when the socket or the budget of the turn is full."""
        out = self._out
        # One small reply is the common case by far, and a turn may have thousands of them.
        if len(out) == 1 and isinstance(out[0], (bytes, bytearray)):
            data = out[0]
            sent = self._sock.send(data)
            if sent == len(data):
                out.clear()
                return True
            # A view, not a slice: a large reply would be copied again with every part that is sent.
            out[0] = memoryview(data)[sent:]
            return False
        budget = SEND_BYTES_PER_TURN
        while out:
            if budget <= 0:
                return False
            sent = self._send_front(out)
            if sent < 0:
                return False
            budget -= sent
        return True

    def _send_front(self, out: list[ReplyPart]) -> int:
        """Send the first parts; -1 when the socket did not take all of them and is full."""
        front = out[0]
        if not isinstance(front, (bytes, bytearray, memoryview)):
            return self._send_region(out, front)
        # Joined into one send: copying small parts costs less than a system call for each.
        count = 1
        while count < len(out) and isinstance(out[count], (bytes, bytearray, memoryview)):
            count += 1
        data = front if count == 1 else b"".join(out[:count])  # type: ignore[arg-type]
        # A file region follows: let the kernel put both into one segment.
        more = socket.MSG_MORE if count < len(out) else 0
        try:
            sent = self._sock.send(data, more)
        except (BlockingIOError, InterruptedError):
            out[:count] = [data]  # so that the next attempt need not join them again
            raise
        if sent < len(data):
            out[:count] = [memoryview(data)[sent:]]
            return -1
        del out[:count]
        return sent

    def _send_region(self, out: list[ReplyPart], region: FileRegion) -> int:
        sent = self._server.sendfile(self._fd, region.fileno(), region.position, region.length)
        if sent == region.length:
            del out[0]
            return sent
        # 0 bytes and no error: the file was truncated below a region that was promised to the peer.
        if sent == 0:
            raise OSError(0, "the file ended before the bytes of the reply")
        rest = region if isinstance(region, RegionRest) else RegionRest(region, region.position, region.length)
        rest.position += sent
        rest.length -= sent
        out[0] = rest
        return -1

    # The end

    def leave(self) -> None:
        """Take no more requests, send the replies that are ready, then shut down sending and wait for the peer's end.

        A socket that is closed with requests unread resets the connection, and replies that were sent are lost to a
        peer that has not read them yet.
        """
        if self.closed or self._leaving:
            return
        self.pause_reading()
        self._leaving = True
        self.flush()

    def _finish(self) -> None:
        """End the connection after the last reply: the peer sends nothing more, but may still read (half-closed)."""
        if self._slots or self._out:
            self.pause_reading()
            self._finishing = True
        else:
            self.end("the peer closed it")

    def _shut_down_sending(self) -> None:
        if self.closed or self._out or self._reading:
            return
        self._reading = True
        self._server.watcher.add_reader(self._fd, self._on_drained)
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.end("the peer had closed it")

    def _on_drained(self) -> None:
        """Discard what the peer still sends, until it ends the connection too."""
        try:
            received = self._sock.recv_into(self._received.free_space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received = 0
        if not received:
            self.end("both sides closed it")

    def close(self, reason: str) -> None:
        """Close the connection by a decision of this node, which is logged with its reason; queued replies are lost."""
        if not self.closed:
            log.info("connection closed", decided_by="node", **self._end_fields(reason))
            self._close()

    def end(self, reason: str, *, decided_by: str = "peer") -> None:
        """Close the connection because the peer or the network ended it, both sides did, or the node stops."""
        if not self.closed:
            # Clients come and go all the time: only for debugging, and without building the fields otherwise.
            if log.enabled(Level.DEBUG):
                log.debug("connection closed", decided_by=decided_by, **self._end_fields(reason))
            self._close()

    def _end_fields(self, reason: str) -> dict[str, object]:
        host, port = self.peer_address
        return {"peer": f"{host}:{port}", "listener": self.listener, "reason": reason}

    def _close(self) -> None:
        self.closed = True
        watcher = self._server.watcher
        self._reading = False
        watcher.remove_reader(self._fd)
        watcher.remove_writer(self._fd)
        # Only now: a closed descriptor's number may be the next connection's, and the watcher goes by numbers.
        self._sock.close()
        self._out.clear()
        self._slots.clear()
        # Last: the handler may cancel waiting requests, which come back here and find the channel closed.
        self._server.forget(self)
        self.handler.on_closed(self)

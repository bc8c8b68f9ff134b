"""A connection over TLS: a channel whose bytes pass through OpenSSL.

A class of its own, so that plaintext connections execute none of it. Regions of files are read and encrypted in pieces;
where the kernel encrypts (kTLS), they are sent with sendfile, too.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.net.channel import SEND_BYTES_PER_TURN, Channel
from klamm.net.file_region import FileRegion, RegionRest, ReplyPart
from klamm.net.sockets import set_receive_low_water
from klamm.net.tls_transport import PIECE_BYTES, open_transport
from klamm.protocol.framing import LARGE_BYTES
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.net.server import NetServer

log = get_logger("net")

JOINED_BYTES_MAX: Final = 64 * 1024
"""Small parts are joined up to this size: each send makes at least one TLS record."""

RECORD_BYTES_MAX: Final = 16 * 1024 + 2048 + 5
"""Of a TLS 1.2 record with its header; those of TLS 1.3 are smaller."""

OnHandshake = Callable[["TlsChannel"], None]
"""Called when the handshake is complete; an exception refuses the connection."""


class TlsChannel(Channel):
    """A connection that is encrypted by a TLS transport."""

    __slots__ = ("_deadline", "_on_handshake", "_piece", "_scheduled", "_tls", "_uses_sendfile", "encrypted")

    def __init__(
        self,
        server: "NetServer",
        sock: socket.socket,
        listener: str,
        context: object,
        *,
        tls: ssl.SSLContext,
        handshake_seconds: float,
        on_handshake: OnHandshake,
    ) -> None:
        self._tls = open_transport(sock, tls)
        super().__init__(server, self._tls.sock, listener, context)
        self._on_handshake = on_handshake
        self._deadline: asyncio.TimerHandle | None = server.loop.call_later(handshake_seconds, self._expire)
        self._scheduled: asyncio.Handle | None = None
        self._uses_sendfile = False
        self._piece = memoryview(b"")
        self.encrypted = False
        """Whether the handshake is complete."""

    # The handshake

    def start(self) -> None:
        """Begin the handshake, or to read once it is complete."""
        if not self.encrypted:
            self._server.watcher.add_reader(self._fd, self._continue_handshake)
            return
        super().start()
        # Bytes inside the transport do not make the descriptor readable.
        self._read_pending()

    def _continue_handshake(self) -> None:
        watcher = self._server.watcher
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            watcher.remove_writer(self._fd)
            return
        except ssl.SSLWantWriteError:
            watcher.add_writer(self._fd, self._continue_handshake)
            return
        except (OSError, ValueError) as error:
            # Not the peer's whole text: a scanner of ports would fill the log.
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "the peer closed it"
            self._server.count_tls_failure(self.listener, "handshake")
            self.close(f"TLS handshake failed: {reason}")
            return
        watcher.remove_writer(self._fd)
        self._cancel_deadline()
        self.encrypted = True
        self._uses_sendfile = self._tls.kernel_encrypts
        self.active_tick = self._server.tick
        try:
            self._on_handshake(self)
        except Exception as error:  # noqa: BLE001 - a certificate may be anything; the connection is refused
            self._server.count_tls_failure(self.listener, "certificate")
            self.close(f"certificate refused: {error}")
            return
        self.start()

    def _expire(self) -> None:
        self._deadline = None
        self._server.count_tls_failure(self.listener, "timeout")
        self.close("TLS handshake not completed in time")

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def peer_certificate(self) -> bytes | None:
        """Return the certificate of the peer in DER form; None if it sent none."""
        return self._tls.getpeercert()

    # Reading

    def _on_readable(self) -> None:
        turn = self._turn
        if turn.scheduled and turn.number == self._handled_turn:
            # As for a plaintext channel; but no event repeats what the transport holds already.
            self._read_pending()
            return
        received = self._received
        try:
            count = self._tls.read(received.free_space())
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if self._low_water:
                # What was waited for is in the transport in part, and no frame will set the mark anew.
                self._low_water = 0
                set_receive_low_water(self._sock, 1)
            return
        except OSError as error:
            self.end(f"reading failed: {error.strerror}")
            return
        if count:
            received.add(count)
            self.active_tick = self._server.tick
            self._handle_frames()
            self._read_pending()
        elif self._reading:
            self._finish()

    def _read_pending(self) -> None:
        """Read again soon if the transport holds bytes, for which there is no event."""
        if self._scheduled is None and self._reading and not self.closed and self._tls.has_pending():
            self._scheduled = self._server.loop.call_soon(self._read_scheduled)

    def _read_scheduled(self) -> None:
        self._scheduled = None
        if self._reading and not self.closed:
            self._on_readable()

    def _set_low_water(self) -> None:
        # The kernel counts encrypted bytes, which are at least as many as the frame lacks; but those of a record that
        # has come in part are in the transport already, and to wait for them again would be to wait for ever.
        size = self._received.low_water - RECORD_BYTES_MAX
        size = size if size >= LARGE_BYTES else 0
        if size != self._low_water:
            self._low_water = size
            set_receive_low_water(self._sock, size or 1)

    # Sending

    def _send_more(self, rest: RegionRest) -> bool:
        if self._uses_sendfile:
            return super()._send_more(rest)
        return False  # `_send` continues with it

    def _send_queued(self) -> bool:
        out = self._out
        budget = SEND_BYTES_PER_TURN
        try:
            while out:
                if budget <= 0:
                    return False
                front = out[0]
                if isinstance(front, (bytes, bytearray, memoryview)):
                    sent = self._send_joined(out)
                elif self._uses_sendfile:
                    sent = self._send_region(out, front)
                else:
                    sent = self._send_piece(out, front)
                if sent < 0:
                    return False
                budget -= sent
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        if self._piece:
            self._piece = memoryview(b"")  # only while replies are sent: idle connections keep no buffer
        return True

    def _send_joined(self, out: list[ReplyPart]) -> int:
        """Send the first parts that are bytes."""
        count, size = 0, 0
        for part in out:
            if not isinstance(part, (bytes, bytearray, memoryview)) or (count and size + len(part) > JOINED_BYTES_MAX):
                break
            count += 1
            size += len(part)
        # OpenSSL requires an unfinished write to be repeated with the same bytes: the joined ones stay at the front.
        if count > 1:
            out[:count] = [b"".join(out[:count])]  # type: ignore[arg-type]
        data = out[0]
        assert isinstance(data, (bytes, bytearray, memoryview))
        sent = self._tls.send(data) if len(data) else 0
        if sent < len(data):
            out[0] = memoryview(data)[sent:]
        else:
            del out[0]
        return sent

    def _send_piece(self, out: list[ReplyPart], region: FileRegion) -> int:
        """Read and send a piece of a region; an unfinished write is repeated with the same bytes of the file."""
        if not self._piece:
            self._piece = memoryview(bytearray(PIECE_BYTES))
        piece = self._piece[: min(PIECE_BYTES, region.length)]
        size = self._server.sockets.read_file(region.fileno(), piece, region.position)
        if not size:
            raise OSError(0, "the file ended before the bytes of the reply")
        sent = self._tls.send(piece[:size])
        if sent == region.length:
            del out[0]
            return sent
        rest = region if isinstance(region, RegionRest) else RegionRest(region, region.position, region.length)
        rest.position += sent
        rest.length -= sent
        out[0] = rest
        return sent

    # The end

    def _shut_down_sending(self) -> None:
        if not self.closed and not self._out and not self._reading:
            self._notify_close()
        super()._shut_down_sending()

    def _close(self) -> None:
        self._cancel_deadline()
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._notify_close()
        super()._close()

    def _notify_close(self) -> None:
        """Send TLS's own end, without which the peer takes the end of the connection for an attack."""
        if self.encrypted:
            # The answer is not awaited; a peer that has gone cannot be notified.
            with contextlib.suppress(OSError, ValueError):
                self._tls.notify_close()

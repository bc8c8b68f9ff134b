"""Accepts the connections of one listener, as many and as fast as the limits allow.

A connection over a limit of the node or the listener is not refused: it is held, and those behind it stay in the
backlog, until its delay has passed and another connection has closed. An address over its own limit is refused.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.net.channel import Channel
from klamm.net.core.connection_quotas import ConnectionQuotas
from klamm.net.sockets import strip_mapping
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.net.server import NetServer

log = get_logger("net")

ACCEPTS_PER_TURN: Final = 64
"""Connections accepted from a listener before other work of the loop; a flood of them must not stop the node."""

LOOPBACK_SEND_BUFFER_BYTES: Final = 300 * 1024
"""For peers on this machine: bytes on their way are still in the cache when the peer copies them. 75 KB made the two
sides wait for each other (librdkafka reads a third less), a megabyte falls out of the cache. Over a network the
kernel's own tuning does better."""

OUT_OF_DESCRIPTORS_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 10.0
"""How often a listener that waits for a free connection logs that it does."""

REFUSED_HELD_MAX: Final = 1024
"""Connections of throttled addresses that are held before they are closed; each holds a descriptor."""

ChannelOpener = Callable[["NetServer", socket.socket, str, object], Channel]
"""Makes the channel of an accepted connection from server, socket, listener and context."""


class Acceptor:
    """A listening socket, and the one connection that it may hold back."""

    def __init__(self, server: "NetServer", name: str, sock: socket.socket, quotas: ConnectionQuotas) -> None:
        self.name = name
        self.quotas = quotas
        self._server = server
        self._loop = server.loop
        self._sock = sock
        self._context: object = None
        self._open_channel: ChannelOpener = Channel
        self._held: tuple[socket.socket, str] | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._refused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._reported_at = float("-inf")
        self._closed = False

    def start(self, context: object, open_channel: ChannelOpener) -> None:
        """Accept connections; `context` is what their channels carry for the handler."""
        self._context = context
        self._open_channel = open_channel
        self._resume()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        self._pause()
        self._sock.close()
        if self._delay is not None:
            self._delay.cancel()
        if self._held is not None:
            self._held[0].close()
            self._held = None
        for sock, timer in self._refused.items():
            timer.cancel()
            sock.close()
        self._refused.clear()

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: the peer stays in the backlog, and its listener stays readable. Accepting pauses,
                # or the loop would spin.
                log.warning("accept failed", listener=self.name, reason=error.strerror)
                self._pause()
                self._loop.call_later(OUT_OF_DESCRIPTORS_SECONDS, self._resume)
                return
            if not self._admit(sock, strip_mapping(address[0])):
                return

    # Limits

    def _admit(self, sock: socket.socket, ip: str) -> bool:
        """Open a connection, or hold it and accept no other meanwhile (False)."""
        delay_ms = self.quotas.record_delay_ms(self.name, self._server.now_ms())
        if not delay_ms and self.quotas.has_slot(self.name):
            self._open(sock, ip)
            return True
        self._held = (sock, ip)
        self._server.refused["waited"] += 1
        self._pause()
        if delay_ms:
            self._delay = self._loop.call_later(delay_ms / 1000, self._end_delay)
        else:
            self._report_wait()
        return False

    def _end_delay(self) -> None:
        self._delay = None
        self.admit_held()

    @property
    def is_holding(self) -> bool:
        """Whether a connection waits for its delay, or for another one to close."""
        return self._held is not None

    def admit_held(self) -> None:
        """Open the held connection if it has waited long enough and a connection is free; then accept others."""
        if self._held is None or self._delay is not None or not self.quotas.has_slot(self.name):
            return
        sock, ip = self._held
        self._held = None
        self._open(sock, ip)
        self._resume()

    def _report_wait(self) -> None:
        now = self._loop.time()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            log.warning("max.connections reached, new connections wait", listener=self.name, open=self.quotas.total)

    def _open(self, sock: socket.socket, ip: str) -> None:
        throttle = self._server.throttle_ip
        delay_ms = throttle(ip, self._server.now_ms()) if throttle is not None else 0
        if delay_ms:
            self._server.refused["ip_rate"] += 1
            self._refuse_later(sock, delay_ms)
            return
        if self.quotas.exceeds_ip_limit(ip):
            self._server.refused["ip_limit"] += 1
            log.warning("connection refused", listener=self.name, peer=ip, reason="max.connections.per.ip reached")
            sock.close()
            return
        sock.setblocking(False)
        # Replies of a turn are sent with one call, so Nagle's algorithm would only delay the last segment.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_buffer = self._server.config.send_buffer_bytes
        if send_buffer <= 0 and (ip.startswith("127.") or ip == "::1"):
            send_buffer = LOOPBACK_SEND_BUFFER_BYTES
        if send_buffer > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        try:
            channel = self._open_channel(self._server, sock, self.name, self._context)
        except OSError:
            sock.close()  # the peer closed it while it was in the backlog
            return
        self._server.add(channel, self.quotas)

    def _refuse_later(self, sock: socket.socket, delay_ms: int) -> None:
        """Close a connection after a delay: a client that is refused at once would connect again at once (KIP-612)."""
        if len(self._refused) >= REFUSED_HELD_MAX:
            sock.close()
            return
        self._refused[sock] = self._loop.call_later(delay_ms / 1000, self._refuse, sock)

    def _refuse(self, sock: socket.socket) -> None:
        del self._refused[sock]
        sock.close()

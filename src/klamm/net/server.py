"""Listening sockets and the connections they bring: binding, limits, idle connections, the end."""

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from klamm.model.errors import ConfigError
from klamm.net.channel import Channel, FrameHandler
from klamm.net.loop_turn import LoopTurn
from klamm.net.poller import TurnLoop
from klamm.net.sockets import Sockets
from klamm.telemetry.log import get_logger

log = get_logger("net")

ACCEPTS_PER_TURN = 64
"""Connections accepted from a listener before other work of the loop; a flood of them must not stop the node."""

LOOPBACK_SEND_BUFFER_BYTES = 300 * 1024
"""For peers on this machine: bytes on their way are still in the cache when the peer copies them. 75 KB made the two
sides wait for each other (librdkafka reads a third less), a megabyte falls out of the cache. Over a network the
kernel's own tuning does better."""

IDLE_CHECKS = 4
"""How often within connections.max.idle.ms connections are checked for being idle."""

LEAVE_CHECK_S = 0.005


class Watcher(Protocol):
    """What calls connections back: a `Poller`, or any event loop."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object:
        """Call back whenever `fd` can be read."""

    def add_writer(self, fd: int, callback: Callable[[], None], /) -> object:
        """Call back whenever `fd` can be written."""

    def remove_reader(self, fd: int, /) -> object:
        """Read no more for now."""

    def remove_writer(self, fd: int, /) -> object:
        """Nothing waits to be written."""


ChannelOpener = Callable[["NetServer", socket.socket, str, object], Channel]
"""Makes the channel of an accepted connection from server, socket, listener and context."""


@dataclass(frozen=True, slots=True)
class NetConfig:
    """What the sockets are allowed: Kafka's socket.* and max.connections* settings."""

    request_bytes_max: int = 104_857_600
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    listen_backlog_size: int = 50
    connections_max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1
    max_connections_per_ip: int = 2**31 - 1
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)


class NetServer:
    """All listeners and connections of a node; lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: NetConfig, sockets: Sockets | None = None) -> None:
        self.loop = loop
        self.config = config
        self.sockets = sockets or Sockets()
        self.sendfile = self.sockets.sendfile
        self.handler: FrameHandler
        poller = loop.poller if isinstance(loop, TurnLoop) else None
        self.turn = LoopTurn(loop, poller=poller)
        self.watcher: Watcher = poller or loop
        if poller is not None:
            poller.turn = self.turn
        self.tick = 0
        self._listeners: dict[str, socket.socket] = {}
        self._openers: dict[str, ChannelOpener] = {}
        self._channels: dict[Channel, None] = {}
        self._per_ip: Counter[str] = Counter()
        self._reaper: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._channels)

    def bind(self, name: str, host: str, port: int) -> tuple[str, int]:
        """Bind an address without serving it yet, so that a taken port is found before anything changes on disk."""
        try:
            sock = self.sockets.listen(
                host,
                port,
                backlog=self.config.listen_backlog_size,
                receive_buffer_bytes=self.config.receive_buffer_bytes,
            )
        except OSError as error:
            raise ConfigError(_describe_bind_failure(name, host, port, error)) from error
        self._listeners[name] = sock
        bound_host, bound_port = sock.getsockname()[:2]
        return bound_host, bound_port

    def start(
        self,
        handler: FrameHandler,
        contexts: Mapping[str, object] | None = None,
        openers: Mapping[str, ChannelOpener] | None = None,
    ) -> None:
        """Serve bound listeners: those of `contexts`, which is what their channels carry for the handler, or all.

        `openers` make the channels of listeners that encrypt or authenticate. May be called again for others.
        """
        self.handler = handler
        for name in contexts if contexts is not None else self._listeners:
            context = (contexts or {}).get(name)
            sock = self._listeners[name]
            self._openers[name] = (openers or {}).get(name, Channel)
            self.loop.add_reader(sock.fileno(), self._accept, name, sock, context)
        if self._reaper is None:
            self._schedule_reaper()

    def _accept(self, name: str, listener: socket.socket, context: object) -> None:
        open_channel = self._openers[name]
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: the peer stays in the backlog, and its listener stays readable. Accepting pauses,
                # or the loop would spin.
                log.warning("accept failed", listener=name, reason=error.strerror)
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(0.5, self._accept_again, name, listener, context)
                return
            ip = address[0]
            exceeded = self._exceeded_limit(ip)
            if exceeded:
                log.warning("connection refused", listener=name, peer=ip, reason=exceeded)
                sock.close()
                continue
            sock.setblocking(False)
            # Replies of a turn are sent with one call, so Nagle's algorithm would only delay the last segment.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_buffer = self.config.send_buffer_bytes
            if send_buffer <= 0 and (ip.startswith("127.") or ip == "::1"):
                send_buffer = LOOPBACK_SEND_BUFFER_BYTES
            if send_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            try:
                channel = open_channel(self, sock, name, context)
            except OSError:
                sock.close()  # the peer closed it while it was in the backlog
                continue
            channel.active_tick = self.tick
            self._channels[channel] = None
            self._per_ip[ip] += 1
            channel.start()

    def _accept_again(self, name: str, listener: socket.socket, context: object) -> None:
        if self._listeners.get(name) is listener:
            self.loop.add_reader(listener.fileno(), self._accept, name, listener, context)

    def _exceeded_limit(self, ip: str) -> str:
        """The limit that another connection from `ip` would exceed, or nothing."""
        if len(self._channels) >= self.config.max_connections:
            return f"max.connections ({self.config.max_connections}) are open"
        limit = self.config.max_connections_per_ip_overrides.get(ip, self.config.max_connections_per_ip)
        if self._per_ip[ip] >= limit:
            return f"max.connections.per.ip ({limit}) are open from that address"
        return ""

    def forget(self, channel: Channel) -> None:
        """Stop counting a channel that has closed."""
        if channel in self._channels:
            del self._channels[channel]
            ip = channel.peer_address[0]
            self._per_ip[ip] -= 1
            # Or every address that ever connected would stay in memory.
            if not self._per_ip[ip]:
                del self._per_ip[ip]

    def _schedule_reaper(self) -> None:
        interval = max(self.config.connections_max_idle_ms, 1000) / 1000 / IDLE_CHECKS
        self._reaper = self.loop.call_later(interval, self._reap)

    def _reap(self) -> None:
        # Ticks instead of times: a request costs the connection no look at the clock.
        self.tick += 1
        for channel in list(self._channels):
            quiet = self.tick - channel.active_tick
            if quiet > IDLE_CHECKS and channel.idle:
                channel.close("idle for connections.max.idle.ms")
            elif quiet > 1:
                channel.shrink()
        self._schedule_reaper()

    def stop_listening(self) -> None:
        """Take no new connections; those that are open go on."""
        for sock in self._listeners.values():
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners.clear()

    async def leave(self, timeout_s: float) -> None:
        """Take no more requests, and give peers up to `timeout_s` to read the replies they were sent."""
        self.turn.end()  # no reply leaves before what it promises is committed
        for channel in list(self._channels):
            channel.leave()
        deadline = self.loop.time() + timeout_s
        while self._channels and self.loop.time() < deadline:  # noqa: ASYNC110 - once in a node's life
            await asyncio.sleep(LEAVE_CHECK_S)

    def stop(self) -> None:
        """Close every listener and connection."""
        if self._reaper is not None:
            self._reaper.cancel()
        self.stop_listening()
        for channel in list(self._channels):
            # Not `close`: the node logs its stop once, not per connection.
            channel.end("the server stops", decided_by="node")


def _describe_bind_failure(name: str, host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another process: stop it or choose another port (listener {name})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: correct `listeners` ({name}://{where})"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 (listener {name})"
    return f"cannot listen on {where} (listener {name}): {os.strerror(error.errno or 0)}"

"""Listening sockets and the connections they bring: binding, limits, idle connections, the end."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from klamm.model.errors import ConfigError
from klamm.net.acceptor import Acceptor, ChannelOpener
from klamm.net.channel import Channel, FrameHandler
from klamm.net.core.connection_quotas import ConnectionLimits, ConnectionQuotas
from klamm.net.core.request_memory import RequestMemory
from klamm.net.loop_turn import LoopTurn
from klamm.net.poller import TurnLoop
from klamm.net.sockets import Sockets
from klamm.security.core.quota_windows import WindowConfig
from klamm.telemetry.log import get_logger

log = get_logger("net")

IDLE_CHECKS = 4
"""How often within connections.max.idle.ms connections are checked for being idle."""

LEAVE_CHECK_S = 0.005
REFUSALS = ("ip_rate", "ip_limit", "waited", "idle", "excess")
"""The address is above its rate or its limit; the connection had to wait for a slot or for the creation rate; closed
because it was idle, or because of max.connections."""


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


ThrottleIp = Callable[[str, int], int]
"""Counts a new connection of an address at a time in milliseconds; returns for how long it is held before it is
closed, or 0 if it may be opened."""


@dataclass(frozen=True, slots=True)
class NetConfig:
    """What the sockets are allowed: Kafka's socket.* and max.connections* settings."""

    request_bytes_max: int = 104_857_600
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    listen_backlog_size: int = 50
    connections_max_idle_ms: int = 600_000
    """Negative values keep idle connections open."""
    queued_request_bytes_max: int = -1
    """queued.max.request.bytes; without a limit if negative."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    rate_window: WindowConfig = field(default_factory=WindowConfig)
    """quota.window.*, by which rates of new connections are measured."""
    protected_listener: str = ""
    """The listener between brokers, which `max.connections` does not concern."""
    separate_listeners: frozenset[str] = frozenset()
    """Those of the controller: their connections are counted by themselves, as in Kafka's second socket server."""


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
        self.throttle_ip: ThrottleIp | None = None
        """The quotas of addresses; None without any."""
        limit = config.queued_request_bytes_max
        self.request_memory = RequestMemory(limit) if limit >= 0 else None
        self._acceptors: dict[str, Acceptor] = {}
        self._channels: dict[Channel, ConnectionQuotas] = {}
        self._quotas = ConnectionQuotas(config.limits, config.protected_listener, config.rate_window)
        self._separate_quotas = ConnectionQuotas(config.limits, window=config.rate_window)
        self._reaper: asyncio.TimerHandle | None = None
        self.refused: dict[str, int] = dict.fromkeys(REFUSALS, 0)
        """Connections that were refused or had to wait, by reason."""
        self.tls_failures: dict[tuple[str, str], int] = {}
        """TLS handshakes that failed, by listener and reason: handshake, certificate or timeout."""

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._channels)

    def watch_turns(self, on_turn: Callable[[float, int, bool], None]) -> None:
        """Report slow and sampled turns: their seconds, their ready sockets, and whether records were written."""
        if isinstance(self.loop, TurnLoop):
            self.loop.poller.on_turn = on_turn

    def connections_by_listener(self) -> dict[str, int]:
        """Return how many connections of each listener are open."""
        return self._quotas.per_listener() | self._separate_quotas.per_listener()

    @property
    def limits(self) -> ConnectionLimits:
        """The limits of connections."""
        return self._quotas.limits

    def count_tls_failure(self, listener: str, reason: str) -> None:
        """Count a TLS handshake that failed."""
        key = (listener, reason)
        self.tls_failures[key] = self.tls_failures.get(key, 0) + 1

    def channels(self) -> Iterable[Channel]:
        """Return the open connections."""
        return self._channels.keys()

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
        quotas = self._separate_quotas if name in self.config.separate_listeners else self._quotas
        quotas.add_listener(name)
        self._acceptors[name] = Acceptor(self, name, sock, quotas)
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
        for name in contexts if contexts is not None else self._acceptors:
            self._acceptors[name].start((contexts or {}).get(name), (openers or {}).get(name, Channel))
        if self._reaper is None:
            self._schedule_reaper()

    def now_ms(self) -> int:
        """The time of the loop, by which rates are measured."""
        return int(self.loop.time() * 1000)

    # Connections

    def add(self, channel: Channel, quotas: ConnectionQuotas) -> None:
        """Serve a new connection."""
        channel.active_tick = self.tick
        self._channels[channel] = quotas
        quotas.add(channel.listener, channel.peer_address[0])
        self._close_excess(quotas)
        channel.start()

    def forget(self, channel: Channel) -> None:
        """Stop counting a channel that has closed."""
        quotas = self._channels.pop(channel, None)
        if quotas is None:
            return
        quotas.remove(channel.listener, channel.peer_address[0])
        if self.request_memory is not None:
            self.release_memory(channel)
        # Soon, not now: the channel is in the middle of its end, and others may be in the middle of a turn.
        for acceptor in self._acceptors.values():
            if acceptor.is_holding and acceptor.quotas is quotas:
                self.loop.call_soon(acceptor.admit_held)

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Change the limits; connections over a smaller total are closed, those over other limits stay."""
        for quotas in (self._quotas, self._separate_quotas):
            quotas.limits = limits
            self._close_excess(quotas)
        for acceptor in self._acceptors.values():
            acceptor.admit_held()

    def _close_excess(self, quotas: ConnectionQuotas) -> None:
        """Close the least recently used connections of listeners that are not protected (KIP-402)."""
        while quotas.excess:
            candidates = [
                channel
                for channel, counted in self._channels.items()
                if counted is quotas and not quotas.is_protected(channel.listener)
            ]
            if not candidates:
                return
            least_used = min(candidates, key=_last_used)
            self.refused["excess"] += 1
            least_used.close("max.connections reached: least recently used")

    # Memory of requests

    def release_memory(self, channel: Channel) -> None:
        """Return the memory of a large request, and let those that wait for memory read on."""
        assert self.request_memory is not None
        self.request_memory.release(channel)
        if next(self.request_memory.waiting(), None) is not None:
            self.loop.call_soon(self._resume_waiting)

    def _resume_waiting(self) -> None:
        assert self.request_memory is not None
        for channel in self.request_memory.waiting():
            assert isinstance(channel, Channel)
            channel.resume_reading()

    # Idle connections

    def _schedule_reaper(self) -> None:
        interval = max(self.config.connections_max_idle_ms, 1000) / 1000 / IDLE_CHECKS
        self._reaper = self.loop.call_later(interval, self._reap)

    def _reap(self) -> None:
        # Ticks instead of times: a request costs the connection no look at the clock.
        self.tick += 1
        for channel in list(self._channels):
            quiet = self.tick - channel.active_tick
            if quiet > IDLE_CHECKS and channel.idle and self.config.connections_max_idle_ms >= 0:
                self.refused["idle"] += 1
                channel.close("idle for connections.max.idle.ms")
            elif quiet > 1:
                channel.shrink()
        self._schedule_reaper()

    def stop_listening(self) -> None:
        """Take no new connections; those that are open go on."""
        for acceptor in self._acceptors.values():
            acceptor.close()
        self._acceptors.clear()

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


def _last_used(channel: Channel) -> int:
    return channel.last_turn


def _describe_bind_failure(name: str, host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another process: stop it or choose another port (listener {name})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: correct `listeners` ({name}://{where})"
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 (listener {name})"
    return f"cannot listen on {where} (listener {name}): {os.strerror(error.errno or 0)}"

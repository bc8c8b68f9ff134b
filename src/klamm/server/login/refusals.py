"""How a connection ends whose login was refused: late, with its reason, and without holding up any other."""

import asyncio

from klamm.net import Channel, FrameHandler, Slot
from klamm.net.file_region import ReplyPart
from klamm.server.login.settings import LINGER_SECONDS, LoginSettings
from klamm.telemetry.log import get_logger

log = get_logger("login")


class RefusedHandler:
    """Handles no more frames of a connection that is about to be closed."""

    def __init__(self, before: FrameHandler) -> None:
        self.before = before

    def handle(self, channel: Channel, view: memoryview, start: int, end: int) -> None:
        """Ignore a frame that came with the refused one."""

    def on_closed(self, channel: Channel) -> None:
        """Drop the state of the connection: it may be closed, by its deadline or a limit, before the reply is sent."""
        self.before.on_closed(channel)


def refuse(
    loop: asyncio.AbstractEventLoop,
    settings: LoginSettings,
    channel: Channel,
    reply: ReplyPart | None,
    *,
    mechanism: str,
    reason: str,
) -> None:
    """Send `reply` after the configured delay, then close; the delay slows down guesses of passwords (KIP-306)."""
    host, port = channel.peer_address
    log.info(
        "login refused",
        peer=f"{host}:{port}",
        listener=channel.listener,
        mechanism=mechanism or None,
        reason=reason,
    )
    settings.counts.count_failure(channel.listener)
    refused = channel.handler = RefusedHandler(channel.handler)
    # Held: what the peer sends meanwhile stays in the kernel.
    channel.hold()
    slot = channel.defer()
    loop.call_later(settings.failure_delay_ms / 1000, _finish, loop, channel, refused.before, slot, reply)


def _finish(
    loop: asyncio.AbstractEventLoop, channel: Channel, before: FrameHandler, slot: Slot, reply: ReplyPart | None
) -> None:
    if channel.closed:
        return
    channel.handler = before  # it drops the state of the connection when this is closed
    if reply is None:
        channel.end("login refused", decided_by="node")
        return
    slot.send((reply,))
    # Not closed at once: unread requests would reset the connection, and the peer would not see the reason.
    channel.leave()
    channel.release()
    loop.call_later(LINGER_SECONDS, _end, channel)


def _end(channel: Channel) -> None:
    channel.end("login refused", decided_by="node")

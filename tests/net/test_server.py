"""Listeners: binding, limits, idle connections."""

import asyncio
import socket

import pytest

from klamm.model.errors import ConfigError
from klamm.net import NetConfig, NetServer
from klamm.net.server import IDLE_CHECKS

pytestmark = pytest.mark.asyncio


async def test_a_taken_port_is_told_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = NetServer(asyncio.get_running_loop(), NetConfig())
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken"):
            server.bind("PLAINTEXT", "127.0.0.1", port)


async def test_an_address_of_another_machine_is_told_in_one_sentence():
    server = NetServer(asyncio.get_running_loop(), NetConfig())
    with pytest.raises(ConfigError, match="not an address of this machine"):
        server.bind("PLAINTEXT", "203.0.113.1", 0)


async def test_nothing_is_read_before_the_start():
    server = NetServer(asyncio.get_running_loop(), NetConfig())
    host, port = server.bind("PLAINTEXT", "127.0.0.1", 0)
    assert host == "127.0.0.1"
    assert port > 0
    with socket.create_connection((host, port)):
        await asyncio.sleep(0)
        assert server.connection_count == 0
    server.stop()


async def greet(peer):
    await peer.send(b"\0\0\0\x08greeting")
    return await peer.receive_frame()


async def test_idle_connections_stay_open_without_a_limit(serve):
    net = serve(connections_max_idle_ms=-1)
    peer = await net.connect()
    await greet(peer)
    for _ in range(IDLE_CHECKS + 2):
        net.server._reap()
    assert await greet(peer) == b"greeting"


async def test_idle_connections_are_closed(serve):
    net = serve()
    idle, busy, waiting = [await net.connect() for _ in range(3)]
    for peer in (idle, busy):
        await greet(peer)
    net.handler.answer = net.handler.defer
    await waiting.send(b"\0\0\0\x08greeting")
    await net.until(lambda: net.handler.slots)
    net.handler.answer = net.handler.echo
    for _ in range(IDLE_CHECKS + 1):
        assert net.server.connection_count == 3
        net.server._reap()
        await greet(busy)
    assert net.server.connection_count == 2
    assert await idle.is_closed()
    net.handler.slots[0].send([b"\0\0\0\x04late"])
    assert await waiting.receive_frame() == b"late"
    assert await greet(busy) == b"greeting"


async def test_a_peer_that_never_takes_its_replies_is_idle(serve):
    net = serve(send_buffer_bytes=16_384)
    net.handler.answer = lambda channel, frame: channel.reply(bytes(5_000_000))
    peer = await net.connect(receive_buffer=16_384)
    await peer.send(b"\0\0\0\x08greeting")
    await net.until(lambda: net.handler.channels and net.handler.channels[0]._awaiting_write)
    for _ in range(IDLE_CHECKS + 2):
        net.server._reap()
        await asyncio.sleep(0)
    await net.until(lambda: net.server.connection_count == 0)


async def test_a_stop_closes_everything(serve):
    net = serve()
    peers = [await net.connect() for _ in range(3)]
    for peer in peers:
        await greet(peer)
    net.server.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await net.connect()
    assert await greet(peers[0]) == b"greeting"
    net.server.stop()
    for peer in peers:
        assert await peer.is_closed()
    assert len(net.handler.closed_channels) == 3


async def test_who_leaves_loses_no_reply(serve):
    """Requests that are still unread when a server goes must not reset away the replies that were sent."""
    net = serve(send_buffer_bytes=16_384)
    large = (200_000).to_bytes(4, "big") + bytes(200_000)
    net.handler.answer = lambda channel, frame: channel.reply(large)
    talker, quiet = await net.connect(receive_buffer=16_384), await net.connect()
    await talker.send(b"\0\0\0\x08greeting")
    await net.until(lambda: net.handler.frames)
    leaving = asyncio.create_task(net.server.leave(10))
    await asyncio.sleep(0)
    await talker.send(b"\0\0\0\x08greeting" * 100)
    assert await talker.receive_frame() == large[4:]
    assert await talker.is_closed()
    talker.close()
    assert await quiet.is_closed()
    quiet.close()
    await leaving
    assert len(net.handler.frames) == 1
    assert net.server.connection_count == 0


async def test_a_peer_that_does_not_say_goodbye_is_not_waited_for_long(serve):
    net = serve()
    await greet(await net.connect())
    await net.server.leave(0.02)
    assert net.server.connection_count == 1
    net.server.stop()
    assert net.server.connection_count == 0

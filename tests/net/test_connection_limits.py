"""Limits of connections and of received bytes, seen from raw sockets."""

import asyncio
import struct

import pytest

from klamm.net.core.connection_quotas import ConnectionLimits

pytestmark = pytest.mark.asyncio

GREETING = b"\0\0\0\x08greeting"


async def greet(peer):
    await peer.send(GREETING)
    return await peer.receive_frame()


async def turns(count=20):
    """Let the server do whatever it would do now."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_connection_over_the_total_waits_until_another_one_closes(serve):
    net = serve(limits=ConnectionLimits(connections=2))
    peers = [await net.connect() for _ in range(2)]
    for peer in peers:
        assert await greet(peer) == b"greeting"
    late, later = await net.connect(), await net.connect()
    for peer in (late, later):
        await peer.send(GREETING)
    await turns()
    assert net.server.connection_count == 2
    peers[0].close()
    assert await late.receive_frame() == b"greeting"
    await turns()
    assert net.server.connection_count == 2
    peers[1].close()
    assert await later.receive_frame() == b"greeting"


async def test_a_listener_has_a_limit_of_its_own(serve):
    net = serve(limits=ConnectionLimits(listener_connections={"TEST": 1}))
    assert await greet(await net.connect()) == b"greeting"
    late = await net.connect()
    await late.send(GREETING)
    assert await greet(await net.connect(port=net.inner_port)) == b"greeting"
    assert net.server.connection_count == 2
    net.server.set_limits(ConnectionLimits())
    assert await late.receive_frame() == b"greeting"


async def test_a_broker_takes_the_place_of_the_least_recently_used_client(serve):
    net = serve(limits=ConnectionLimits(connections=2), protected_listener="INNER")
    older, newer = await net.connect(), await net.connect()
    await greet(newer)
    await greet(older)
    assert await greet(await net.connect(port=net.inner_port)) == b"greeting"
    assert await newer.is_closed()
    assert await greet(older) == b"greeting"
    assert await greet(await net.connect(port=net.inner_port)) == b"greeting"
    assert await older.is_closed()
    # Of brokers themselves none is closed, and none waits.
    assert await greet(await net.connect(port=net.inner_port)) == b"greeting"
    assert net.server.connection_count == 3


async def test_separate_listeners_have_counts_of_their_own(serve):
    net = serve(limits=ConnectionLimits(connections=1), separate_listeners=frozenset({"INNER"}))
    assert await greet(await net.connect()) == b"greeting"
    assert await greet(await net.connect(port=net.inner_port)) == b"greeting"


async def test_a_lower_total_closes_connections_that_are_open(serve):
    net = serve()
    peers = [await net.connect() for _ in range(4)]
    for peer in peers:
        await greet(peer)
    net.server.set_limits(ConnectionLimits(connections=1))
    for peer in peers[:3]:
        assert await peer.is_closed()
    assert await greet(peers[3]) == b"greeting"


async def test_an_address_over_its_limit_is_refused(serve):
    net = serve(limits=ConnectionLimits(connections_per_ip=1))
    assert await greet(await net.connect()) == b"greeting"
    assert await (await net.connect()).is_closed()
    net.server.set_limits(ConnectionLimits(connections_per_ip=1, per_ip_overrides={"127.0.0.1": 2}))
    assert await greet(await net.connect()) == b"greeting"
    assert await (await net.connect()).is_closed()


async def test_connections_over_the_creation_rate_are_accepted_later(serve):
    net = serve(limits=ConnectionLimits(creation_rate=1))
    net.server.now_ms = lambda: 0  # all in one moment, however slow the machine
    peers = [await net.connect() for _ in range(12)]
    for peer in peers[:10]:
        assert await greet(peer) == b"greeting"
    await turns()
    assert net.server.connection_count == 10
    assert await greet(peers[10]) == b"greeting"
    assert await greet(peers[11]) == b"greeting"


async def test_a_throttled_address_is_held_and_then_closed(serve):
    net = serve()
    throttled = []

    def throttle(ip, now_ms):
        throttled.append(ip)
        return 50 if len(throttled) == 1 else 0

    net.server.throttle_ip = throttle
    assert await (await net.connect()).is_closed()
    assert await greet(await net.connect()) == b"greeting"
    assert throttled == ["127.0.0.1"] * 2


async def test_a_stop_closes_connections_that_wait(serve):
    net = serve(limits=ConnectionLimits(connections=1))
    await greet(await net.connect())
    late = await net.connect()
    await turns()
    net.server.stop()
    assert await late.is_closed()


# queued.max.request.bytes


async def test_large_requests_wait_for_memory(serve):
    net = serve(queued_request_bytes_max=100_000)
    first, second, small = [await net.connect() for _ in range(3)]
    large = struct.pack(">i", 200_000) + bytes(200_000)
    await first.send(large[:1000])
    await net.until(lambda: net.server.request_memory.exhausted)
    await second.send(large[:1000])
    await net.until(lambda: list(net.server.request_memory._waiting))
    # Small requests fit the buffer that a connection has anyway.
    assert await greet(small) == b"greeting"
    sending = asyncio.create_task(second.send(large[1000:]))
    await turns()
    assert len(net.handler.frames) == 1
    await first.send(large[1000:])
    assert len(await first.receive_frame()) == 200_000
    assert len(await second.receive_frame()) == 200_000
    await sending
    assert not net.server.request_memory.exhausted


async def test_a_closed_connection_returns_its_memory(serve):
    net = serve(queued_request_bytes_max=100_000)
    first, second = await net.connect(), await net.connect()
    large = struct.pack(">i", 200_000) + bytes(200_000)
    await first.send(large[:1000])
    await net.until(lambda: net.server.request_memory.exhausted)
    sending = asyncio.create_task(second.send(large))
    await net.until(lambda: list(net.server.request_memory._waiting))
    first.close()
    assert len(await second.receive_frame()) == 200_000
    await sending
    assert not net.server.request_memory.exhausted


async def test_many_large_requests_of_one_connection_return_their_memory(serve):
    net = serve(queued_request_bytes_max=300_000)
    peer = await net.connect()
    large = struct.pack(">i", 200_000) + bytes(200_000)
    for _ in range(5):
        sending = asyncio.create_task(peer.send(large + GREETING))
        assert len(await peer.receive_frame()) == 200_000
        assert await peer.receive_frame() == b"greeting"
        await sending
    await net.until(lambda: not net.server.request_memory._taken)

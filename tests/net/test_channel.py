"""One connection: frames in whatever pieces, replies in order, memory in bounds."""

import asyncio
import os
import random
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.net.channel import IN_FLIGHT_MAX, REPLIES_PER_TURN_MAX
from klamm.protocol.framing import BUFFER_BYTES
from klamm.telemetry.log import Level, configure


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.asyncio
async def test_frames_may_be_cut_anywhere(serve):
    net = serve()
    peer = await net.connect()
    bodies = [b"first-one", b"the second"]
    stream = b"".join(map(frame_of, bodies))
    for cut in range(1, len(stream)):
        net.handler.frames.clear()
        await peer.send(stream[:cut])
        await net.until(
            lambda: not net.handler.channels or net.handler.channels[0]._received.pending or net.handler.frames
        )
        await peer.send(stream[cut:])
        assert [await peer.receive_frame() for _ in bodies] == bodies
        assert net.handler.frames == bodies


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [0, 8192])
async def test_a_large_frame_arrives_whole(serve, buffer):
    net = serve(**({"receive_buffer_bytes": buffer, "send_buffer_bytes": buffer} if buffer else {}))
    peer = await net.connect(receive_buffer=buffer)
    body = random.Random(3).randbytes(5_000_000)
    sending = asyncio.create_task(peer.send(frame_of(b"small-one") + frame_of(body) + frame_of(b"small-two")))
    replies = [await peer.receive_frame() for _ in range(3)]
    await sending
    assert replies == [b"small-one", body, b"small-two"]


@pytest.mark.asyncio
async def test_a_declared_length_allocates_nothing(serve):
    net = serve()
    peer = await net.connect()
    begun = struct.pack(">i", 100_000_000) + bytes(10)
    await peer.send(frame_of(b"hello you") + begun)
    assert await peer.receive_frame() == b"hello you"
    [channel] = net.handler.channels
    await net.until(lambda: channel._received.pending == len(begun))
    assert len(channel._received.view) == BUFFER_BYTES
    sent = len(begun)
    while sent < 2_000_000:
        await peer.send(bytes(50_000))
        sent += 50_000
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(channel._received.view) <= max(4 * channel._received.pending, 4 * BUFFER_BYTES)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [-1, 0, 7, 1001, 2**31 - 1])
async def test_a_length_that_cannot_be_closes_the_connection(serve, size):
    net = serve(request_bytes_max=1000)
    peer, other = await net.connect(), await net.connect()
    await peer.send(struct.pack(">i", size) + bytes(4))
    assert await peer.is_closed()
    await other.send(frame_of(b"still here"))
    assert await other.receive_frame() == b"still here"


@pytest.mark.asyncio
async def test_the_largest_frame_that_is_allowed(serve):
    net = serve(request_bytes_max=1000)
    peer = await net.connect()
    await peer.send(frame_of(b"x" * 1000))
    assert await peer.receive_frame() == b"x" * 1000


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_borrowed_bytes_stay_until_the_turn_ends(data, seed):
    """Frames of any size in pieces of any size: what a handler kept a view of is unchanged when the turn commits."""
    size = st.one_of(st.integers(8, 300), st.integers(8, 120_000), st.sampled_from([90_000, 100_000]))
    sizes = data.draw(st.lists(size, min_size=1, max_size=30))

    async def run_connection():
        from klamm.net import NetConfig, NetServer

        source = random.Random(seed)
        bodies = [source.randbytes(size) for size in sizes]
        borrowed, seen, broken = [], [], []

        class Keeper:
            def handle(self, channel, view, start, end):
                borrowed.append((view[start:end], bytes(view[start:end])))
                seen.append(borrowed[-1][1])
                channel.reply(b"ok")

            def on_closed(self, channel):
                pass

        def commit():
            for view, copy in borrowed:
                assert view == copy, "a borrowed frame was overwritten"
            borrowed.clear()

        server = NetServer(asyncio.get_running_loop(), NetConfig())
        server.turn.before_flush(commit, broken.append)
        port = server.bind("TEST", "127.0.0.1", 0)[1]
        server.start(Keeper())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stream = b"".join(map(frame_of, bodies))
        while stream:
            piece = source.choice((1, 3, 100, 5000, 70_000))
            writer.write(stream[:piece])
            await writer.drain()
            stream = stream[piece:]
        assert await asyncio.wait_for(reader.readexactly(2 * len(bodies)), 20) == b"ok" * len(bodies)
        assert seen == bodies
        assert not broken
        writer.close()
        await writer.wait_closed()
        server.stop()

    asyncio.run(run_connection())


@pytest.mark.asyncio
async def test_replies_leave_in_the_order_of_requests(serve):
    net = serve()
    source = random.Random(11)

    def sometimes_later(channel, frame):
        if frame.startswith(b"now"):
            channel.reply(frame_of(frame))
        elif frame.startswith(b"parts"):
            channel.reply_parts([frame_of(frame)[:4], frame])
        else:
            net.handler.slots.append((channel.defer(), frame))

    net.handler.answer = sometimes_later
    peer = await net.connect()
    bodies = [source.choice((b"now", b"parts", b"later")) + b" %06d" % number for number in range(300)]
    await peer.send(b"".join(map(frame_of, bodies)))
    await net.until(lambda: len(net.handler.frames) == 300)
    source.shuffle(net.handler.slots)
    for slot, frame in net.handler.slots:
        slot.send([frame_of(frame)])
        await asyncio.sleep(0)
    assert [await peer.receive_frame() for _ in bodies] == bodies


@pytest.mark.asyncio
async def test_a_slot_may_turn_out_to_owe_nothing(serve):
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    await peer.send(frame_of(b"request 1") + frame_of(b"request 2"))
    await net.until(lambda: len(net.handler.slots) == 2)
    net.handler.slots[1].send([frame_of(b"two")])
    net.handler.slots[0].send(())
    assert await peer.receive_frame() == b"two"


@pytest.mark.asyncio
async def test_a_slot_that_is_abandoned_closes_the_connection(serve):
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    await peer.send(frame_of(b"request 1"))
    await net.until(lambda: net.handler.slots)
    net.handler.slots[0].abandon()
    assert await peer.is_closed()


@pytest.mark.asyncio
async def test_too_many_waiting_requests_stop_the_reading(serve):
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    total = IN_FLIGHT_MAX * 3
    await peer.send(b"".join(frame_of(b"%08d" % number) for number in range(total)))
    await net.until(lambda: len(net.handler.slots) > IN_FLIGHT_MAX)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(net.handler.slots) == IN_FLIGHT_MAX + 1
    done = 0
    while done < total:
        await net.until(lambda wanted=done: len(net.handler.slots) > wanted)
        net.handler.slots[done].send([frame_of(net.handler.frames[done])])
        done += 1
    assert [int(await peer.receive_frame()) for _ in range(total)] == list(range(total))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [100_000, 500_000])
async def test_a_pause_at_the_end_of_a_large_frame_does_not_end_the_connection(serve, size):
    """Frames large enough to be read to their end and no further: the pause finds the buffer read to its stop.

    The frames of the tests around this one are small or come one at a time, so the stop lay behind the data.
    """
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    body = bytes(size)
    total = IN_FLIGHT_MAX + 3

    async def send() -> None:
        for _ in range(total):
            await peer.send(frame_of(body))
        await peer.send(frame_of(b"small one"))

    sending = asyncio.create_task(send())
    await net.until(lambda: len(net.handler.slots) > IN_FLIGHT_MAX)
    [channel] = net.handler.channels
    assert not channel._reading
    for number in range(total + 1):
        await net.until(lambda wanted=number: len(net.handler.slots) > wanted)
        net.handler.slots[number].send([frame_of(b"answer %d" % number)])
    assert [await peer.receive_frame() for _ in range(total + 1)] == [b"answer %d" % n for n in range(total + 1)]
    await sending
    assert net.handler.frames[-2:] == [body, b"small one"]


@pytest.mark.asyncio
async def test_the_log_says_who_ended_a_connection_and_why(serve, capsys):
    configure()  # tests that ran before may have left another level
    net = serve(request_bytes_max=1000)
    peer, other = await net.connect(), await net.connect()
    await other.send(frame_of(b"other peer"))
    await other.receive_frame()
    await peer.send(struct.pack(">i", 2000) + bytes(4))
    port = peer.sock.getsockname()[1]
    assert await peer.is_closed()
    [line] = [line for line in capsys.readouterr().err.splitlines() if "connection closed" in line]
    assert "INFO net" in line
    assert "decided_by=node" in line
    assert f"peer=127.0.0.1:{port}" in line
    assert "a frame of 2000 bytes is larger than the limit of 1000" in line
    other.close()
    await net.until(lambda: net.server.connection_count == 0)
    assert "connection closed" not in capsys.readouterr().err


@pytest.mark.asyncio
async def test_a_stop_of_the_node_is_not_logged_as_the_peers_decision(serve, capsys):
    net = serve()
    peer = await net.connect()
    await peer.send(frame_of(b"hello peer"))
    await peer.receive_frame()
    configure(Level.DEBUG)
    try:
        net.server.stop()
    finally:
        configure()
    [line] = [line for line in capsys.readouterr().err.splitlines() if "connection closed" in line]
    assert "DEBUG net" in line
    assert "decided_by=node" in line


@pytest.mark.asyncio
async def test_a_peer_that_does_not_read_is_not_read(serve):
    net = serve(send_buffer_bytes=16_384)
    large = frame_of(b"r" * 200_000)
    net.handler.answer = lambda channel, frame: channel.reply(large)
    peer, other = await net.connect(receive_buffer=16_384), await net.connect()
    requests = b"".join(frame_of(b"%08d" % number) for number in range(2000))
    sending = asyncio.create_task(peer.send(requests))
    await net.until(lambda: net.handler.channels and net.handler.channels[0]._awaiting_write)
    for _ in range(50):
        await asyncio.sleep(0)
    [channel] = net.handler.channels
    assert not channel._reading
    held = sum(len(part) for part in channel._out)
    assert held <= (REPLIES_PER_TURN_MAX + 1) * len(large)
    assert len(net.handler.frames) <= REPLIES_PER_TURN_MAX + 1
    net.handler.answer = net.handler.echo
    await other.send(frame_of(b"others go on"))
    assert await other.receive_frame() == b"others go on"
    got = 0
    net.handler.answer = lambda channel, frame: channel.reply(frame_of(frame))
    while got < 2000:
        await peer.receive_frame()
        got += 1
    await sending


@pytest.mark.asyncio
async def test_a_peer_that_leaves_is_forgotten(serve):
    net = serve()
    peer = await net.connect()
    await peer.send(frame_of(b"request 1"))
    await peer.receive_frame()
    peer.close()
    await net.until(lambda: net.handler.closed_channels)
    assert net.server.connection_count == 0


@pytest.mark.asyncio
async def test_a_peer_that_leaves_with_requests_open_is_forgotten_when_they_are_answered(serve):
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    await peer.send(frame_of(b"request 1") + frame_of(b"request 2"))
    await net.until(lambda: len(net.handler.slots) == 2)
    peer.close()
    for slot in net.handler.slots:
        slot.send([frame_of(b"not read")])
    await net.until(lambda: net.handler.closed_channels)
    for slot in net.handler.slots:
        slot.abandon()
    await asyncio.sleep(0)
    assert len(net.handler.closed_channels) == 1
    assert net.server.connection_count == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_peer_that_sends_nothing_more_gets_the_replies_it_waits_for(serve, size):
    """Half-closed connections were closed at once, and every reply that was not ready was lost: no test had a peer
    that shut down its side and went on reading."""
    net = serve()
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    await peer.send(frame_of(b"request 1") + frame_of(b"request 2") + b"\0\0")
    await net.until(lambda: len(net.handler.slots) == 2)
    peer.sock.shutdown(socket.SHUT_WR)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not net.handler.closed_channels
    for number in (1, 0):
        net.handler.slots[number].send([frame_of(b"%d" % number * size)])
    assert [await peer.receive_frame() for _ in range(2)] == [b"0" * size, b"1" * size]
    assert await peer.is_closed()
    assert net.server.connection_count == 0


@pytest.mark.asyncio
async def test_a_peer_that_has_left_is_not_waited_for_longer_than_an_idle_one(serve):
    net = serve(connections_max_idle_ms=1000)
    net.handler.answer = net.handler.defer
    peer = await net.connect()
    await peer.send(frame_of(b"request 1"))
    await net.until(lambda: net.handler.slots)
    peer.close()
    await net.until(lambda: net.handler.closed_channels)
    assert net.server.connection_count == 0


@pytest.mark.asyncio
async def test_a_handler_may_close_in_the_middle(serve):
    net = serve()

    def close_at_second(channel, frame):
        if frame == b"request 2":
            channel.close("a test")
        else:
            channel.reply(frame_of(frame))

    net.handler.answer = close_at_second
    peer = await net.connect()
    await peer.send(b"".join(frame_of(b"request %d" % number) for number in range(1, 5)))
    await peer.is_closed()
    assert net.handler.frames == [b"request 1", b"request 2"]


class Region:
    def __init__(self, file, position, length) -> None:
        self._file, self.position, self.length = file, position, length

    def fileno(self):
        return self._file.fileno()

    def __len__(self):
        return self.length


@pytest.fixture
def big_file(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(os.urandom(12_000_000))
    with path.open("rb") as file:
        yield file, path.read_bytes()


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [0, 16_384])
async def test_regions_of_files_are_sent_whole(serve, big_file, buffer):
    file, content = big_file
    net = serve(**({"send_buffer_bytes": buffer} if buffer else {}))
    spans = [(0, 12_000_000), (17, 1), (5_000_000, 3_000_000), (11_999_999, 1)]

    def answer(channel, frame):
        position, length = spans[int(frame)]
        channel.reply_parts([struct.pack(">i", length + 8), b"head", Region(file, position, length), b"tail"])

    net.handler.answer = answer
    peer = await net.connect(receive_buffer=buffer)
    await peer.send(b"".join(frame_of(b"%08d" % number) for number in range(4)))
    for position, length in spans:
        assert await peer.receive_frame() == b"head" + content[position : position + length] + b"tail"


@pytest.mark.asyncio
async def test_a_file_that_ends_too_early_ends_the_connection(serve, big_file):
    file, _ = big_file
    net = serve()

    def answer(channel, frame):
        channel.reply_parts([struct.pack(">i", 1000), Region(file, 11_999_900, 1000)])

    net.handler.answer = answer
    peer, other = await net.connect(), await net.connect()
    await peer.send(frame_of(b"too much"))
    assert len(await peer.receive(1004)) < 1004
    net.handler.answer = net.handler.echo
    await other.send(frame_of(b"others go on"))
    assert await other.receive_frame() == b"others go on"


@pytest.mark.asyncio
async def test_a_grown_buffer_is_given_back(serve):
    net = serve()
    peer = await net.connect()
    await peer.send(frame_of(b"x" * 1_000_000))
    await peer.receive_frame()
    [channel] = net.handler.channels
    assert len(channel._received.view) >= 1_000_000
    net.server._reap()
    net.server._reap()
    assert len(channel._received.view) == BUFFER_BYTES
    await peer.send(frame_of(b"works still"))
    assert await peer.receive_frame() == b"works still"


@pytest.mark.asyncio
async def test_a_connection_may_get_another_handler(serve):
    net = serve()
    peer, other = await net.connect(), await net.connect()
    await peer.send(frame_of(b"to the first"))
    assert await peer.receive_frame() == b"to the first"
    [channel] = net.handler.channels
    assert str(channel.principal) == "User:ANONYMOUS"
    channel.handler = replacement = type(net.handler)()
    await peer.send(frame_of(b"to the second"))
    await other.send(frame_of(b"to the first again"))
    assert await peer.receive_frame() == b"to the second"
    assert await other.receive_frame() == b"to the first again"
    assert replacement.frames == [b"to the second"]
    peer.close()
    await net.until(lambda: replacement.closed_channels == [channel])
    assert channel not in net.handler.closed_channels

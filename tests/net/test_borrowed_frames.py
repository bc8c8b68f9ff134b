"""A frame that a handler has borrowed stays as it came until the turn has committed it, whatever its connection does.

A node once wrote other bytes than it had checked: 300 small Produce requests in one read, more replies than fit into
one turn, and a connection that was read on between the handling of the rest and its commit. Older tests had a handler
that copied its frame at once, or one turn after which nothing was left in the buffer, so they could not see it.
"""

import asyncio
import random
import socket
import threading

import pytest

from klamm.net import Channel, NetConfig, NetServer, TurnLoop

from .conftest import frame_of

FRAMES = 3000
CONNECTIONS = 3


class BorrowingHandler:
    """Keeps every frame as a view until the commit, and compares it there with what it was when it was handled."""

    def __init__(self, server: NetServer, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.borrowed: list[tuple[memoryview, bytes]] = []
        self.committed: list[bytes] = []
        self.overwritten = 0
        self.hold_chance = 0.0
        self.defer_chance = 0.0
        server.turn.before_flush(self.commit, self.fail)

    def handle(self, channel, view, start, end) -> None:
        frame = view[start:end]
        self.borrowed.append((frame, bytes(frame)))
        self.server.turn.schedule()
        loop = self.server.loop
        if self.rng.random() < self.defer_chance:
            loop.call_soon(channel.defer().send, (frame_of(b"x"),))
        else:
            channel.reply(frame_of(b"x"))
        if self.rng.random() < self.hold_chance:
            channel.hold()
            loop.call_soon(channel.release)

    def on_closed(self, channel) -> None:
        pass

    def commit(self) -> None:
        for frame, copy in self.borrowed:
            self.overwritten += frame != copy
            self.committed.append(copy)
        self.borrowed.clear()

    @staticmethod
    def fail(error: BaseException) -> None:
        raise error


def send_frames(port: int, rng: random.Random, number: int, *, reads: bool) -> None:
    """One peer: FRAMES small requests as fast as the socket takes them; `reads` or leaves without its replies."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        reader = threading.Thread(target=drain, args=(sock, FRAMES * 5 if reads else 500))
        reader.start()
        index = 0
        while index < FRAMES:
            count = rng.randint(1, 400)
            frames = (
                frame_of(b"%8d-%8d-" % (number, i) + b"y" * rng.randint(0, 100)) for i in range(index, index + count)
            )
            try:
                sock.sendall(b"".join(frames))
            except ConnectionError:
                break
            index += count
        reader.join(30)


def drain(sock: socket.socket, size: int) -> None:
    while size > 0:
        try:
            size -= len(sock.recv(1 << 16)) or size
        except OSError:
            return


def run_peers(seed: int, *, hold_chance: float, defer_chance: float, reads: bool) -> BorrowingHandler:
    """Let CONNECTIONS peers send to a server with a BorrowingHandler, and give it back when all is committed."""
    print("seed", seed)
    rng = random.Random(seed)

    async def main() -> BorrowingHandler:
        loop = asyncio.get_running_loop()
        server = NetServer(loop, NetConfig())
        handler = BorrowingHandler(server, rng)
        handler.hold_chance, handler.defer_chance = hold_chance, defer_chance
        port = server.bind("TEST", "127.0.0.1", 0)[1]
        server.start(handler)
        async with asyncio.timeout(60), asyncio.TaskGroup() as peers:
            for number in range(CONNECTIONS):
                peer = random.Random(rng.random())
                peers.create_task(asyncio.to_thread(send_frames, port, peer, number, reads=reads))
        if reads:
            async with asyncio.timeout(30):
                while server.turn.scheduled or handler.borrowed:  # noqa: ASYNC110 - state of the server, not an event
                    await asyncio.sleep(0)
        server.stop()
        return handler

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize(("hold_chance", "defer_chance"), [(0.0, 0.0), (0.0, 0.3), (0.01, 0.0), (0.01, 0.05)])
@pytest.mark.parametrize("reads", [True, False], ids=["peer reads", "peer leaves"])
def test_no_borrowed_frame_is_overwritten_before_its_commit(hold_chance, defer_chance, reads):
    handler = run_peers(random.randrange(2**32), hold_chance=hold_chance, defer_chance=defer_chance, reads=reads)
    assert handler.overwritten == 0
    assert handler.committed
    if reads:
        assert len(handler.committed) >= FRAMES * CONNECTIONS
        for number in range(CONNECTIONS):
            places = [int(frame[9:17]) for frame in handler.committed if int(frame[:8]) == number]
            assert places == list(range(len(places))), "every frame once, in the order it was sent"


def test_the_fault_is_seen_when_it_is_planted(monkeypatch):
    """Without the rule that a connection waits for the commit of what it handled, frames are overwritten."""
    read = Channel._on_readable

    def read_at_once(channel: Channel) -> None:
        channel._handled_turn = -1
        read(channel)

    monkeypatch.setattr(Channel, "_on_readable", read_at_once)
    seeds = (random.randrange(2**32) for _ in range(100))
    assert any(run_peers(seed, hold_chance=0.01, defer_chance=0.3, reads=True).overwritten for seed in seeds)

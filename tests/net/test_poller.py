"""The loop that handles connections inside its wait: same promises as any loop, one wait a turn."""

import asyncio
import os
import socket

import pytest

from klamm.net import TurnLoop
from klamm.net.loop_turn import LoopTurn


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def run(main):
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(main())


def test_a_connection_is_called_when_it_can_be_read_and_no_longer_when_removed(pair):
    ours, theirs = pair
    seen = []

    async def main():
        poller = asyncio.get_running_loop().poller
        poller.add_reader(ours.fileno(), lambda: seen.append(ours.recv(10)))
        theirs.send(b"one")
        await until(lambda: seen)
        poller.remove_reader(ours.fileno())
        theirs.send(b"two")
        await asyncio.sleep(0)
        poller.add_reader(ours.fileno(), lambda: seen.append(ours.recv(10)))
        await until(lambda: len(seen) == 2)
        poller.remove_reader(ours.fileno())

    run(main)
    assert seen == [b"one", b"two"]


def test_a_turn_ends_within_the_wait_that_began_it(pair):
    ours, theirs = pair
    order = []

    async def main():
        loop = asyncio.get_running_loop()
        turn = loop.poller.turn = LoopTurn(loop, lambda: order.append("commit"), poller=loop.poller)

        def read():
            ours.recv(10)
            order.append("read")
            turn.schedule()
            loop.call_soon(order.append, "later")

        loop.poller.add_reader(ours.fileno(), read)
        theirs.send(b"x")
        await until(lambda: "later" in order)
        loop.poller.remove_reader(ours.fileno())

    run(main)
    assert order == ["read", "commit", "later"]


def test_what_was_scheduled_outside_a_wait_is_committed_before_anything_is_read(pair):
    ours, theirs = pair
    order = []

    async def main():
        loop = asyncio.get_running_loop()
        turn = loop.poller.turn = LoopTurn(loop, lambda: order.append("commit"), poller=loop.poller)
        loop.poller.add_reader(ours.fileno(), lambda: (order.append("read"), ours.recv(10)))
        theirs.send(b"x")
        turn.schedule()
        await until(lambda: "read" in order)
        loop.poller.remove_reader(ours.fileno())

    run(main)
    assert order == ["commit", "read"], "borrowed bytes would have been overwritten; and one commit is enough"


def test_a_callback_that_fails_stops_neither_the_others_nor_the_loop(pair):
    ours, theirs = pair

    async def main():
        poller = asyncio.get_running_loop().poller
        calls = []

        def fail():
            ours.recv(10)
            calls.append(1)
            raise RuntimeError("a bug")

        poller.add_reader(ours.fileno(), fail)
        theirs.send(b"x")
        await until(lambda: calls)
        poller.remove_reader(ours.fileno())
        return await asyncio.sleep(0, "alive")

    assert run(main) == "alive"


def test_asyncio_keeps_its_own_descriptors_timers_and_threads():
    async def main():
        loop = asyncio.get_running_loop()
        reader, writer = os.pipe()
        got = loop.create_future()
        loop.add_reader(reader, lambda: got.done() or got.set_result(os.read(reader, 10)))
        os.write(writer, b"mine")
        result = await got
        loop.remove_reader(reader)
        os.close(reader)
        os.close(writer)
        assert await loop.run_in_executor(None, lambda: 7) == 7
        await asyncio.sleep(0.001)
        return result

    assert run(main) == b"mine"


async def until(condition, every_s=0.001):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition is a list that grows
            await asyncio.sleep(every_s)


class Chatter:
    """A connection that always has something to read: it sends itself a byte for each it reads."""

    def __init__(self, pair, on_bytes=lambda: None):
        self._ours, self._theirs = pair
        self._on_bytes = on_bytes
        self.turns = 0

    def begin(self):
        loop = asyncio.get_running_loop()
        loop.poller.add_reader(self._ours.fileno(), self._read)
        self._theirs.send(b".")

    def _read(self):
        self._ours.recv(1)
        self.turns += 1
        self._theirs.send(b".")
        self._on_bytes()


@pytest.mark.timeout(60)
def test_turns_of_busy_connections_follow_one_another_without_asyncio(pair):
    """Breaks when every turn of a connection costs a round of asyncio's loop."""
    chatter = Chatter(pair)
    rounds = []

    async def main():
        loop = asyncio.get_running_loop()
        once = loop._run_once
        loop._run_once = lambda: rounds.append(0) or once()
        chatter.begin()
        loop.call_later(3600, list)
        await until(lambda: chatter.turns > 1000, every_s=0.05)

    run(main)
    assert len(rounds) < chatter.turns / 10


@pytest.mark.timeout(60)
def test_busy_connections_hold_back_neither_timers_nor_other_threads(pair):
    """Breaks when asyncio waits until the connections are quiet, which these never are."""
    chatter = Chatter(pair)
    order = []

    async def main():
        loop = asyncio.get_running_loop()
        chatter.begin()
        await asyncio.to_thread(order.append, "thread")
        await asyncio.sleep(0.02)
        order.append("timer")
        loop.call_later(3600, list)
        made = loop.create_future()
        chatter._on_bytes = lambda: made.done() or loop.call_later(0.01, lambda: made.done() or made.set_result("read"))
        order.append(await made)

    run(main)
    assert order == ["thread", "timer", "read"]


@pytest.mark.timeout(60)
def test_a_connection_may_stop_the_loop(pair):
    loop = TurnLoop()
    chatter = Chatter(pair, lambda: loop.stop() if chatter.turns == 10 else None)
    loop.call_soon(lambda: asyncio.Task(begin(chatter), loop=loop))
    loop.call_later(3600, list)
    try:
        loop.run_forever()
    finally:
        loop.close()
    assert chatter.turns == 10


async def begin(chatter):
    chatter.begin()

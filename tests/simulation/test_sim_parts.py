"""The parts of the simulation: if one of these lies, no run can be believed."""

import asyncio
import errno
import random

import pytest

from simulation.cluster import SimClock
from simulation.disk import Image, SimDisk
from simulation.loop import Process, SimLoop
from simulation.net import SimNet
from simulation.threads import SimThreads


def make_disk(image=None):
    return SimDisk(image or Image(), lambda: 0, lambda _: None)


def test_a_power_loss_keeps_what_was_synced():
    for seed in range(50):
        image = Image()
        disk = make_disk(image)
        disk.makedirs("/d")
        disk.write_file("/d/a", b"synced", sync=True)
        fd = disk.open("/d/a", 2)
        disk.pwrite(fd, b" and not", 6)
        image.lose_power(random.Random(seed))
        assert make_disk(image).read_file("/d/a").startswith(b"synced"), seed


def test_a_power_loss_may_take_what_was_not_synced():
    """Breaks when the disk keeps unsynced bytes through a power loss."""
    left = set()
    for seed in range(50):
        image = Image()
        disk = make_disk(image)
        disk.makedirs("/d")
        disk.write_file("/d/a", b"123", sync=True)
        disk.replace_file("/d/a", b"456", sync=False)
        disk.write_file("/d/b", b"new")
        image.lose_power(random.Random(seed))
        after = make_disk(image)
        left.add((after.read_file("/d/a"), after.exists("/d/b") and after.read_file("/d/b")))
    assert len({a for a, _ in left}) > 1
    assert len({b for _, b in left}) > 1


def test_a_kill_keeps_everything():
    image = Image()
    disk = make_disk(image)
    disk.makedirs("/d")
    disk.write_file("/d/a", b"123")
    disk.dead = True
    assert make_disk(image).read_file("/d/a") == b"123"
    with pytest.raises(OSError, match="dead"):
        disk.write_file("/d/a", b"456")


def test_names_are_those_of_a_file_system():
    disk = make_disk()
    disk.makedirs("/d/e")
    disk.write_file("/d/e/x", b"1")
    disk.rename("/d/e", "/d/f")
    assert disk.listdir("/d") == ["f"]
    assert disk.read_file("/d/f/x") == b"1"
    with pytest.raises(FileNotFoundError):
        disk.open("/d/e/x", 0)
    disk.rmtree("/d/f")
    assert disk.listdir("/d") == []
    disk.full = True
    with pytest.raises(OSError) as caught:
        disk.write_file("/d/y", b"1")
    assert caught.value.errno == errno.ENOSPC


class Echo(asyncio.Protocol):
    def __init__(self):
        self.got, self.lost = b"", None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.got += data

    def connection_lost(self, exc):
        self.lost = exc or True


def make_net():
    loop = SimLoop(random.Random(1))
    loop.net = SimNet(loop, random.Random(2))
    return loop, loop.net, Process("a", "a"), Process("b", "b")


def connect(loop, net, a, b):
    """A connection from a to a listener of b: (protocol, accepted socket)."""
    listener = net.listen(b, "b", 1)
    made = loop.spawn(a, net.connect(a, Echo, "b", 1))
    loop.run(made.done, until=loop.time() + 5)
    sock, _ = listener.accept()
    return made.result()[1], sock


def test_bytes_arrive_late_and_in_order():
    loop, net, a, b = make_net()
    protocol, sock = connect(loop, net, a, b)
    net.slow["b", "a"] = 1.0
    for i in range(50):
        sock.send(b"%d," % i)
    assert protocol.got == b""
    loop.run(lambda: False, until=loop.time() + 10)
    assert protocol.got == b"".join(b"%d," % i for i in range(50))


def test_a_cut_holds_bytes_back_until_it_heals():
    loop, net, a, b = make_net()
    protocol, sock = connect(loop, net, a, b)
    net.cut("b", "a")
    sock.send(b"x")
    loop.run(lambda: False, until=loop.time() + 5)
    assert protocol.got == b""
    net.heal("b", "a")
    loop.run(lambda: False, until=loop.time() + 5)
    assert protocol.got == b"x"


def test_a_long_cut_breaks_the_connection_at_the_end_that_waits():
    loop, net, a, b = make_net()
    protocol, sock = connect(loop, net, a, b)
    net.cut("b", "a")
    sock.send(b"x")
    loop.run(lambda: False, until=loop.time() + 60)
    assert isinstance(sock.error, ConnectionResetError)
    assert protocol.lost is None


def test_a_dead_process_refuses_and_a_dark_machine_is_silent():
    loop, net, a, b = make_net()
    protocol, _ = connect(loop, net, a, b)
    net.on_process_ended(b, notify_peer=True)
    loop.run(lambda: False, until=loop.time() + 1)
    assert isinstance(protocol.lost, ConnectionResetError)
    refused = loop.spawn(a, net.connect(a, Echo, "b", 1))
    loop.run(refused.done, until=loop.time() + 1)
    assert isinstance(refused.exception(), ConnectionRefusedError)
    net.dark.add("b")
    silent = loop.spawn(a, net.connect(a, Echo, "b", 1))
    loop.run(silent.done, until=loop.time() + 100)
    assert not silent.done()
    loop.close()


def test_a_paused_process_goes_on_with_what_came_due():
    loop, _, a, _ = make_net()
    seen = []
    loop.call_in(a, 1.0, seen.append, 1)
    loop.call_in(a, 2.0, seen.append, 2)
    loop.pause(a)
    loop.run(lambda: False, until=10)
    assert seen == []
    loop.resume(a)
    loop.run(lambda: False, until=11)
    assert seen == [1, 2]


def test_a_fast_clock_counts_more_and_its_timers_end_sooner():
    loop, _, a, b = make_net()
    clock = SimClock(loop)
    seen = []

    async def wait():
        await asyncio.sleep(9.0)
        seen.append(loop.time())

    clock.run_at(0.9)
    a.clock_rate = 0.9
    for process in (a, b):
        loop.spawn(process, wait())
    loop.run(lambda: False, until=20)
    assert seen == [9.0, 10.0]
    assert clock.monotonic_ms() == 18_000
    clock.run_at(1.1)
    assert clock.monotonic_ms() == 18_000
    loop.run(lambda: False, until=30)
    assert clock.monotonic_ms() == 29_000


def test_a_killed_process_does_nothing_more():
    loop, _, a, b = make_net()
    seen = []
    loop.call_in(a, 1.0, seen.append, "a")
    loop.call_in(b, 1.0, seen.append, "b")
    loop.kill(a)
    loop.run(lambda: False, until=10)
    assert seen == ["b"]


def test_slow_work_is_done_later_and_in_order():
    loop, _, a, _ = make_net()
    chance = random.Random(3)
    pool = SimThreads(loop, a, 1, chance.random)
    seen = []
    jobs = [pool.submit(seen.append, i) for i in range(10)]
    assert seen == []
    loop.run(lambda: False, until=100)
    assert seen == list(range(10))
    assert all(job.done() for job in jobs)


def test_an_unhandled_failure_is_kept():
    loop, _, a, _ = make_net()
    loop.call_in(a, 0.0, lambda: 1 / 0)
    loop.run(lambda: False, until=1)
    assert "ZeroDivisionError" in loop.failures[0]

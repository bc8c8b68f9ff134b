"""Whom faults meet, and in which order what waits is served: the handler by itself, without a node."""

from types import SimpleNamespace

import pytest

from klamm.protocol.codec import encode
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.testing.faults import FaultyHandler, InjectedDelay

METADATA = 3


class Router:
    """What stands behind: remembers the correlation ids it was given."""

    def __init__(self):
        self.served = []

    def handle(self, channel, view, start, end):
        self.served.append(int.from_bytes(view[start + 4 : start + 8], "big"))

    def on_closed(self, channel):
        self.served.append("closed")


class Timers:
    """A loop whose time passes when the test says so."""

    def __init__(self):
        self.due = []

    def call_later(self, delay, call, *args):
        timer = SimpleNamespace(call=lambda: call(*args), delay=delay, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.due.append(timer)
        return timer

    def pass_time(self):
        now, self.due = self.due, []
        for timer in now:
            if not timer.cancelled:
                timer.call()


class Channel:
    closed = False

    def __init__(self, kind="broker"):
        self.context = SimpleNamespace(kind=kind)


@pytest.fixture
def faulty():
    return FaultyHandler(Router(), Timers())


def ask(faulty, channel, number, client_id="app"):
    frame = encode_request_header(RequestHeader(METADATA, 12, number, client_id)) + encode(MetadataRequest(), 12)
    faulty.handle(channel, memoryview(bytearray(b"..." + frame)), 3, 3 + len(frame))


@pytest.mark.parametrize("client_id", ["app", "", None, "broker-of-news", "broker-", "b"])
def test_a_client_waits(faulty, client_id):
    faulty.delays.append(InjectedDelay(5.0, None))
    ask(faulty, Channel(), 1, client_id)
    assert faulty.inner.served == []
    assert [timer.delay for timer in faulty._loop.due] == [5.0]
    faulty._loop.pass_time()
    assert faulty.inner.served == [1]


@pytest.mark.parametrize(("kind", "client_id"), [("broker", "broker-2-fetcher-0"), ("controller", "app")])
def test_a_node_does_not(faulty, kind, client_id):
    faulty.delays.append(InjectedDelay(5.0, None))
    ask(faulty, Channel(kind), 1, client_id)
    assert faulty.inner.served == [1]


def test_one_after_the_other_on_a_connection_and_side_by_side_on_two(faulty):
    faulty.delays.append(InjectedDelay(5.0, METADATA))
    one, two = Channel(), Channel()
    for number in (1, 2):
        ask(faulty, one, number)
    ask(faulty, two, 3)
    faulty._loop.pass_time()
    assert faulty.inner.served == [1, 3]
    faulty._loop.pass_time()
    assert faulty.inner.served == [1, 3, 2]


def test_healing_serves_at_once_what_waits_in_its_order(faulty):
    faulty.delays.append(InjectedDelay(60.0, None))
    channel = Channel()
    for number in (1, 2, 3):
        ask(faulty, channel, number)
    faulty.heal()
    assert faulty.inner.served == [1, 2, 3]
    ask(faulty, channel, 4)
    faulty._loop.pass_time()
    assert faulty.inner.served == [1, 2, 3, 4]
    assert (faulty._delayed, faulty._timers) == ({}, {})


def test_a_closed_connection_is_dropped(faulty):
    faulty.delays.append(InjectedDelay(60.0, None))
    channel = Channel()
    ask(faulty, channel, 1)
    faulty.on_closed(channel)
    faulty._loop.pass_time()
    assert faulty.inner.served == ["closed"]
    assert (faulty._delayed, faulty._timers) == ({}, {})

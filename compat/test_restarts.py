"""An acknowledged record is there at its offset, whatever happened to the broker or the connection in between."""

import time
from collections.abc import Iterator

import pytest

from compat.brokers import Broker, free_port
from compat.clients import Client, JavaClient, Record
from harness.proxy import CuttingProxy


@pytest.fixture
def streamer(client: Client) -> Client:
    if not client.streams:
        pytest.skip(f"{client.name} does not tell what was acknowledged")
    return client


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_records_survive_a_restart(client: Client, java: JavaClient, broker: Broker, topic: str, how: str) -> None:
    java.create(broker.bootstrap, topic, 2)
    for codec in client.codecs:
        records = [Record(f"{codec} {i}".encode(), key=b"k", partition=i % 2) for i in range(20)]
        client.produce(broker.bootstrap, topic, records, codec=codec, idempotent=True)  # exact, however busy
    expected = 10 * len(client.codecs)
    before = {p: java.consume(broker.bootstrap, topic, p, count=expected) for p in (0, 1)}
    restart(broker, how)
    assert client.topics(broker.bootstrap)[topic] == 2
    assert {p: client.consume(broker.bootstrap, topic, p, count=expected) for p in (0, 1)} == before
    client.produce(broker.bootstrap, topic, [Record(b"after the restart")], idempotent=True)
    assert client.consume(broker.bootstrap, topic, offset=expected, count=1)[0].value == b"after the restart"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_a_stream_over_restarts(
    streamer: Client, java: JavaClient, broker: Broker, topic: str, how: str, idempotent: bool
) -> None:
    java.create(broker.bootstrap, topic)
    streamer.stream_start(broker.bootstrap, topic, acks="all" if idempotent else "1", idempotent=idempotent)
    for _ in range(2):
        time.sleep(0.6)
        restart(broker, how)
    time.sleep(0.6)
    stream = streamer.stream_stop()
    check_stream(java, broker, topic, stream.acked, exactly_once=idempotent)
    assert not stream.failures
    assert len(stream.acked) == stream.sent > 10


@pytest.fixture
def cut_broker(subject: type[Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    node = subject(tmp_path_factory.mktemp("cut"), advertised_port=free_port())
    try:
        yield node.start()
    finally:
        node.close()


def test_lost_replies_make_no_duplicate_and_no_gap(
    all_clients: dict[str, Client], java: JavaClient, cut_broker: Broker, topic: str
) -> None:
    """The reply of every 20th Produce request is lost; an idempotent producer sends again and nothing shows it."""
    proxy = CuttingProxy(port=cut_broker.advertised_port or 0)
    proxy.target_port = cut_broker.port
    try:
        for client in all_clients.values():
            if not client.streams:
                continue
            own = f"{topic}-{client.name}"
            java.create(cut_broker.bootstrap, own)
            proxy.cuts, proxy.cut_every = 0, 20
            client.stream_start(cut_broker.bootstrap, own, acks="all", idempotent=True)
            deadline = time.monotonic() + 20
            while proxy.cuts < 5 and time.monotonic() < deadline:
                time.sleep(0.02)
            proxy.cut_every = 0
            stream = client.stream_stop()
            assert proxy.cuts >= 5, f"{client.name}: {proxy.cuts} connections were cut"
            assert not stream.failures, client.name
            check_stream(java, cut_broker, own, stream.acked, exactly_once=True)
    finally:
        proxy.close()


def restart(broker: Broker, how: str) -> None:
    if how == "SIGKILL":
        broker.kill9()
    else:
        assert broker.stop() in (0, 143, -15), broker.log_tail()  # a JVM ends a SIGTERM with 143
    broker.start()


def check_stream(java: JavaClient, broker: Broker, topic: str, acked: dict[int, int], *, exactly_once: bool) -> None:
    """Every acknowledged number lies at its offset; with idempotence also once, in order and without a hole."""
    _, end = java.ends(broker.bootstrap, topic)
    seen = java.consume(broker.bootstrap, topic, count=end)
    assert [record.offset for record in seen] == list(range(end))
    numbers = [int(record.value or b"-1") for record in seen]
    lost = {number: offset for number, offset in acked.items() if offset >= end or numbers[offset] != number}
    if exactly_once:
        assert numbers == list(range(end)), "duplicates, holes or disorder"
        assert sorted(acked) == list(range(len(acked)))
    else:
        lost = {number: offset for number, offset in lost.items() if offset >= 0}
        assert set(acked) <= set(numbers)
    assert not lost

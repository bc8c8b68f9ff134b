"""What every client must be able to do, written once and run with each of them."""

import time

import pytest

from compat.brokers import Broker
from compat.clients import ALL_CODECS, Client, ClientFailed, JavaClient, Record, Seen

MESSAGE_TOO_LARGE = 10
TOPIC_ALREADY_EXISTS = 36
BASE_TIME = 1_700_000_000_000


def small_records(client: Client, count: int = 6) -> list[Record]:
    """Keys, headers, a tombstone and a keyless record among the plain ones, with times where the client sets them."""
    return [
        Record(
            key=None if i == 3 else f"key-{i}".encode(),
            value=None if i == 1 else f"value {i} ".encode() * (i + 1),
            headers=(("source", b"compat"), ("number", str(i).encode())) if i % 2 == 0 else (),
            timestamp=BASE_TIME + 1000 * i if client.sets_timestamps else None,
        )
        for i in range(count)
    ]


def assert_same(seen: list[Seen], sent: list[Record], first_offset: int) -> None:
    assert [one.offset for one in seen] == list(range(first_offset, first_offset + len(sent)))
    assert [one.key for one in seen] == [one.key for one in sent]
    assert [one.value for one in seen] == [one.value for one in sent]
    assert [one.headers for one in seen] == [one.headers for one in sent]
    for got, want in zip(seen, sent, strict=True):
        if want.timestamp is not None:
            assert got.timestamp == want.timestamp
        else:
            assert abs(got.timestamp - time.time() * 1000) < 600_000


def test_create_list_and_delete_a_topic(client: Client, broker: Broker, topic: str) -> None:
    if not client.admin:
        client.produce(broker.bootstrap, topic, [Record(b"makes the topic")])
        assert client.topics(broker.bootstrap)[topic] == 1
        return
    client.create(broker.bootstrap, topic, 3)
    assert client.topics(broker.bootstrap)[topic] == 3
    if client.name != "kafkajs":  # which answers `false` instead of the error
        with pytest.raises(ClientFailed) as refused:
            client.create(broker.bootstrap, topic, 3)
        assert refused.value.code == TOPIC_ALREADY_EXISTS
    client.delete(broker.bootstrap, topic)
    deadline = time.monotonic() + 10
    while topic in client.topics(broker.bootstrap):
        assert time.monotonic() < deadline, "the deleted topic is still listed"
        time.sleep(0.05)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ALL_CODECS)
def test_produce_and_consume(
    client: Client, java: JavaClient, broker: Broker, topic: str, codec: str, acks: str
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} of its own")
    java.create(broker.bootstrap, topic, 2)
    java.ends(broker.bootstrap, topic)  # without acknowledgements a record before the leader is up is simply lost
    sent = small_records(client)
    offsets = client.produce(broker.bootstrap, topic, sent, acks=acks, codec=codec)
    assert_same(client.consume(broker.bootstrap, topic, count=len(sent)), sent, 0)
    if client.tells_offsets and acks != "0":
        assert offsets == list(range(len(sent)))
    if client is not java:
        assert_same(java.consume(broker.bootstrap, topic, count=len(sent)), sent, 0)
    assert client.ends(broker.bootstrap, topic, 0) == (0, len(sent))
    assert client.ends(broker.bootstrap, topic, 1) == (0, 0)


def test_every_reader_reads_what_every_client_wrote(
    all_clients: dict[str, Client], java: JavaClient, broker: Broker, topic: str
) -> None:
    java.create(broker.bootstrap, topic, 1)
    sent: list[Record] = []
    for client in all_clients.values():
        for codec in client.codecs:
            records = [Record(f"{client.name} {codec} {i}".encode(), key=codec.encode()) for i in range(2)]
            client.produce(broker.bootstrap, topic, records, codec=codec)
            sent += records
    for client in all_clients.values():
        if client.codecs == ALL_CODECS:  # who cannot write a codec cannot read it either
            assert_same(client.consume(broker.bootstrap, topic, count=len(sent)), sent, 0)


def test_a_record_of_a_megabyte(client: Client, java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic)
    sent = [Record(b"small"), Record(b"0123456789abcdef" * 62_500), Record(b"after")]
    client.produce(broker.bootstrap, topic, sent, acks="all")
    assert_same(client.consume(broker.bootstrap, topic, count=3), sent, 0)


def test_a_record_too_large_is_refused(client: Client, java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic, max_message_bytes="20000")
    with pytest.raises(ClientFailed) as refused:
        client.produce(broker.bootstrap, topic, [Record(b"x" * 40_000)], acks="all")
    assert refused.value.code == MESSAGE_TOO_LARGE
    sent = [Record(b"x" * 10_000)]
    client.produce(broker.bootstrap, topic, sent, acks="all")
    assert_same(client.consume(broker.bootstrap, topic, count=1), sent, 0)


def test_seek(client: Client, java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic, 2)
    sent = [Record(f"{i}".encode(), partition=1) for i in range(60)]
    for start in range(0, 60, 20):
        client.produce(broker.bootstrap, topic, sent[start : start + 20])
    for offset in (0, 19, 20, 33, 59):
        seen = client.consume(broker.bootstrap, topic, 1, offset=offset, count=min(5, 60 - offset))
        assert_same(seen, sent[offset : offset + 5], offset)
    assert client.ends(broker.bootstrap, topic, 1) == (0, 60)


def test_offsets_by_time(client: Client, java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic)
    if client.sets_timestamps:
        sent = [Record(f"{i}".encode(), timestamp=BASE_TIME + 1000 * i) for i in range(40)]
        for start in range(0, 40, 10):
            client.produce(broker.bootstrap, topic, sent[start : start + 10])
        times = [one.timestamp or 0 for one in sent]
    else:
        for i in range(6):
            client.produce(broker.bootstrap, topic, [Record(f"{i}".encode())])
        times = [one.timestamp for one in java.consume(broker.bootstrap, topic, count=6)]
    for offset, timestamp in enumerate(times):
        assert client.offset_for_time(broker.bootstrap, topic, timestamp) == times.index(timestamp)
        if client.sets_timestamps:
            assert client.offset_for_time(broker.bootstrap, topic, timestamp - 999) == offset
    after = client.offset_for_time(broker.bootstrap, topic, times[-1] + 1)
    assert after in (-1, len(times)), "nothing is that late: clients say -1 or the end"


def test_idempotent_producer(client: Client, java: JavaClient, broker: Broker, topic: str) -> None:
    java.create(broker.bootstrap, topic)
    sent = [Record(f"{i}".encode(), key=b"k") for i in range(30)]
    for start in range(0, 30, 10):
        client.produce(broker.bootstrap, topic, sent[start : start + 10], idempotent=True)
    assert_same(client.consume(broker.bootstrap, topic, count=30), sent, 0)

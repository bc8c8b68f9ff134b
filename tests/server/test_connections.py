"""What a node does with bytes that are no request, and with many requests at once."""

import struct

import pytest

from harness.wire import Wire, batch, parse_reply, produce_fields, request_bytes
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import APIS
from klamm.server.requests.routes import SERVED

UNSERVED = {api.name: api.key for api in APIS.values() if api.name not in SERVED}
UNSERVED |= {"no such API": 999, "negative": -5}


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 1, -1)


@pytest.mark.parametrize("key", UNSERVED.values(), ids=UNSERVED)
def test_an_api_that_is_not_served_closes_the_connection(klamm, wire, key):
    with Wire(klamm.port) as other:
        other.send_frame(header(key, 0) + bytes(20))
        assert other.is_closed_by_peer()
    assert wire.call("api_versions", 0).error_code == 0


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (1, 19), (3, 14), (3, -1), (19, 1), (2, 0)])
def test_a_version_that_is_not_served_closes_the_connection(klamm, key, version):
    with Wire(klamm.port) as other:
        other.send_frame(header(key, version) + bytes(30))
        assert other.is_closed_by_peer()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 7) + bytes(7),
        struct.pack(">i", 104_857_601),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        struct.pack(">i", 40) + b"\xff" * 40,
        struct.pack(">i", 20) + header(3, 9) + b"\xff" * 10,
        struct.pack(">i", 8) + struct.pack(">hhi", 3, 9, 1),
    ],
    ids=["negative", "empty", "short", "limit", "huge", "http", "tls", "garbage", "bad body", "bare header"],
)
def test_bytes_that_are_no_request_close_only_that_connection(klamm, wire, data):
    with Wire(klamm.port) as other:
        other.sock.sendall(data)
        assert other.is_closed_by_peer()
    assert wire.call("api_versions", 0).error_code == 0


def test_what_came_before_the_garbage_is_answered_or_dropped_but_nothing_hangs(klamm):
    with Wire(klamm.port) as other:
        other.send("api_versions", 0)
        other.sock.sendall(b"\xff" * 100)
        data = b""
        while more := other.sock.recv(4096):
            data += more


def test_pipelined_requests_are_answered_in_order(wire):
    topic = wire.create_topic()
    sent = []
    for number in range(50):
        sent.append(("api_versions", 0, wire.send("api_versions", 0)))
        sent.append(("produce", 9, wire.send("produce", 9, **produce_fields(topic, batch(b"%d" % number)))))
        sent.append(("metadata", 9, wire.send("metadata", 9, topics=[{"name": topic}])))
        sent.append(("create_topics", 5, wire.send("create_topics", 5, topics=[], timeout=1000)))
    for api, version, correlation_id in sent:
        wire.receive(api, version, correlation_id)
    assert wire.values(topic) == [b"%d" % number for number in range(50)]


def test_replies_wait_behind_a_fetch_that_waits(klamm, wire):
    topic = wire.create_topic()
    requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    fields = {"replica_id": -1, "max_wait": 10_000, "min_bytes": 1, "max_bytes": 10_000}
    fetch = wire.send("fetch", 11, topics=[{"topic": topic, "partitions": [requested]}], **fields)
    versions = wire.send("api_versions", 0)
    produce = wire.send("produce", 9, **produce_fields(wire_other := topic, batch(b"x"), partition=5))
    assert wire.is_silent()
    with Wire(klamm.port) as other:
        assert other.produce(wire_other, batch(b"now")).error_code == 0
    assert wire.receive("fetch", 11, fetch).responses[0].partitions[0].high_watermark == 1
    wire.receive("api_versions", 0, versions)
    refused = wire.receive("produce", 9, produce).responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_waiting_fetch_does_not_delay_what_comes_behind_it_from_being_done(klamm, wire):
    """The reply waits its turn; the append itself does not, and even wakes the Fetch before it."""
    topic = wire.create_topic()
    requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    fields = {"replica_id": -1, "max_wait": 10_000, "min_bytes": 1, "max_bytes": 10_000}
    fetch = wire.send("fetch", 11, topics=[{"topic": topic, "partitions": [requested]}], **fields)
    produce = wire.send("produce", 9, **produce_fields(topic, batch(b"x")))
    assert wire.receive("fetch", 11, fetch).responses[0].partitions[0].records
    assert wire.receive("produce", 9, produce).responses[0].partition_responses[0].error_code == 0


def test_frames_may_arrive_byte_by_byte(klamm):
    with Wire(klamm.port) as wire:
        body = request_bytes("metadata", 12, 5, "slow", topics=[])
        for byte in struct.pack(">i", len(body)) + body:
            wire.sock.sendall(bytes([byte]))
        parse_reply(wire.receive_frame(), "metadata", 12, 5)


def test_a_client_without_an_id_is_served(klamm):
    with Wire(klamm.port, client_id=None) as wire:
        assert wire.call("metadata", 0).brokers
        assert wire.call("metadata", 12, topics=None).brokers

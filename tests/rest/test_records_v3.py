"""Records of v3: one, a stream with answers as records are acknowledged, a batch."""

import base64
import contextlib
import json
import socket

import pytest

from klamm.client import Consumer
from klamm.rest.app.records_v3 import RecordSender

from .conftest import running_proxy, wait_until


class RecordConnection:
    """One chunked request whose answers are read while it is sent."""

    def __init__(self, proxy, topic):
        self.socket = socket.create_connection(proxy.address, timeout=60)
        path = f"{proxy.cluster}/topics/{topic}/records"
        self.socket.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        self._file = self.socket.makefile("rb")
        self.status = None
        self._buffer = b""

    def send(self, data):
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        self.socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self):
        self.socket.sendall(b"0\r\n\r\n")

    def send_until_held_back(self, chunk):
        """Return how many chunks the proxy and the sockets took."""
        for count in range(4000):
            try:
                self.send(chunk)
            except TimeoutError:
                return count
        raise AssertionError("nothing held the client back")

    def read_status(self):
        if self.status is None:
            self.status = int(self._file.readline().split()[1])
            while self._file.readline().strip():
                pass
        return self.status

    def answer(self):
        """Return the next answer; None at the end."""
        self.read_status()
        while b"\n" not in self._buffer:
            size = int(self._file.readline() or b"0", 16)
            self._buffer += self._file.read(size)
            self._file.readline()
            if not size:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self):
        self._file.close()
        self.socket.close()


def streaming(proxy, topic):
    return contextlib.closing(RecordConnection(proxy, topic))


@pytest.fixture
def stream(proxy, topic):
    with streaming(proxy, topic) as connection:
        yield connection


def text(data, **more):
    return {"value": {"type": "STRING", "data": data}, **more}


def read_topic(proxy, topic, count):
    with Consumer(bootstrap_servers=proxy.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        records = []
        while len(records) < count:
            records += consumer.poll(5)
    return records


def test_a_record_is_produced_with_headers_key_and_time(proxy, topic):
    record = {
        "partition_id": 0,
        "headers": [{"name": "source", "value": base64.b64encode(b"web").decode()}],
        "key": {"type": "BINARY", "data": base64.b64encode(b"k").decode()},
        "value": {"type": "JSON", "data": {"a": 1}},
        "timestamp": "2021-02-05T19:14:42.123Z",
    }
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records", record)
    assert answer.status == 200
    assert answer.json() == {
        "error_code": 200,
        "cluster_id": proxy.service.cluster_id,
        "topic_name": topic,
        "partition_id": 0,
        "offset": 0,
        "timestamp": "2021-02-05T19:14:42.123Z",
        "key": {"type": "BINARY", "size": 1},
        "value": {"type": "JSON", "size": 7},
    }
    [stored] = read_topic(proxy, topic, 1)
    assert (stored.key, stored.value, stored.timestamp) == (b"k", b'{"a":1}', 1612552482123)
    assert stored.headers == (("source", b"web"),)


def test_several_records_in_one_body_are_answered_in_order(proxy, topic):
    body = b"\n".join(json.dumps(text(str(number))).encode() for number in range(20))
    answer = proxy.post(f"/kafka{proxy.cluster}/topics/{topic}/records", body)
    assert [line["offset"] for line in answer.lines()] == list(range(20))
    assert [record.value for record in read_topic(proxy, topic, 20)] == [b"%d" % number for number in range(20)]


def test_records_fail_alone(proxy, topic):
    body = b"".join(
        json.dumps(record).encode()
        for record in (
            text("a"),
            text("b", partition_id=9),
            {"value": {"type": "BINARY", "data": "!"}},
            {"value": {"data": 1}},
            text("c"),
        )
    )
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records", body)
    assert answer.status == 200
    assert [line["error_code"] for line in answer.lines()] == [200, 40402, 400, 42205, 200]
    assert [line.get("offset") for line in answer.lines()] == [0, None, None, None, 1]


FAULTS = [b"{]}{}", b'{"value": nonsense}', b"[]", b'{"value": {"type": "STR', b"\xff", b'{"value": "\xc3("}']


@pytest.mark.parametrize("fault", FAULTS)
def test_records_before_a_fault_in_a_body_are_produced(proxy, topic, fault):
    body = json.dumps(text("a")).encode() + json.dumps(text("b")).encode() + fault
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records", body)
    assert [line["error_code"] for line in answer.lines()] == [200, 200, 400]
    assert [record.value for record in read_topic(proxy, topic, 2)] == [b"a", b"b"]


@pytest.mark.parametrize("fault", FAULTS)
def test_records_before_a_fault_in_a_chunk_are_produced(proxy, topic, stream, fault):
    stream.send(json.dumps(text("a")).encode() + json.dumps(text("b")).encode() + fault)
    stream.end()
    assert [stream.answer()["error_code"] for _ in range(3)] == [200, 200, 400]
    assert stream.answer() is None
    assert [record.value for record in read_topic(proxy, topic, 2)] == [b"a", b"b"]


def test_requests_that_name_nothing_are_refused(proxy, topic):
    record = text("a")
    for path, body, status, code in (
        (f"{proxy.cluster}/topics/no-such-topic/records", record, 404, 40403),
        ("/v3/clusters/other/topics/t/records", record, 404, 404),
        (f"{proxy.cluster}/topics/{topic}/records", b"", 422, 42206),
        (f"{proxy.cluster}/topics/{topic}/records", b"  ", 422, 42206),
    ):
        answer = proxy.post(path, body)
        assert (answer.status, answer.json()["error_code"]) == (status, code)
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records", record, "text/plain")
    assert answer.status == 415


def test_a_stream_is_answered_while_it_is_sent(stream):
    for number in range(3):
        stream.send(text(str(number)))
        answer = stream.answer()  # before the next record is sent, and before the body ends
        assert (answer["error_code"], answer["offset"]) == (200, number)
    stream.end()
    assert stream.answer() is None
    assert stream.status == 200


def test_records_of_a_stream_may_be_cut_anywhere(stream):
    data = b"".join(json.dumps(text(f"ä{number}"), ensure_ascii=False).encode() for number in range(5))
    for at in range(0, len(data), 7):
        stream.send(data[at : at + 7])
    stream.end()
    assert [stream.answer()["offset"] for _ in range(5)] == list(range(5))
    assert stream.answer() is None


def test_a_fault_in_a_stream_ends_it_after_the_answers_before(stream):
    stream.send(text("a"))
    stream.send({"value": {"type": "STRING", "data": 5}})
    stream.send(b'{"value": nonsense}')
    assert stream.answer()["error_code"] == 200
    assert stream.answer()["error_code"] == 400
    assert stream.answer()["error_code"] == 400
    assert stream.answer() is None


def test_a_stream_ends_with_an_error_of_the_proxy(stream, monkeypatch):
    stream.send(text("a"))
    assert stream.answer()["error_code"] == 200

    async def fail(*_):
        raise ArithmeticError("a bug")

    monkeypatch.setattr(RecordSender, "send", fail)
    stream.send(text("b"))
    assert stream.answer()["error_code"] == 50002
    assert stream.answer() is None


def test_a_record_without_end_is_refused(klamm_broker, topic):
    with running_proxy(klamm_broker.bootstrap, record_bytes_max=10_000) as proxy, streaming(proxy, topic) as stream:
        stream.send(b'{"value": {"type": "STRING", "data": "')
        with contextlib.suppress(OSError):  # the proxy closes the connection
            for _ in range(1000):
                stream.send(b"x" * 1000)
        assert stream.answer()["error_code"] == 413


def test_a_client_that_does_not_read_its_answers_is_held_back(klamm_broker, topic):
    """The proxy stops reading when its answers are not taken: what it keeps in memory is bounded."""
    with running_proxy(klamm_broker.bootstrap, send_buffer_bytes=8192) as proxy, streaming(proxy, topic) as stream:
        stream.socket.settimeout(2)
        sent = stream.send_until_held_back(json.dumps(text("x" * 10)).encode() * 500) * 500
        taken = proxy.service.counts.records
        assert taken < sent, "the rest waits in the sockets"
        # Once it reads, the stream goes on behind what was answered.
        stream.socket.settimeout(60)
        count = min(sent, taken + 1000)
        assert [stream.answer()["offset"] for _ in range(count)] == list(range(count))


def test_a_client_that_leaves_ends_its_stream(proxy, topic):
    with streaming(proxy, topic) as stream:
        stream.send(text("a"))
        stream.answer()
        assert proxy.service.streams == 1
    wait_until(lambda: not proxy.service.streams)


def test_streams_are_limited(klamm_broker, topic):
    options = {"streams_max": 1, "stream_idle_s": 1.0}
    with running_proxy(klamm_broker.bootstrap, **options) as proxy, streaming(proxy, topic) as stream:
        stream.send(text("a"))
        assert stream.answer()["error_code"] == 200
        with streaming(proxy, topic) as second:
            second.send(text("b"))
            assert second.read_status() == 429
        # Nothing comes any more: the stream ends with a reason.
        assert stream.answer()["error_code"] == 408
        assert stream.answer() is None


def test_a_batch_has_an_answer_for_every_id(proxy, topic):
    entries = [
        {"id": "a", **text("1")},
        {"id": "b", "value": {"type": "BINARY", "data": "!"}},
        {"id": "c", **text("2")},
    ]
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records:batch", {"entries": entries})
    assert answer.status == 207
    answered = answer.json()
    assert [(success["id"], success["offset"]) for success in answered["successes"]] == [("a", 0), ("c", 1)]
    assert [(failure["id"], failure["error_code"]) for failure in answered["failures"]] == [("b", 400)]
    answer = proxy.post(f"{proxy.cluster}/topics/{topic}/records:batch", {"entries": []})
    assert (answer.status, answer.json()["error_code"]) == (422, 42208)

"""What the benchmark of registries writes and sends means to a registry what it is meant to."""

import asyncio
import contextlib
import http.server
import itertools
import json
import threading

import pytest

from benchmarks.http_load import HttpLoad, RunningService, request_bytes
from benchmarks.registry import HUNDRED, VERSIONS, RegistryUnderTest, record_schema, topic_records
from benchmarks.service_loads import RATE, RSS, compare_rows
from klamm.registry import schemas
from klamm.registry.store.refusals import RegistryRefusal

from .small_store import SmallStore


def open_topic(count):
    store = SmallStore(schemas)
    store.topic = [(key.encode(), value.encode()) for key, value in topic_records(count)]
    store.open()
    return store


def test_the_topic_opens_with_all_schemas():
    store = open_topic(5)
    ids = [json.loads(value)["id"] for _, value in store.topic]
    assert ids == list(range(1, 6 + VERSIONS))
    assert store.versions(HUNDRED) == list(range(1, VERSIONS + 1))
    assert all(store.versions(f"subject-{number}") == [1] for number in range(1, 6))


def test_a_candidate_is_refused_by_the_middle_version_alone():
    store = open_topic(1)
    store.config(HUNDRED, compatibility="BACKWARD_TRANSITIVE")
    candidate = record_schema("Hundred", middle="int", n7="int")
    with pytest.raises(RegistryRefusal, match="middle") as refusal:
        store.register(HUNDRED, candidate)
    assert refusal.value.status == 409
    # Without the middle version nothing forbids it.
    store.delete(HUNDRED, VERSIONS // 2)
    store.register(HUNDRED, candidate)
    assert store.versions(HUNDRED)[-1] == VERSIONS + 1


def test_rows_become_ratios_of_which_more_is_better():
    own = {"requests_per_s": 900.0, "cpu_ms_per_request": 1.0, "p50_ms": 1.0, "p99_ms": 2.0, "rss_mb": 50.0}
    beside = own | {"requests_per_s": 300.0, "rss_mb": 150.0}
    alone = compare_rows({"klamm": own})
    assert (alone["requests/s"], RATE in alone) == (900.0, False)
    both = compare_rows({"klamm": own, "beside": beside})
    assert (both[RATE], both[RSS]) == (3.0, 3.0)


class Answering:
    """A server that gives one answer to every request without a body."""

    def __init__(self, answer):
        self.answer = answer

    async def handle(self, reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer)
        except asyncio.IncompleteReadError:
            writer.close()

    async def run(self, make_load):
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        async with server:
            load = make_load(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await load.run(0.05, 1)
            return load


def lookups(url):
    return HttpLoad(url, itertools.repeat(request_bytes(url, "GET", "/schemas/ids/1")), expected=b'"schema":')


def test_answers_are_counted():
    load = asyncio.run(Answering(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"schema": 1}').run(lookups))
    assert load.latencies


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_other_answers_fail_the_load(answer):
    with pytest.raises(RuntimeError, match="answer"):
        asyncio.run(Answering(answer).run(lookups))


@contextlib.contextmanager
def registry_with_answers(next_status):
    """A registry that gives empty answers with these statuses."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.answer()

        def do_PUT(self):
            self.answer()

        def answer(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(next_status())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            """Nothing is logged."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            service = RunningService(f"http://127.0.0.1:{server.server_port}", None)
            yield RegistryUnderTest(service, 1, itertools.count(1))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "path"), [(200, "versions"), (404, "versions/latest")])
def test_a_registry_without_a_check_of_all_versions_is_asked_for_the_latest(status, path):
    with registry_with_answers(lambda: status) as registry:
        request = next(registry.check().requests)
    assert request.startswith(f"POST /compatibility/subjects/{HUNDRED}/{path} HTTP/1.1".encode())


def test_a_registry_is_prepared_when_it_has_a_leader():
    statuses = iter([500, 503, 200])
    with registry_with_answers(lambda: next(statuses)) as registry:
        registry.prepare()
    assert list(statuses) == []


def test_a_registry_that_refuses_its_level_is_not_asked_again():
    statuses = iter([422, 200])
    with (
        registry_with_answers(lambda: next(statuses)) as registry,
        pytest.raises(OSError, match="422"),
    ):
        registry.prepare()
    assert list(statuses) == [200]

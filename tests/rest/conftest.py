"""A proxy over the shared broker, in a thread of this process."""

import contextlib
import http.client
import json
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from harness.http_thread import serve_when_ready
from klamm.http.binding import bind
from klamm.rest.server import make_rest
from klamm.rest.service import RestConfig

V2 = "application/vnd.kafka.v2+json"


def wait_until(condition, limit_s=60.0):
    """Wait for a state."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the state did not come"
        time.sleep(0.02)


@dataclass
class HttpAnswer:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)

    def lines(self):
        return [json.loads(line) for line in self.body.splitlines()]


@dataclass
class RunningProxy:
    url: str
    bootstrap: str
    service: object
    stop: object
    loop: object
    answers: list = field(default_factory=list)
    """Method, path and answer of all requests, to be compared with the description."""

    @property
    def address(self):
        return urlsplit(self.url).hostname, urlsplit(self.url).port

    @property
    def cluster(self):
        return f"/v3/clusters/{self.service.cluster_id}"

    def request(self, method, path, body=None, content_type=None, limit_s=60, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=limit_s)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
        if data is not None:
            default = "application/json" if "/v3/" in path else V2
            headers["Content-Type"] = content_type or default
        with contextlib.closing(connection):
            connection.request(method, path.removeprefix(self.url), data, headers)
            response = connection.getresponse()
            lowered = {name.lower(): value for name, value in response.getheaders()}
            answer = HttpAnswer(response.status, lowered, response.read())
        self.answers.append((method, path.removeprefix(self.url), answer))
        return answer

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, body=None, content_type=None, **headers):
        return self.request("POST", path, body, content_type, **headers)

    def produce(self, topic, *values, embedded="json", **more):
        body = {"records": [{"value": value} for value in values]} | more
        answer = self.post(f"/topics/{topic}", body, f"application/vnd.kafka.{embedded}.v2+json")
        assert answer.status == 200, answer.body
        return answer.json()

    def create_instance(self, group, **settings):
        answer = self.post(
            f"/consumers/{group}", {"format": "json", "auto.offset.reset": "earliest", "fetch.min.bytes": 1} | settings
        )
        assert answer.status == 200, answer.body
        return answer.json()["base_uri"].removeprefix(self.url)

    def read_until(self, instance, count, **headers):
        """Read until `count` records came; a member of a group may need several reads to join it."""
        records = []
        for _ in range(60):
            answer = self.get(f"{instance}/records?timeout=5000", **headers)
            assert answer.status == 200, answer.body
            records += answer.json()
            if len(records) >= count:
                return records
        raise AssertionError(f"{len(records)} of {count} records came: {records}")


@contextlib.contextmanager
def running_proxy(bootstrap, send_buffer_bytes=None, settings=None, **options):
    """A proxy that serves until the block ends, or `stop` is called."""
    listening = bind("127.0.0.1", 0)
    if send_buffer_bytes is not None:  # accepted sockets inherit it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    host, port = listening.getsockname()
    config = RestConfig({**(settings or {}), "bootstrap.servers": bootstrap}, **options)

    def make_served():
        served = make_rest(config, listening)
        served.app.hosts = frozenset({"proxy.example"})
        return served

    with serve_when_ready(make_served, "rest proxy") as running:
        yield RunningProxy(f"http://{host}:{port}", bootstrap, running.served.service, running.stop, running.loop)


@pytest.fixture(scope="module")
def proxy(klamm_broker):
    with running_proxy(klamm_broker.bootstrap) as running:
        yield running


@pytest.fixture
def topic(klamm_topic):
    return klamm_topic

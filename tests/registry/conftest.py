"""Registries over the shared broker, each in a thread of this process with its own topic and group."""

import contextlib
import json
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest

from harness.http_thread import serve_when_ready
from klamm.http.binding import bind
from klamm.registry import schemas
from klamm.registry.server import make_registry
from klamm.registry.service import RegistryConfig
from klamm.registry.store.election import RegistryIdentity
from klamm.testing import unique


@dataclass
class RunningRegistry:
    url: str
    topic: str
    group: str
    stop: object
    tls: object = None

    def request(self, method, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.tls) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def get(self, path):
        return self.request("GET", path)[1]

    def register(self, subject, text, **more):
        status, answer = self.request("POST", f"/subjects/{subject}/versions", {"schema": text, **more})
        assert status == 200, answer
        return answer


@contextlib.contextmanager
def running_registry(bootstrap, topic, group, client_tls=None, served=None, settings=None, **options):
    """A registry that serves until the block ends, or `stop` is called; `served` are options of `make_registry`."""
    listening = bind("127.0.0.1", 0)
    host, port = listening.getsockname()
    client = {**(settings or {}), "bootstrap.servers": bootstrap}
    config = RegistryConfig(client, RegistryIdentity(host, port, **options), topic, group)

    def make_served():
        return make_registry(config, schemas, listening, **(served or {}))

    with serve_when_ready(make_served, "registry") as running:
        yield RunningRegistry(config.advertised.url, topic, group, running.stop, client_tls)


@pytest.fixture(scope="module")
def registry(klamm_broker):
    with running_registry(klamm_broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running

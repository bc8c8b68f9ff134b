"""Registries over the shared broker, each in a thread of this process with its own topic and group."""

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass

import pytest

from klamm.http.binding import bind
from klamm.http.server import serve
from klamm.registry import schemas
from klamm.registry.server import make_registry
from klamm.registry.service import RegistryConfig
from klamm.registry.store.election import RegistryIdentity
from klamm.testing import unique

START_S = 60


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
    ready, loops, failures = threading.Event(), [], []

    def run():
        async def main():
            stopping = asyncio.Event()
            loops.append((asyncio.get_running_loop(), stopping))
            await serve([make_registry(config, schemas, listening, **(served or {}))], ready.set, stopping)

        try:
            asyncio.run(main())
        except Exception as error:  # noqa: BLE001
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="registry", daemon=True)
    thread.start()

    def stop():
        loop, stopping = loops[0]
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(stopping.set)
        thread.join(START_S)
        assert not thread.is_alive()

    assert ready.wait(START_S)
    if failures:
        raise failures[0]
    try:
        yield RunningRegistry(config.advertised.url, topic, group, stop, client_tls)
    finally:
        stop()
        listening.close()


@pytest.fixture(scope="module")
def registry(klamm_broker):
    with running_registry(klamm_broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running

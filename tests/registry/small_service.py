"""A registry without a cluster, and a client that calls its application in this process."""

import asyncio
import json

from klamm.registry.app import RegistryApp
from klamm.registry.service import RegistryConfig, RegistryService
from klamm.registry.store import RegistryRefusal
from klamm.registry.store.election import RegistryIdentity

from . import small_formats

HERE = RegistryIdentity("127.0.0.1", 1)
RECORD_BYTES_MAX = 100_000


class MemoryLog:
    """The topic as a list; a write is replayed at once."""

    def __init__(self, state):
        self.state = state
        self.cluster_id = "cluster"
        self.failure = None
        self.topic = []
        self.batches = []
        self.ends_with_marker = False
        self.foreign_writes = 0

    @property
    def position(self):
        return len(self.topic)

    async def append(self, entries, timeout_s):
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.batches.append(len(entries))
        await asyncio.sleep(0)
        for pair in [self.state.encode(entry) for entry in entries]:
            self.topic.append(pair)
            self.state.replay(*pair, 1700000000000)

    def check_sizes(self, entries):
        if any(len(self.state.encode(entry)[1] or b"") > RECORD_BYTES_MAX for entry in entries):
            raise RegistryRefusal(42209, "too large")

    async def begin_writing(self, timeout_s):
        pass

    async def stop_writing(self):
        pass

    def check(self):
        pass

    @property
    def is_reading(self):
        return True


class SmallService(RegistryService):
    def __init__(self, formats=small_formats):
        super().__init__(RegistryConfig({"bootstrap.servers": "127.0.0.1:1"}, HERE, write_timeout_s=5.0), formats)
        self.log = MemoryLog(self.state)
        self._caught_up = True


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    @property
    def error_code(self):
        return self.json()["error_code"]


class AsgiClient:
    """Requests to an application in this process."""

    def __init__(self, service, **options):
        self.service = service
        self.app = RegistryApp(service, **options)
        self.runner = asyncio.Runner()
        self.run(service.follow(HERE, own=True))

    def run(self, awaitable):
        return self.runner.run(awaitable)

    def close(self):
        self.runner.close()

    def __call__(self, method, target, body=None, **headers):
        path, _, query = target.partition("?")
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("content-type", "application/vnd.schemaregistry.v1+json")
            sent.setdefault("content-length", str(len(data)))
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 5),
        }
        messages = []

        async def receive():
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message):
            messages.append(message)

        self.run(self.app(scope, receive, send))
        start, end = messages
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, end["body"])

    def get(self, target, **headers):
        return self("GET", target, **headers)

    def post(self, target, body, **headers):
        return self("POST", target, body, **headers)

    def put(self, target, body):
        return self("PUT", target, body)

    def delete(self, target):
        return self("DELETE", target)

    def register(self, subject, text, **more):
        return self.post(f"/subjects/{subject}/versions", {"schema": text, **more})

"""The application class that all HTTP services share: routes, bodies, streams, login, errors."""

import asyncio
import json

import pytest

from klamm.http.app import HttpApp, UnsupportedScopeError
from klamm.http.messages import Answered, HttpResponse, json_response
from klamm.http.metrics import ServiceMetric
from klamm.http.operations import OperationRoutes
from klamm.http.refusals import HttpRefusal
from klamm.security.core.principal import Principal


class Exchange:
    """One request to an application, and what was sent."""

    def __init__(self, app, method, target, chunks=(), **headers):
        path, _, query = target.partition("?")
        self.scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 5),
        }
        if chunks:
            self.scope["headers"].append((b"transfer-encoding", b"chunked"))
        self.app = app
        self.chunks = list(chunks)
        self.sent = []
        self.closed = asyncio.Event()
        self.messages_max = None

    async def receive(self):
        if self.chunks:
            chunk = self.chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self.chunks)}
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        if len(self.sent) == self.messages_max:
            self.closed.set()

    async def run(self):
        await self.app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        return b"".join(message["body"] for message in self.sent[1:])


def call(app, method, target, chunks=(), **headers):
    async def run():
        return await Exchange(app, method, target, chunks, **headers).run()

    return asyncio.run(run())


class EchoApp(HttpApp):
    async def authorize(self, request, route):
        if route.tag == "admin" and request.principal.name != "admin":
            raise HttpRefusal(40301, f"{request.principal} may not do this")

    def explain(self, error):
        return HttpRefusal(40404, "no such key") if isinstance(error, KeyError) else None


async def echo(request):
    return json_response([request.values, request.query, request.body.decode(), str(request.principal)])


@pytest.fixture
def app():
    app = EchoApp("echo", body_bytes_max=10)
    app.router.add("GET", "/things/{name}", echo)
    app.router.add("POST", "/things/{name}", echo, tag="admin")
    return app


def test_values_are_decoded_after_the_path_is_split(app):
    answer = call(app, "GET", "/things/a%2Fb?x=1&x=2&y")
    assert json.loads(answer.body) == [{"name": "a/b"}, {"x": ["1", "2"], "y": [""]}, "", "User:ANONYMOUS"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.body))


def test_unknown_paths_and_methods_are_refused(app):
    assert call(app, "GET", "/nothing").status == 404
    answer = call(app, "DELETE", "/things/a")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST"
    assert json.loads(answer.body)["error_code"] == 405


def test_head_is_answered_without_a_body(app):
    answer = call(app, "HEAD", "/things/a")
    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["content-length"]) > 0


def test_media_types_are_negotiated(app):
    assert call(app, "GET", "/things/a", accept="text/html").status == 406
    assert call(app, "GET", "/things/a", accept="text/html, */*;q=0.1").status == 200
    app.login = UserLogin()
    refused = call(app, "POST", "/things/a", [b"x"], content_type="text/plain", authorization="admin")
    assert refused.status == 415


class UserLogin:
    async def authenticate(self, headers, peer, certificate):
        if "authorization" not in headers:
            raise HttpRefusal(401, "credentials are missing", (("www-authenticate", "Basic"),))
        return Principal("User", headers["authorization"])


def test_login_and_rights_come_before_the_body(app):
    app.login = UserLogin()
    refused = call(app, "GET", "/things/a")
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Basic"
    assert json.loads(call(app, "GET", "/things/a", authorization="bob").body)[3] == "User:bob"
    long_body = [b"x" * 20]
    assert call(app, "POST", "/things/a", long_body, authorization="bob").status == 403
    assert call(app, "POST", "/things/a", long_body, authorization="admin").status == 413
    assert call(app, "POST", "/things/a", [b"ab", b"c"], authorization="admin").status == 200


def test_declared_length_is_refused_without_reading(app):
    app.login = UserLogin()
    answer = call(app, "POST", "/things/a", authorization="admin", content_length="11")
    assert answer.status == 413


def test_errors_are_answered_as_json(app):
    async def fail(_):
        raise KeyError("k")

    async def crash(_):
        raise RuntimeError("a bug")

    async def wait(_):
        raise TimeoutError

    async def answer(_):
        raise Answered(HttpResponse(204))

    for name, endpoint in (("fail", fail), ("crash", crash), ("wait", wait), ("answer", answer)):
        app.router.add("GET", f"/{name}", endpoint)
    assert json.loads(call(app, "GET", "/fail").body) == {"error_code": 40404, "message": "no such key"}
    assert call(app, "GET", "/crash").status == 500
    assert "a bug" not in call(app, "GET", "/crash").body.decode()
    assert call(app, "GET", "/wait").status == 503
    assert call(app, "GET", "/answer").status == 204


def test_a_stream_is_read_and_answered_chunk_by_chunk(app):
    async def double(request):
        async def chunks():
            async for chunk in request.stream:
                yield chunk * 2

        return HttpResponse(chunks=chunks(), content_type="text/plain")

    app.router.add("POST", "/double", double, streams=True)
    answer = call(app, "POST", "/double", [b"a", b"b" * 20])
    assert [message["body"] for message in answer.sent[1:]] == [b"aa", b"b" * 40, b""]
    assert "content-length" not in answer.headers


def test_an_endless_stream_ends_when_the_client_disconnects(app):
    closed = []

    async def endless(_):
        async def chunks():
            try:
                while True:
                    yield b"tick"
                    await asyncio.sleep(0)
            finally:
                closed.append(True)

        return HttpResponse(chunks=chunks())

    app.router.add("GET", "/endless", endless)

    async def run():
        exchange = Exchange(app, "GET", "/endless")
        exchange.messages_max = 3
        await asyncio.wait_for(exchange.run(), 30)

    asyncio.run(run())
    assert closed == [True]


class SmallService:
    ready = False

    def check_liveness(self):
        pass

    def describe_readiness(self):
        return self.ready, {"topics": 3}

    def list_metrics(self):
        yield ServiceMetric("topics", "gauge", "Topics.", 3)


def test_health_is_public_and_metrics_count_by_route(app):
    app.login = UserLogin()
    service = SmallService()
    OperationRoutes(service, app.metrics).add_to(app.router)
    assert call(app, "GET", "/health/live").status == 200
    assert call(app, "GET", "/health/ready").status == 503
    service.ready = True
    assert json.loads(call(app, "GET", "/health/ready").body) == {"status": "ready", "topics": 3}
    assert call(app, "GET", "/metrics").status == 401
    call(app, "GET", "/things/a", authorization="bob")
    text = call(app, "GET", "/metrics", authorization="bob").body.decode()
    assert 'klamm_echo_http_requests_total{method="GET",route="/things/{name}",status="200"} 1' in text
    assert "klamm_echo_topics 3\n" in text


@pytest.mark.parametrize(
    ("first", "answer"),
    [("websocket.connect", [{"type": "websocket.close"}]), ("websocket.disconnect", [])],
)
def test_a_websocket_is_closed_before_its_handshake(app, first, answer):
    sent = []

    async def receive():
        return {"type": first}

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "websocket", "path": "/echo"}, receive, send))
    assert sent == answer
    assert app.metrics.in_flight == 0


def test_lifespan_is_not_supported(app):
    async def refuse(*_):
        raise AssertionError("no message is received or sent")

    with pytest.raises(UnsupportedScopeError, match="'lifespan' is not supported"):
        asyncio.run(app({"type": "lifespan"}, refuse, refuse))

"""The console requests the addresses of its command line and file, never one that a visitor or an answer names."""

import http.server
import re
import threading
from contextlib import contextmanager
from urllib.parse import quote, unquote

import pytest

from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig

from .served import ServedConsole

FIELDS = (
    *("q", "where", "key", "offset", "time", "start", "partition", "resume", "next", "target", "to", "from", "record"),
    *("subject", "version", "kind", "text", "registry", "url", "bootstrap", "broker", "topic", "topic_name", "plan"),
    *("level", "isolation", "before", "key_schema", "value_schema", "value_message", "deleted"),
    *("move", "principal", "user", "client-id", "ip", "value", "headers", "action", "query", "member", "setting"),
)


class HttpTrap(http.server.ThreadingHTTPServer):
    """Keeps the paths that were requested, and redirects all of them if it has a target."""

    daemon_threads = True

    def __init__(self, target=None):
        super().__init__(("127.0.0.1", 0), _TrapHandler)
        self.target = target
        self.paths = []
        self.host = f"127.0.0.1:{self.server_port}"


class _TrapHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        self.send_response(404 if self.server.target is None else 302)
        if self.server.target is not None:
            self.send_header("Location", self.server.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the name of http.server

    def log_message(self, *_):
        """Nothing: a test says what is wrong."""


@contextmanager
def serving(trap):
    thread = threading.Thread(target=trap.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield trap
    finally:
        trap.shutdown()
        trap.server_close()
        thread.join()


@pytest.fixture(scope="module")
def elsewhere():
    with serving(HttpTrap()) as trap:
        yield trap


@contextmanager
def console_of(broker, registry_url):
    cluster = ConsoleCluster("test", broker.bootstrap, registry_url=registry_url)
    with ServedConsole(ConsoleConfig((cluster,), interval_s=600)) as console:
        console.collect()
        yield console


def test_no_field_of_a_request_is_an_address(broker, elsewhere):
    with serving(HttpTrap()) as registry, console_of(broker, f"http://{registry.host}/base") as console:
        visit = console.visitor()
        token = visit.token("/c/test/new-topic")
        requested = 0
        for address in (f"http://{elsewhere.host}/", elsewhere.host):
            fields = dict.fromkeys(FIELDS, address)
            headers = {"X-Forwarded-Host": elsewhere.host, "Forwarded": f"host={elsewhere.host}", "Referer": address}
            for route in console.service.app.router.routes():
                if route.streams or route.pattern == "/logout":
                    continue
                path = re.sub(r"\{\w+\}", quote(address, safe=""), route.pattern.replace("{cluster}", "test"))
                sent = {"params": fields} if route.method == "GET" else {"data": {"_token": token, **fields}}
                response = visit.client.request(route.method, path, headers=headers, follow_redirects=False, **sent)
                assert response.status_code < 500 or response.status_code == 502, path
                requested += 1
        visit.client.close()
    assert requested > 80
    assert elsewhere.paths == []
    assert all(path.startswith("/base/") for path in registry.paths)


def test_a_registry_does_not_redirect_the_console(broker, elsewhere):
    target = f"http://{elsewhere.host}/latest/meta-data"
    with serving(HttpTrap(target)) as registry, console_of(broker, f"http://user:secret@{registry.host}") as console:
        visit = console.visitor()
        assert "redirects" in visit.get("/c/test/schemas", 502)
        visit.client.close()
    assert registry.paths != []
    assert elsewhere.paths == []


@pytest.mark.parametrize(
    "subject", ["..", ".", "../../admin", "a/../../admin", "x?y=1", "x#y", "a\r\nX-Header: 1", "%2e%2e", "\\..\\admin"]
)
def test_a_subject_stays_below_the_subjects(broker, subject):
    with serving(HttpTrap()) as registry, console_of(broker, f"http://{registry.host}/base") as console:
        visit = console.visitor()
        visit.client.get(f"/c/test/schemas/{quote(subject, safe='')}")
        visit.client.get("/c/test/new-schema", params={"subject": subject})
        visit.client.close()
    # The client of this test resolves `.` itself, which leads to the list of subjects; the collector reads the config.
    for path in set(registry.paths) - {"/base/subjects", "/base/config"}:
        assert path.startswith("/base/subjects/")
        # Servers and proxies resolve dots, encoded ones too.
        assert unquote(path.split("/")[3]) not in (".", "..")

"""The HTTP listener for scrapes: whole requests, refused ones, clients that are slow or too many."""

import contextlib
import http.client
import socket
import threading

import pytest

from klamm.telemetry import http_listener
from klamm.telemetry.http_listener import BadRequest, ScrapeListener, ScrapeResponse, parse_head

LARGE = b"x" * (3 * 1024 * 1024)


def handle(request):
    if request.path == "/fails":
        raise RuntimeError("a bug")
    if request.path == "/large":
        return ScrapeResponse(200, LARGE)
    return ScrapeResponse(200, f"{request.path} {request.query} {request.headers.get('accept')}\n".encode())


@pytest.fixture
def listener():
    listener = ScrapeListener("127.0.0.1", 0, handle)
    listener.start()
    yield listener
    listener.close()


@pytest.fixture
def client(listener):
    client = http.client.HTTPConnection(*listener.address, timeout=30)
    yield client
    client.close()


def get(client, path, method="GET", **headers):
    client.request(method, path, headers=headers)
    response = client.getresponse()
    return response.status, response.read()


def test_one_connection_carries_many_requests(client):
    assert get(client, "/a?name[]=x&name[]=y", Accept="text/plain") == (200, b"/a {'name[]': ['x', 'y']} text/plain\n")
    assert get(client, "/large") == (200, LARGE)
    assert get(client, "/b", "HEAD") == (200, b"")
    assert get(client, "/b", "POST")[0] == 405
    assert get(client, "/b")[0] == 200


def test_a_bug_in_the_handler_is_an_answer_and_not_the_end(client):
    assert get(client, "/fails")[0] == 500
    assert get(client, "/b")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"a" * 20_000,
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(listener, sent):
    with socket.create_connection(listener.address, timeout=30) as connection:
        connection.sendall(sent)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")


def read_status(connection):
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return connection.recv(4096)[:12]


def test_a_new_client_takes_the_place_of_the_one_idle_for_longest(listener, monkeypatch):
    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 2)
    with contextlib.ExitStack() as stack:
        oldest, silent, new = (
            stack.enter_context(socket.create_connection(listener.address, timeout=30)) for _ in range(3)
        )
        assert read_status(new) == b"HTTP/1.1 200"
        assert oldest.recv(1) == b""
        assert read_status(silent) == b"HTTP/1.1 200"
        # Now `new` has been idle for longer than `silent`.
        last = stack.enter_context(socket.create_connection(listener.address, timeout=30))
        assert read_status(last) == b"HTTP/1.1 200"
        assert new.recv(1) == b""
        assert read_status(silent) == b"HTTP/1.1 200"


def test_many_silent_connections_keep_no_client_out(listener):
    with contextlib.ExitStack() as stack:
        for _ in range(http_listener.CONNECTIONS_MAX + 6):
            stack.enter_context(socket.create_connection(listener.address, timeout=30))
        client = stack.enter_context(socket.create_connection(listener.address, timeout=30))
        assert read_status(client) == b"HTTP/1.1 200"


def test_a_client_is_refused_while_all_others_wait_for_responses(monkeypatch):
    monkeypatch.setattr(http_listener, "CONNECTIONS_MAX", 1)
    handling, may_respond = threading.Event(), threading.Event()

    def handle_slowly(request):
        handling.set()
        assert may_respond.wait(30)
        return ScrapeResponse(200, b"")

    listener = ScrapeListener("127.0.0.1", 0, handle_slowly)
    listener.start()
    try:
        with socket.create_connection(listener.address, timeout=30) as first:
            first.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert handling.wait(30)
            with socket.create_connection(listener.address, timeout=30) as second:
                assert second.recv(1) == b""
            may_respond.set()
            assert first.recv(4096).startswith(b"HTTP/1.1 200")
    finally:
        may_respond.set()
        listener.close()


def test_a_connection_that_sends_nothing_is_closed(listener, monkeypatch):
    monkeypatch.setattr(http_listener, "HEAD_SECONDS_MAX", 0.1)
    with socket.create_connection(listener.address, timeout=30) as silent:
        assert silent.recv(1) == b""


def test_the_deadline_is_for_the_whole_head(listener, monkeypatch):
    monkeypatch.setattr(http_listener, "HEAD_SECONDS_MAX", 0.3)
    with socket.create_connection(listener.address, timeout=0.05) as connection:
        # More bytes than fit into 30 seconds; each arrives long before a timeout of its own.
        for _ in range(600):
            try:
                connection.sendall(b"G")
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    pytest.fail("the connection is still open")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("localhost:9404", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("[::1]:9404", 200),
        ("[::1]", 200),
        ("rebound.example", 421),
        ("rebound.example:9404", 421),
        ("localhost.example", 421),
        ("", 421),
    ],
)
def test_a_loopback_listener_serves_local_names_only(client, header, status):
    assert get(client, "/b", Host=header)[0] == status


def test_a_loopback_listener_serves_the_host_it_is_configured_with():
    listener = ScrapeListener("127.0.0.2", 0, handle)
    listener.start()
    try:
        client = http.client.HTTPConnection(*listener.address, timeout=30)
        assert get(client, "/b")[0] == 200
        client.close()
    finally:
        listener.close()


def test_a_listener_of_the_network_serves_any_name():
    listener = ScrapeListener("0.0.0.0", 0, handle)
    listener.start()
    try:
        client = http.client.HTTPConnection("127.0.0.1", listener.address[1], timeout=30)
        assert get(client, "/b", Host="node1.example:9404")[0] == 200
        client.close()
    finally:
        listener.close()


def test_closing_ends_connections(listener):
    with socket.create_connection(listener.address, timeout=30) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert idle.recv(4096)
        listener.close()
        assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.address, timeout=30).close()


def test_a_path_is_unquoted_and_headers_are_in_lower_case():
    request = parse_head(b"GET /a%20b HTTP/1.1\r\nHost: x\r\nACCEPT: y")
    assert (request.path, request.headers) == ("/a b", {"host": "x", "accept": "y"})
    with pytest.raises(BadRequest):
        parse_head(b"\xff\xfe")

"""`make audit` without the public record: a fake one answers."""

import contextlib
import http.server
import importlib.util
import socket
import threading
import urllib.error
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
assert SPEC is not None
assert SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)


def answer(known):
    def ask(body):
        results = []
        for query in body["queries"]:
            ids = known.get((query["package"]["name"], query["version"]), [])
            results.append({"vulns": [{"id": vulnerability} for vulnerability in ids]} if ids else {})
        return {"results": results}

    return ask


@pytest.fixture
def pins(tmp_path):
    path = tmp_path / "constraints.txt"
    path.write_text("# exact versions\none==1.0\ntwo==2.0.post1 ; python_version > '3'\n\nnot a pin\n")
    return str(path)


def test_pins_are_read_from_the_constraints():
    pinned = audit.parse_pins((ROOT / "constraints.txt").read_text().splitlines())
    assert len(pinned) > 50
    assert audit.parse_pins(["a==1 ; x", "# b==2", "c>=3", "d_e==4#f"]) == [("a", "1"), ("d_e", "4")]


def test_sound_dependencies_exit_with_0(pins, capsys):
    assert audit.main(pins, answer({})) == 0
    assert capsys.readouterr().out == "audit: 2 dependencies checked, 0 with known vulnerabilities\n"


def test_a_known_vulnerability_exits_with_1(pins, capsys):
    assert audit.main(pins, answer({("two", "2.0.post1"): ["PYSEC-1", "GHSA-2"]})) == 1
    assert "two 2.0.post1: PYSEC-1, GHSA-2 (https://osv.dev/vulnerability/PYSEC-1)" in capsys.readouterr().out


def test_without_a_network_nothing_counts_as_checked(pins, capsys):
    def refuse(_body):
        raise urllib.error.URLError("no route to host")

    assert audit.main(pins, refuse) == 2
    assert "cannot be reached (no route to host); nothing was checked" in capsys.readouterr().err


class Record(http.server.BaseHTTPRequestHandler):
    """The public record with one answer for every request."""

    answer = b""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_fields):
        pass


@contextlib.contextmanager
def serve(body):
    handler = type("OneAnswer", (Record,), {"answer": body})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"results": [{}, {}]}', 0, "2 dependencies checked, 0 with known vulnerabilities"),
        (b'{"results": [{}, {"vulns": [{"id": "PYSEC-1"}]}]}', 1, "two 2.0.post1: PYSEC-1"),
        (b"<html>log in to the network first</html>", 2, "was not understood"),
        (b'{"results": [{', 2, "was not understood"),
        (b"\xff\xfe", 2, "was not understood"),
        (b'{"error": "no"}', 2, "was not understood"),
        (b'{"results": [{}]}', 2, "was not understood"),
        (b'{"results": 7}', 2, "was not understood"),
        (b'["results"]', 2, "was not understood"),
        (b'{"results": [{"vulns": [{}]}, {}]}', 2, "was not understood"),
        (b'{"results": ["no", {}]}', 2, "was not understood"),
    ],
)
def test_answers_over_http(pins, capsys, monkeypatch, body, code, words):
    with serve(body) as url:
        monkeypatch.setattr(audit, "OSV_URL", url)
        assert audit.main(pins) == code
    printed = capsys.readouterr()
    assert words in (printed.err if code == 2 else printed.out)
    assert "cannot be reached" not in printed.err
    assert ("nothing was checked" in printed.err) is (code == 2)


def test_a_record_that_refuses_connections_cannot_be_reached(pins, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(audit, "OSV_URL", f"http://127.0.0.1:{port}/")
    assert audit.main(pins) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_many_dependencies_are_asked_for_in_parts():
    sizes = []

    def ask(body):
        sizes.append(len(body["queries"]))
        return {"results": [{}] * len(body["queries"])}

    assert audit.find_vulnerabilities([("a", str(number)) for number in range(1200)], ask) == {}
    assert sizes == [500, 500, 200]

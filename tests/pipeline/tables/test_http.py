"""Tables over HTTP, as a client of the address sees them."""

import contextlib
import json
import threading

import httpx2
import pytest

from klamm.http.binding import bind
from klamm.http.thread_server import serve_in_thread
from klamm.pipeline import open_tables
from klamm.pipeline.tables.http_server import make_tables
from klamm.pipeline.tables.queries import QueryLimits


@contextlib.contextmanager
def serving(tables):
    listening = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with (
        serve_in_thread(make_tables(tables, listening), "tables"),
        httpx2.Client(base_url=address, timeout=60) as client,
    ):
        yield client


@pytest.fixture
def topic(klamm_broker):
    return klamm_broker.topic("balances")


@pytest.fixture
def put(klamm_broker, topic):
    def call(**balances):
        with klamm_broker.producer() as producer:
            for account, balance in balances.items():
                value = None if balance is None else json.dumps({"balance": balance}).encode()
                producer.send(topic, value, key=account.encode())
            producer.flush()

    return call


@pytest.fixture
def tables(klamm_broker, topic, put, tmp_path):
    file = tmp_path / "bank.sql"
    file.write_text(
        f"CREATE TABLE balances (account STRING, balance DECIMAL(12, 2)) WITH (topic = '{topic}', key = 'account');"
    )
    put(ada=1.5, bob=20)
    limits = QueryLimits(rows=3, time_s=2)
    with open_tables(file, bootstrap=klamm_broker.bootstrap, limits=limits, timeout_s=60) as opened:
        yield opened


@pytest.fixture
def client(tables):
    with serving(tables) as connected:
        yield connected


def test_a_query_and_its_rows(client):
    answer = client.post("/query", json={"sql": "SELECT * FROM balances WHERE balance > ?", "parameters": [10]})
    assert answer.status_code == 200
    assert answer.json() == {
        "columns": [{"name": "account", "type": "VARCHAR"}, {"name": "balance", "type": "DECIMAL(12,2)"}],
        "rows": [{"account": "bob", "balance": 20.0}],
        "truncated": False,
    }
    by_address = client.get("/query", params={"sql": "SELECT count(*) AS n FROM balances"})
    assert by_address.json()["rows"] == [{"n": 2}]
    cut = client.post("/query", json={"sql": "SELECT * FROM balances, range(10)"}).json()
    assert cut["truncated"]
    assert len(cut["rows"]) == 3
    assert len(client.post("/query", json={"sql": "SELECT * FROM balances", "max_rows": 1}).json()["rows"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"sql": "DROP VIEW balances"}, 400, "only SELECT"),
        ({"sql": "SELECT * FROM nope"}, 400, "nope does not exist"),
        (
            {"sql": "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(9) c WHERE a.range<>b.range"},
            422,
            "longer",
        ),
        ({"sql": 5}, 400, "write"),
        ({}, 400, "write"),
        ([1], 400, "no object"),
        ({"sql": "SELECT 1", "max_rows": 0}, 400, "max_rows"),
    ],
)
def test_what_is_refused(client, body, status, words):
    answer = client.post("/query", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_bodies_are_bounded_and_json(client):
    assert client.post("/query", content=b"no JSON").status_code == 400
    assert client.post("/query", content=b"x" * (2 << 20)).status_code == 413
    assert client.get("/query").status_code == 400


def test_tables_and_rows_by_key(client, put):
    (listed,) = client.get("/tables").json()
    assert (listed["table"], listed["key"], listed["rows"], listed["lag_records"]) == ("balances", ["account"], 2, 0)
    assert client.get("/tables/balances/ada").json() == {"account": "ada", "balance": 1.5}
    missing = client.get("/tables/balances/zoe")
    assert missing.status_code == 404
    assert missing.json() == {"error": "balances has no row zoe"}
    assert client.get("/tables/nope/ada").status_code == 400
    assert client.get("/nope").status_code == 404


def test_keys_have_slashes(client, put):
    put(**{"a/b": 3, "c/": 4})
    for path, key in (("a/b", "a/b"), ("a%2Fb", "a/b"), ("c/", "c/")):
        # The tables follow the topic: a row is there some time after it was sent.
        while (answer := client.get(f"/tables/balances/{path}")).status_code == 404:
            assert answer.json() == {"error": f"balances has no row {key}"}
        assert answer.json()["account"] == key


def test_pages_of_other_sites_are_refused(client):
    body = {"sql": "SELECT 1"}
    assert client.post("/query", json=body, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/query", json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    rebound = client.get("/query", params=body, headers={"Host": "evil.example"})
    assert rebound.status_code == 421
    assert "evil.example" in rebound.json()["error"]
    assert client.get("/tables", headers={"Host": "localhost"}).status_code == 200


def test_health(client, tables):
    answer = client.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {"state": "ready", "error": None}

    def is_unhealthy() -> bool:
        tables._follower.error = RuntimeError("no broker")
        return client.get("/health").status_code == 503

    # The follower takes the error back when it next hears from the broker.
    assert any(is_unhealthy() for _ in range(100))


def test_changes_are_pushed(client, put):
    with client.stream("GET", "/query", params={"sql": "SELECT * FROM balances ORDER BY 1", "watch": "1"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: "))
        assert [next(events)["row"]["account"] for _ in range(2)] == ["ada", "bob"]
        put(ada=2)
        assert next(events) == {"change": "-", "row": {"account": "ada", "balance": 1.5}}
        assert next(events) == {"change": "+", "row": {"account": "ada", "balance": 2.0}}
        put(bob=None)
        assert next(events) == {"change": "-", "row": {"account": "bob", "balance": 20.0}}
    refused = client.get("/query", params={"sql": "DELETE FROM balances", "watch": "1"})
    assert refused.status_code == 400


def test_a_push_query_ends_with_the_server(tables):
    listening = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with httpx2.Client(base_url=address, timeout=60) as client, contextlib.ExitStack() as stack:
        stack.enter_context(serve_in_thread(make_tables(tables, listening), "tables"))
        query = {"sql": "SELECT * FROM balances", "watch": "1"}
        with client.stream("GET", "/query", params=query) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            stack.close()
            with contextlib.suppress(httpx2.RemoteProtocolError):  # an endless answer is cut off
                assert all(line.startswith("data: ") for line in lines if line)
        assert not [thread for thread in threading.enumerate() if thread.name == "tables"]

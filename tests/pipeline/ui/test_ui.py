"""The page of a pipeline: what it serves, and which requests it refuses."""

import re

import httpx2
import pytest

from klamm.client import Consumer
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.status import ControlAction, Home
from klamm.pipeline.ui.dead_letters import newest_letters
from klamm.pipeline.ui.history import StatusHistory
from klamm.pipeline.ui.server import serve_ui

STATUS = {
    "state": "running",
    "started_ms": 1,
    "updated_ms": 2,
    "graph": [{"name": "s", "kind": "stream", "reads": []}],
    "queries": {"q": {"state": "running", "rows_per_s": 3.0, "lag_records": 4}},
}
LETTER = {"time_ms": 1, "stream": "s", "origin": "s-0 offset 3", "error": "no JSON", "value": "{"}


@pytest.fixture
def home(tmp_path):
    return Home(str(tmp_path / "home"))


@pytest.fixture
def client(home):
    with (
        serve_ui("bank", 0, lambda: STATUS, home, lambda: [LETTER]) as (host, port),
        httpx2.Client(base_url=f"http://{host}:{port}", timeout=60) as client,
    ):
        yield client


def token_of(client):
    return re.search(r'token="([^"]+)"', client.get("/").text)[1]


def test_one_page_without_external_assets(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert len(page.content) < 100_000
    urls = set(re.findall(r"https?://[^\"'\s]+", page.text))
    assert urls == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_status_and_dead_letters_are_json(client):
    status = client.get("/api/status").json()
    assert (status["pipeline"], status["queries"]["q"]["lag_records"]) == ("bank", 4)
    assert client.get("/api/dead_letters").json() == [LETTER]


def test_requests_need_the_token_and_the_same_origin(client, home):
    token = {"X-Klamm-Token": token_of(client)}
    assert client.post("/api/pause?query=q").status_code == 403
    assert client.post("/api/pause?query=q", headers={"X-Klamm-Token": "x"}).status_code == 403
    assert client.post("/api/pause?query=q", headers={**token, "Origin": "http://evil.example"}).status_code == 403
    assert home.requests() == []
    assert client.post("/api/pause?query=nothing", headers=token).status_code == 404
    assert client.post("/api/drop?query=q", headers=token).status_code == 404
    assert client.get("/api/pause?query=q").status_code == 405
    own = f"http://{client.base_url.netloc.decode()}"
    assert client.post("/api/pause?query=q", headers={**token, "Origin": own}).status_code == 202
    assert client.post("/api/restart", headers=token).status_code == 202
    assert [(request.action, request.query) for request in home.requests()] == [
        (ControlAction.PAUSE, "q"),
        (ControlAction.RESTART, None),
    ]


def test_foreign_host_names_get_no_token(client):
    rebound = client.get("/", headers={"Host": "evil.example"})
    assert rebound.status_code == 421
    assert "evil.example" in rebound.json()["error"]
    assert client.get("/api/status", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200


def test_an_hour_of_points_is_kept():
    history = StatusHistory(lambda: STATUS)
    for _ in range(1000):
        history.take()
    assert len(history.points()["q"]) == 720
    assert history.points()["q"][0] == (2, 3.0, 4)


def test_a_taken_port_is_refused(client, home):
    port = client.base_url.port
    with (
        pytest.raises(ConfigError, match=f"--ui cannot listen on 127.0.0.1:{port}"),
        serve_ui("bank", port, lambda: STATUS, home, list),
    ):
        pytest.fail("listens twice")


def test_without_an_address_nothing_listens(home):
    with serve_ui("bank", None, lambda: STATUS, home, list) as listening:
        assert listening is None


def test_the_newest_dead_letters_are_read_without_a_group(klamm_broker):
    topic = klamm_broker.topic("letters")
    names = ("stream", "topic", "partition", "offset", "timestamp", "error")
    with klamm_broker.producer() as producer:
        for offset in range(30):
            fields = dict(zip(names, ("s", "in", "0", str(offset), "5", "no JSON"), strict=True))
            headers = [(f"dead_letter.{name}", value.encode()) for name, value in fields.items()]
            producer.send(topic, b"{", headers=headers, timestamp=1000 + offset)
        producer.send(topic, b"of another program", timestamp=5000)
        producer.flush()
    settings = {"bootstrap.servers": klamm_broker.bootstrap, "auto.offset.reset": "earliest"}
    letters = newest_letters(lambda: Consumer(settings), [topic])
    assert [letter["origin"] for letter in letters] == [f"in-0 offset {offset}" for offset in range(29, 9, -1)]
    assert letters[0] == {
        "time_ms": 1029,
        "stream": "s",
        "origin": "in-0 offset 29",
        "error": "no JSON",
        "value": "{",
    }

"""The service's own tests, as a user of Klamm's pytest plugin writes them: a real broker, real HTTP, faults on request.

pytest examples/service
"""

import importlib.util
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

_spec = importlib.util.spec_from_file_location("orders_app", Path(__file__).with_name("app.py"))
assert _spec is not None
assert _spec.loader is not None
orders_app = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(orders_app)


@pytest.fixture
def client(klamm_broker, klamm_topic):
    with TestClient(orders_app.create_app(klamm_broker.bootstrap, klamm_topic)) as client:
        yield client


def eventually(client: TestClient, path: str) -> dict:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = client.get(path)
        if answer.status_code == 200:
            return answer.json()
        time.sleep(0.05)
    raise AssertionError(f"{path} stays unknown")


def test_an_order_is_taken_and_found_again(client, klamm_broker, klamm_topic):
    placed = client.post("/orders", json={"table": 7, "dish": "soup"})
    assert placed.status_code == 201
    assert eventually(client, f"/orders/{placed.json()['id']}") == {"table": 7, "dish": "soup"}
    with klamm_broker.consumer(klamm_topic) as consumer:
        assert [record.key.decode() for record in consumer.poll(20)] == [placed.json()["id"]]


def test_a_second_service_agrees(client, klamm_broker, klamm_topic):
    placed = client.post("/orders", json={"table": 1, "dish": "strudel"}).json()
    with TestClient(orders_app.create_app(klamm_broker.bootstrap, klamm_topic)) as other:
        assert eventually(other, f"/orders/{placed['id']}")["dish"] == "strudel"


def test_an_order_the_broker_refuses_is_not_taken(klamm_own_broker):
    topic = klamm_own_broker.topic("orders")
    with TestClient(orders_app.create_app(klamm_own_broker.bootstrap, topic)) as client:
        klamm_own_broker.refuse("TOPIC_AUTHORIZATION_FAILED", "Produce")
        refused = client.post("/orders", json={"table": 7, "dish": "soup"})
        assert refused.status_code == 503
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.json()["detail"]
        klamm_own_broker.heal()
        assert client.post("/orders", json={"table": 7, "dish": "soup"}).status_code == 201

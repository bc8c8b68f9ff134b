"""A broker of a test, used by third-party clients: it serves, pauses, is slow, refuses, dies, returns."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import unittest
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import klamm.testing
from klamm.client.admin.types import ConfigResource
from klamm.model.errors import ErrorCode

QUIET = {"log_level": 0}


@pytest.fixture(params=["inprocess", "child"])
def broker(request):
    with klamm.testing.broker(child=request.param == "child") as running:
        yield running


def send(broker, topic: str, value: str, timeout_s: float = 20.0, **settings) -> KafkaError | None:
    """Send one record with librdkafka; the error it ended with, None when it was acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET, **settings})
    ended = []
    producer.produce(topic, value, on_delivery=lambda error, _: ended.append(error))
    left = producer.flush(timeout_s)
    assert not left, "the record is still under way"
    return ended[0]


def read(broker, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", **QUIET}
    )
    consumer.subscribe([topic])
    values = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            values.append(message.value().decode())
    consumer.close()
    return values


def test_a_broker_serves_and_keeps_what_it_acknowledged_over_a_kill(broker):
    topic = broker.topic(partitions=1)
    assert send(broker, topic, "before") is None
    port = broker.port
    broker.kill()
    assert not broker.running
    broker.start()
    assert broker.port == port
    assert send(broker, topic, "after") is None
    assert read(broker, topic, 2) == ["before", "after"]


def test_a_paused_broker_answers_no_client_until_it_continues(broker):
    topic = broker.topic()
    assert send(broker, topic, "one") is None
    broker.pause()
    stuck = send(broker, topic, "lost", **{"message.timeout.ms": 700})
    assert stuck is not None
    assert stuck.code() == KafkaError._MSG_TIMED_OUT
    broker.resume()
    assert send(broker, topic, "two") is None
    assert set(read(broker, topic, 2)) >= {"one", "two"}


def test_a_slow_broker_takes_its_time_and_keeps_the_order(broker):
    topic = broker.topic()
    broker.slow(0.3, "Produce")
    began = time.monotonic()
    assert send(broker, topic, "late", **{"enable.idempotence": False}) is None
    assert time.monotonic() - began >= 0.3
    broker.heal()
    assert read(broker, topic, 1) == ["late"]


def test_a_refusal_is_what_the_client_is_told_and_nothing_is_stored(broker):
    topic = broker.topic()
    broker.refuse("TOPIC_AUTHORIZATION_FAILED", "Produce")
    error = send(broker, topic, "never")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    broker.heal()
    assert send(broker, topic, "stored") is None
    assert read(broker, topic, 1) == ["stored"]


def test_a_refusal_for_a_while_is_outlived_by_a_client_that_tries_again(broker):
    topic = broker.topic()
    broker.refuse("NOT_LEADER_OR_FOLLOWER", "Produce", times=2)
    assert send(broker, topic, "third time") is None
    assert read(broker, topic, 1) == ["third time"]


def test_an_error_and_an_api_have_several_names(broker):
    topic = broker.topic()
    for error, api in (
        ("topic_authorization_failed", "produce"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Produce"),
        (29, 0),
    ):
        broker.refuse(error, api)
        refused = send(broker, topic, "never")
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        broker.heal()
    broker.slow(timedelta(milliseconds=1), "produce")
    assert send(broker, topic, "stored") is None


def test_a_mistake_in_a_fault_is_named_at_once_and_has_no_effect(broker):
    topic = broker.topic()
    for words, call in (
        ("did you mean Produce", lambda: broker.refuse("UNKNOWN_SERVER_ERROR", "Produc")),
        ("did you mean NOT_LEADER_OR_FOLLOWER", lambda: broker.refuse("NOT_LEADER", "Produce")),
        ("there is no error 'NOPE'", lambda: broker.refuse("NOPE", "Produce")),
        ("there is no error 4711", lambda: broker.refuse(4711, "Produce")),
        ("there is no API 4711", lambda: broker.slow(1, 4711)),
        ("NONE is no error", lambda: broker.refuse("NONE", "Produce")),
        ("times=0", lambda: broker.refuse("UNKNOWN_SERVER_ERROR", "Produce", times=0)),
        ("0 or more", lambda: broker.slow(-1)),
        ("0 or more", lambda: broker.slow(float("nan"))),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for call in (
        lambda: broker.slow("a"),
        lambda: broker.slow(None),
        lambda: broker.refuse(None),
        lambda: broker.refuse("UNKNOWN_SERVER_ERROR", 1.5),
        lambda: broker.refuse("UNKNOWN_SERVER_ERROR", "Produce", times="2"),
    ):
        with pytest.raises(TypeError):
            call()
    assert send(broker, topic, "as ever") is None


LEFT_BEHIND = """
import klamm.testing, os, sys
with klamm.testing.{what} as running:
    print(running.data, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["broker(child=True)", "cluster(1)"])
@pytest.mark.parametrize("group", [False, True])
def test_no_folder_stays_when_the_test_is_terminated(what, group):
    """Not even when the whole group of processes is, as a runner in a hurry does it."""
    test = subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND.format(what=what)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder = test.stdout.readline().strip()
    assert os.path.isdir(folder)
    (os.killpg if group else os.kill)(test.pid, signal.SIGTERM)
    _, words = test.communicate(timeout=60)  # the brokers hold its standard error: this is the end of them too
    assert not os.path.exists(folder), words


def test_a_folder_that_was_given_stays(tmp_path):
    script = LEFT_BEHIND.format(what=f"broker(child=True, data={os.fspath(tmp_path / 'mine')!r})")
    test = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folder = test.stdout.readline().strip()
    test.terminate()
    test.communicate(timeout=60)
    assert os.listdir(folder)


def test_settings_may_be_numbers_and_booleans():
    with klamm.testing.broker(config={"num.partitions": 3, "auto.create.topics.enable": True}) as running:
        assert send(running, "made-by-writing", "x") is None
        topic = running.topic(config={"retention.ms": 3_600_000, "cleanup.policy": ["compact", "delete"]})
        with running.admin() as admin:
            assert len(admin.describe_topics(["made-by-writing"])["made-by-writing"].partitions) == 3
            settings = admin.describe_configs([ConfigResource.topic(topic)])[ConfigResource.topic(topic)]
        assert (settings["retention.ms"].value, settings["cleanup.policy"].value) == ("3600000", "compact,delete")
    with pytest.raises(TypeError, match=r"num\.partitions"):
        klamm.testing.InProcessBroker(config={"num.partitions": None})


def test_settings_reach_the_broker():
    with klamm.testing.broker(config={"auto.create.topics.enable": "false"}) as running:
        error = send(running, "not-there", "x", **{"message.timeout.ms": 3000})
        assert error is not None


def test_a_broker_inside_a_running_loop():
    """As in a notebook, whose loop is running when a cell is run."""

    async def cell() -> int:
        with klamm.testing.broker() as running:
            topic = running.topic()
            assert await asyncio.to_thread(send, running, topic, "from a cell") is None
            return running.port

    assert asyncio.run(cell()) > 0


class OrdersTest(unittest.TestCase):
    """As in a project that has no pytest."""

    @classmethod
    def setUpClass(cls):
        cls.broker = klamm.testing.InProcessBroker().start()
        cls.addClassCleanup(cls.broker.close)

    def test_an_order_arrives(self):
        topic = self.broker.topic("orders")
        assert send(self.broker, topic, "soup") is None
        assert read(self.broker, topic, 1) == ["soup"]


def test_names_are_never_the_same():
    names = {klamm.testing.unique("a b/c") for _ in range(1000)}
    assert len(names) == 1000
    assert all(name.startswith("a-b-c-") for name in names)

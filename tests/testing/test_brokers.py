"""A broker of a test, judged by clients nobody here wrote: it serves, stands still, is slow, refuses, dies, returns."""

import asyncio
import time
import unittest

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import klamm.testing
from klamm.testing.faults import api_named

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
    found = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append(message.value().decode())
    consumer.close()
    return found


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


def test_a_paused_broker_answers_nobody_until_it_goes_on(broker):
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


def test_mistakes_in_faults_are_named(broker):
    with pytest.raises((ValueError, RuntimeError), match="did you mean"):
        broker.refuse("UNKNOWN_SERVER_ERROR", "Produc")
    with pytest.raises((KeyError, RuntimeError), match="NO_SUCH_ERROR"):
        broker.refuse("NO_SUCH_ERROR", "Produce")
    assert api_named("list_offsets").name == "ListOffsets"


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

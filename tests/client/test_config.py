"""Settings by Kafka's names; a mistake is answered with the nearest right one."""

import pytest

from klamm.client import Consumer, Producer
from klamm.client.config import admin_settings, consumer_settings, producer_settings
from klamm.client.errors import SerializationError
from klamm.client.serde import deserializer, serializer
from klamm.model.errors import ConfigError

WHERE = {"bootstrap.servers": "localhost:9092"}


def test_both_forms_mean_the_same():
    mapped = producer_settings({**WHERE, "linger.ms": "7", "acks": "all", "enable.idempotence": "true"}, {})
    named = producer_settings(None, {"bootstrap_servers": ["localhost:9092"], "linger_ms": 7, "acks": -1})
    assert mapped["linger.ms"] == named["linger.ms"] == 7
    assert mapped["acks"] == named["acks"] == -1
    assert mapped["bootstrap.servers"] == named["bootstrap.servers"] == ("localhost:9092",)


@pytest.mark.parametrize(
    ("make", "given", "words"),
    [
        (producer_settings, {"lingre.ms": 5}, r"did you mean linger\.ms"),
        (producer_settings, {"linger_ms": 5}, r"did you mean linger\.ms"),
        (consumer_settings, {"group.instance": "x"}, r"did you mean group\.instance\.id"),
        (consumer_settings, {"auto.offset.reset": "first"}, "earliest, latest"),
        (producer_settings, {"acks": "2"}, "all"),
        (producer_settings, {"acks": "1", "enable.idempotence": True}, "acks=all"),
        (producer_settings, {"batch.size": "big"}, "whole number"),
        (producer_settings, {"delivery.timeout.ms": 10}, r"request\.timeout\.ms"),
        (producer_settings, {"transactional.id": "x", "enable.idempotence": False}, "transactional.id needs"),
        (consumer_settings, {"enable.auto.commit": True}, r"group\.id"),
        (consumer_settings, {"session.timeout.ms": 1000}, r"heartbeat\.interval\.ms"),
        (consumer_settings, {"group.protocol": "consumer", "session.timeout.ms": 9000}, "broker's to set"),
        (consumer_settings, {"bootstrap.servers": "localhost"}, "host:port"),
        (admin_settings, {"security.protocol": "SASL_SSL"}, "PLAINTEXT, SSL"),
    ],
)
def test_a_mistake_says_what_to_write(make, given, words):
    with pytest.raises(ConfigError, match=words):
        make({**WHERE, **given}, {})


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        Producer()
    with pytest.raises(ConfigError, match="did you mean"):
        Consumer(bootstrap_servers="localhost:9092", grup_id="x")


def test_a_default_yields_to_what_was_asked_for():
    assert producer_settings({**WHERE, "acks": "1"}, {})["enable.idempotence"] is False
    assert producer_settings(WHERE, {})["enable.idempotence"] is True
    assert consumer_settings(WHERE, {})["partition.assignment.strategy"] == ("range", "cooperative-sticky")


def test_serializers_by_word_function_and_object():
    class Upper:
        def serialize(self, topic, value):
            return f"{topic}:{value}".encode()

    assert serializer("json", "s")("t", {"a": 1}) == b'{"a":1}'
    assert serializer(str, "s")("t", 5) == b"5"
    assert serializer(lambda value: value[::-1], "s")("t", b"ab") == b"ba"
    assert serializer(Upper(), "s")("t", "x") == b"t:x"
    assert serializer("json", "s")("t", None) is None
    assert deserializer("json", "d")("t", b"[1]") == [1]
    with pytest.raises(SerializationError, match="a record of t"):
        deserializer("json", "d")("t", b"{")
    with pytest.raises(ConfigError, match="bytes, str, json"):
        serializer("yaml", "value.serializer")

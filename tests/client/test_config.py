"""Settings by Kafka's names; a mistake is answered with the nearest right one."""

import logging
from pathlib import Path

import pytest

from klamm.client import Consumer, Producer, client_settings
from klamm.client.client_settings import admin_settings, consumer_settings, producer_settings
from klamm.client.config import ADMIN_CONFIGS, DEFINITIONS
from klamm.client.core.durations import duration_ns
from klamm.client.errors import SerializationError
from klamm.client.serde import deserializer, serializer
from klamm.client.unsupported_settings import IGNORED, refusal
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
        (consumer_settings, {"group.protocol": "consumer", "session.timeout.ms": 9000}, "a setting of the broker"),
        (consumer_settings, {"bootstrap.servers": "localhost"}, "host:port"),
        (admin_settings, {"security.protocol": "TLS"}, "write one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        # the beginning of a name, also a mistyped one
        (producer_settings, {"max.in.flight": 5}, r"did you mean max\.in\.flight\.requests\.per\.connection\?"),
        (producer_settings, {"max.in.fligth": 5}, r"did you mean max\.in\.flight\.requests\.per\.connection\?"),
        (consumer_settings, {"group": "x"}, r"did you mean group\.id, group\.instance\.id or group\.protocol\?"),
        # of another kind of client
        (producer_settings, {"group.id": "x"}, r"group\.id is a setting of consumers; a producer has none"),
        (producer_settings, {"grup.id": "x"}, r"did you mean group\.id\? group\.id is a setting of consumers"),
        (consumer_settings, {"transactional.id": "x"}, "is a setting of producers; a consumer has none"),
        (admin_settings, {"linger.ms": 1}, "is a setting of producers; an admin has none"),
        (producer_settings, {"default.api.timeout.ms": 1}, "is a setting of consumers and admins"),
        (producer_settings, {"retention.ms": 1}, "one of topics"),
        (admin_settings, {"log.dirs": "/x"}, "one of brokers"),
        # Kafka's, but not ours
        (producer_settings, {"interceptor.classes": "a.B"}, "names Java classes"),
        (producer_settings, {"partitioner.class": "a.B"}, "set partitioner to a function"),
        (producer_settings, {"transaction.two.phase.commit.enable": True}, "open without limit"),
        (producer_settings, {"sasl.kerberos.service.name": "kafka"}, "does not support"),
        (admin_settings, {"sasl.client.callback.handler.class": "a.B"}, "does not support"),
        (producer_settings, {"sasl.mechansim": "PLAIN"}, r"not a producer setting; did you mean sasl\.mechanism\?"),
        (
            admin_settings,
            {"sasl.pasword": "x"},
            r"sasl\.pasword is not an admin setting; did you mean sasl\.password\?",
        ),
        (consumer_settings, {"sasl_user_name": "x"}, r"did you mean sasl\.username\?"),
        (producer_settings, {"sals.mechanism": "PLAIN"}, r"did you mean sasl\.mechanism"),
        (admin_settings, {"ssl.engine.factory.class": "a.B"}, r"ssl\.context"),
        (admin_settings, {"bootstrap.controllers": "a:1"}, r"bootstrap\.servers"),
        # said at once, not by the first poll
        (consumer_settings, {"partition.assignment.strategy": "rang"}, "did you mean range"),
        (consumer_settings, {"partition.assignment.strategy": ["range", "stiky"]}, "did you mean sticky"),
        (consumer_settings, {"group.instance.id": "x"}, r"group\.instance\.id needs a group\.id"),
        (consumer_settings, {"group.id": ""}, r"group\.id=: write a value or leave the setting out"),
        (consumer_settings, {"group.id": "g", "group.instance.id": ""}, "leave the setting out"),
        (producer_settings, {"transactional.id": ""}, "leave the setting out"),
        (consumer_settings, {"bootstrap.servers": 9092}, "host:port"),
        (consumer_settings, {"auto.offset.reset": "by_duration"}, "by_duration:PT1H"),
        (consumer_settings, {"auto.offset.reset": "by_duration:P1W"}, r"days, hours.*by_duration:P7D"),
        (consumer_settings, {"auto.offset.reset": "by_duration:P1M"}, r"days, hours.*by_duration:P7D"),
        (consumer_settings, {"auto.offset.reset": "by_duration:Pfoo"}, r"days, hours.*by_duration:P7D"),
        (consumer_settings, {"auto.offset.reset": "by_duration:-PT1H"}, "not negative"),
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


def test_a_setting_given_twice_must_agree():
    assert producer_settings({**WHERE, "linger.ms": 7}, {"linger_ms": "7"})["linger.ms"] == 7
    assert producer_settings({**WHERE, "linger.ms": 7}, {"linger_ms": None})["linger.ms"] == 7
    with pytest.raises(ConfigError, match=r"linger\.ms is given twice.* as linger_ms: keep one"):
        producer_settings({**WHERE, "linger.ms": 7}, {"linger_ms": 8})
    with pytest.raises(ConfigError, match="given twice"):
        producer_settings({**WHERE, "enable.idempotence": False}, {"enable_idempotence": True})


def test_a_name_is_text():
    with pytest.raises(ConfigError, match="names are text"):
        producer_settings({**WHERE, 5: 1}, {})


def test_an_address_alone_is_no_mapping():
    with pytest.raises(TypeError, match=r"settings are a mapping.*not 'localhost:9092'"):
        Producer("localhost:9092")


def test_harmless_settings_of_java_are_passed_over_with_one_line(monkeypatch, caplog):
    monkeypatch.setattr(client_settings, "_logged", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            producer_settings({**WHERE, "metadata.max.idle.ms": 5000, "metric.reporters": ""}, {})
            consumer_settings(WHERE, {"client_dns_lookup": "use_all_dns_ips"})
        admin_settings({**WHERE, "retries": 3}, {})
    assert [record.getMessage().split(" has no effect here: ")[0] for record in caplog.records] == [
        "metadata.max.idle.ms",
        "client.dns.lookup",
        "retries",
    ]


def test_a_feature_of_java_that_is_left_off_is_fine():
    settings = producer_settings(
        {**WHERE, "interceptor.classes": "", "transaction.two.phase.commit.enable": "false", "sasl.mechanism": None}, {}
    )
    assert "interceptor.classes" not in settings


def test_every_setting_of_kafkas_clients_is_served_or_spoken_of():
    """The names are Kafka's own: every one is supported, ignored or refused with a remedy."""
    lines = (Path(__file__).parent / "kafka_settings.txt").read_text().splitlines()
    ours = {definition.role: definition for definition in DEFINITIONS}
    assert len(lines) > 120
    for line in lines[1:]:
        name, *roles = line.split()
        for role in roles:
            assert name in ours[role] or refusal(name), (name, role)
            assert not (name in ours[role] and refusal(name)), (name, role)
    known = {line.split()[0] for line in lines}
    newer_or_older = {"auto.include.jmx.reporter", "metadata.cluster.check.enable", "partitioner.rack.aware"}
    assert set(IGNORED) - known == newer_or_older
    assert "retries" in ADMIN_CONFIGS.ignored


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1.5S", 1.5),
        ("PT1H", 3600),
        ("P7D", 604_800),
        ("P1DT2H3M4.5S", 93_784.5),
        ("pt1h", 3600),
        ("PT1,25S", 1.25),
        ("PT1.S", 1),
        ("PT-1H+120M", 3600),
        ("-PT-1S", 1),
        ("-PT1S", -1),
        ("PT-0.5S", -0.5),
        ("PT0S", 0),
    ],
)
def test_durations_are_those_of_java(text, seconds):
    """Compared with java.time.Duration.parse."""
    assert duration_ns(text) == int(seconds * 1_000_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "P1W",
        "P1M",
        "P1Y",
        "PT1.5H",
        "PT.5S",
        "PT1H1S1M",
        "PT1.1234567890S",
        "PT1H ",
        "1h",
        "P\u0661D",
    ],
)
def test_what_java_does_not_take_for_a_duration(text):
    with pytest.raises(ValueError, match="is no duration"):
        duration_ns(text)
    with pytest.raises(ValueError, match="longer"):
        duration_ns("PT9223372036854775808S")


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

"""Quotas with Kafka's tools and clients: kafka-configs prints the same as Klamm's, and producers are throttled."""

import pytest
from confluent_kafka import Producer

from compat.brokers import Broker
from compat.clients import JavaClient
from compat.scripts import MAINS, Beside
from harness.wire import unique


@pytest.fixture
def user() -> str:
    return unique("user")


def alter(java: JavaClient, broker: Broker, *words: str) -> str:
    output = java.tool(MAINS["kafka-configs"], "--bootstrap-server", broker.bootstrap, "--alter", *words)
    assert output.exit == 0, output.text
    return output.out


def test_kafka_configs_sets_and_describes_quotas(java: JavaClient, broker: Broker, beside: Beside, user: str) -> None:
    one = ("--entity-type", "users", "--entity-name", user)
    pair = (*one, "--entity-type", "clients", "--entity-default")
    assert alter(java, broker, *one, "--add-config", "producer_byte_rate=20000000") == (
        f"Completed updating config for user {user}.\n"
    )
    alter(java, broker, *pair, "--add-config", "consumer_byte_rate=1024")
    assert "producer_byte_rate=2.0E7" in beside("kafka-configs", "--describe", *one).out
    assert "the default client-id" in beside("kafka-configs", "--describe", *pair).out
    beside("kafka-configs", "--describe", "--entity-type", "users", ordered=False)
    beside("kafka-configs", "--alter", *one, "--add-config", "request_percentage=12.5")
    beside("kafka-configs", "--alter", *pair, "--add-config", "controller_mutation_rate=3")
    alter(java, broker, *one, "--delete-config", "producer_byte_rate,request_percentage")
    alter(java, broker, *pair, "--delete-config", "consumer_byte_rate,controller_mutation_rate")
    assert beside("kafka-configs", "--describe", *one).out == ""


def test_kafka_configs_sets_defaults_and_addresses(java: JavaClient, broker: Broker, beside: Beside) -> None:
    default = ("--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "203.0.113.9")
    beside("kafka-configs", "--alter", *default, "--add-config", "request_percentage=200")
    beside("kafka-configs", "--alter", *address, "--add-config", "connection_creation_rate=100")
    beside("kafka-configs", "--describe", *default)
    beside("kafka-configs", "--describe", *address)
    alter(java, broker, *default, "--delete-config", "request_percentage")
    alter(java, broker, *address, "--delete-config", "connection_creation_rate")


@pytest.mark.parametrize(
    "words",
    [
        ("--entity-type", "users", "--entity-name", "u", "--add-config", "no_such_rate=1"),
        ("--entity-type", "users", "--entity-name", "u", "--add-config", "producer_byte_rate=-1"),
        ("--entity-type", "users", "--entity-name", "u", "--add-config", "producer_byte_rate=fast"),
        ("--entity-type", "users", "--entity-name", "u", "--delete-config", "producer_byte_rate"),
        ("--entity-type", "clients", "--entity-name", "c", "--add-config", "connection_creation_rate=1"),
        ("--entity-type", "ips", "--entity-name", "203.0.113.9", "--add-config", "producer_byte_rate=1"),
    ],
)
def test_kafka_configs_refuses(beside: Beside, words: tuple[str, ...]) -> None:
    beside("kafka-configs", "--alter", *words, exits=1)


def test_librdkafka_is_throttled(java: JavaClient, broker: Broker, topic: str) -> None:
    client_id = unique("client")
    java.create(broker.bootstrap, topic, 1)
    quota = ("--entity-type", "clients", "--entity-name", client_id)
    alter(java, broker, *quota, "--add-config", "producer_byte_rate=20000")
    throttled: list[float] = []

    def on_throttle(event: object) -> None:
        throttled.append(event.throttle_time)  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": client_id, "throttle_cb": on_throttle})
    for _ in range(40):
        producer.produce(topic, bytes(19_000))
        assert producer.flush(60) == 0
        if throttled:
            break
    assert throttled
    alter(java, broker, *quota, "--delete-config", "producer_byte_rate")

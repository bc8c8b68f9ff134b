"""What DescribeConfigs says, beside what a Kafka 4.3.1 broker said to the same questions."""

from collections import defaultdict
from pathlib import Path

import pytest

from klamm.model.broker_catalog.own import METRICS_LISTENERS
from klamm.model.config_describe import (
    ConfigSource,
    DescribedConfig,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
    effective_broker,
)

# The node that answered: this properties file, then (for "after") these dynamic settings.
STATIC = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:39873",
    "listeners": "PLAINTEXT://127.0.0.1:39872,CONTROLLER://127.0.0.1:39873",
    "advertised.listeners": "PLAINTEXT://127.0.0.1:39872",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "log.dirs": "/data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.retention.hours": "72",
}
CLUSTER_BEFORE = {"min.insync.replicas": "1"}
CLUSTER = {
    **CLUSTER_BEFORE,
    "log.retention.ms": "43200000",
    "log.segment.bytes": "2097152",
    "log.cleanup.policy": "compact",
}
BROKER = {
    "log.retention.ms": "86400000",
    "log.flush.interval.ms": "5000",
    "message.max.bytes": "999999",
    "listener.name.plaintext.max.connections": "77",
}
TUNED = {"retention.ms": "1000", "cleanup.policy": "compact,delete", "max.message.bytes": "2000"}

ANSWERS = {
    ("before", "TOPIC:plain"): lambda: describe_topic({}, {}, CLUSTER_BEFORE, STATIC),
    ("after", "TOPIC:plain"): lambda: describe_topic({}, BROKER, CLUSTER, STATIC),
    ("after", "TOPIC:tuned"): lambda: describe_topic(TUNED, BROKER, CLUSTER, STATIC),
    ("after", "BROKER:1"): lambda: describe_broker(BROKER, CLUSTER, STATIC),
    ("after", "BROKER:"): lambda: describe_cluster_default(CLUSTER),
    ("after", "GROUP:g"): lambda: describe_group({}, BROKER, CLUSTER, STATIC),
}


def golden() -> dict[tuple[str, str], dict[str, list[str]]]:
    answers = defaultdict(dict)
    for line in (Path(__file__).parent / "golden" / "described.tsv").read_text().splitlines():
        when, resource, name, *facts = line.split("\t")
        answers[when, resource][name] = facts
    return answers


def facts(config: DescribedConfig) -> list[str]:
    synonyms = " | ".join(f"{s.name}={'null' if s.value is None else s.value}@{s.source.name}" for s in config.synonyms)
    value = "\\N" if config.value is None else config.value
    flags = [str(config.read_only).lower(), str(config.sensitive).lower()]
    return [config.type.name, value, config.source.name, *flags, synonyms]


def _is_own(name: str) -> bool:
    return name.startswith("klamm.") or name == METRICS_LISTENERS


@pytest.mark.parametrize("question", ANSWERS, ids=" ".join)
def test_the_answer_is_kafkas(question):
    expected = golden()[question]
    answered = {config.name: facts(config) for config in ANSWERS[question]() if not _is_own(config.name)}
    assert answered.keys() == expected.keys()
    assert {n: f for n, f in answered.items() if f != expected[n]} == {}


def test_every_setting_is_documented():
    for config in describe_broker(BROKER, CLUSTER, STATIC) + describe_topic({}, {}, {}, {}):
        assert config.doc


def test_a_dynamic_value_replaces_its_synonyms_whatever_their_unit():
    effective = effective_broker({}, {"log.retention.ms": "5"}, {"log.retention.hours": "72", "node.id": "3"})
    assert effective == {"log.retention.ms": "5", "node.id": "3", "broker.id": "3"}


def test_a_secret_is_never_shown():
    static = {"ssl.key.password": "hush", "listener.name.tls.ssl.keystore.password": "hush", "rsm.config.token": "hush"}
    described = {config.name: config for config in describe_broker({}, {}, static)}
    assert "hush" not in repr(described)
    for name in static:
        assert described[name].sensitive
        assert described[name].source is ConfigSource.STATIC_BROKER_CONFIG


def test_a_groups_own_value_comes_first():
    described = {c.name: c for c in describe_group({"consumer.session.timeout.ms": "50000"}, {}, {}, {})}
    config = described["consumer.session.timeout.ms"]
    assert (config.value, config.source) == ("50000", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert [s.name for s in config.synonyms] == ["consumer.session.timeout.ms", "group.consumer.session.timeout.ms"]

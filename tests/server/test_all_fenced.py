"""A cluster whose brokers are all fenced for a moment, as when all are stopped at once, still says where they are.

Breaks when Metadata is answered without brokers: librdkafka then gives up all its connections, for good.
"""

import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from harness import NodeThread, Wire
from klamm.server.handlers.topics import metadata

PATIENCE_S = 60.0


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path) as made:
        yield made


def fence(running, *, fenced):
    """Let the node believe that about itself."""
    image = running.services.metadata.image
    brokers = {broker_id: replace(broker, fenced=fenced) for broker_id, broker in image.cluster.brokers.items()}
    running.services.metadata.image = replace(image, cluster=replace(image.cluster, brokers=brokers))


@pytest.mark.parametrize("version", [0, 5, 12])
def test_all_brokers_are_named_when_all_are_fenced(node, version):
    with Wire(node.port) as wire:
        topic = wire.create_topic()
        node.run(lambda running: fence(running, fenced=True))
        reply = wire.call("metadata", version, topics=[{"name": topic}])
        assert [(broker.node_id, broker.port) for broker in reply.brokers] == [(1, node.port)]
        assert [part.leader_id for part in reply.topics[0].partitions] == [-1]


def test_a_producer_outlives_it(node, monkeypatch):
    answered = []
    answer = metadata._build_response
    monkeypatch.setattr(metadata, "_build_response", lambda *args: answered.append(args) or answer(*args))
    with Wire(node.port) as wire:
        topic = wire.create_topic()
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{node.port}",
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 50,
            # Otherwise it mostly begins anew from its bootstrap servers, and sometimes does not.
            "metadata.recovery.strategy": "none",
        }
    )
    producer.produce(topic, b"before")
    assert producer.flush(PATIENCE_S) == 0
    node.run(lambda running: fence(running, fenced=True))
    wanted, deadline = len(answered) + 3, time.monotonic() + PATIENCE_S
    while len(answered) < wanted:
        assert time.monotonic() < deadline, "the producer sends no more requests"
        producer.poll(0.01)
    node.run(lambda running: fence(running, fenced=False))
    producer.produce(topic, b"after")
    assert producer.flush(PATIENCE_S) == 0
    with Wire(node.port) as wire:
        assert wire.values(topic) == [b"before", b"after"]

"""Settings that Kafka lets change at work are obeyed at work: by groups, transactions and the producers of logs."""

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire, unique
from klamm.model.errors import ErrorCode

BROKER, TOPIC, SET, DELETE = 4, 2, 0, 1


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path) as thread:
        yield thread


@pytest.fixture
def wire(node):
    with Wire(node.port) as connection:
        yield connection


def alter(wire, kind, name, setting, value):
    operation = DELETE if value is None else SET
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": setting, "config_operation": operation, "value": value}],
    }
    answer = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


def eventually(node, question, expected):
    for _ in range(2000):
        value = node.run(question)
        if value == expected:
            return
    assert value == expected


def test_a_commit_must_fit_what_the_offsets_topic_takes_now(node, wire):
    topic, group = unique(), unique("g")
    wire.call("create_topics", 7, topics=[{"name": topic, "num_partitions": 100, "replication_factor": 1}])
    for _ in range(2000):
        wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group])
        if wire.call("offset_fetch", 7, group_id=group, topics=None, require_stable=False).error_code == ErrorCode.NONE:
            break

    def commit():
        rows = [
            {
                "partition_index": index,
                "committed_offset": 5,
                "committed_leader_epoch": -1,
                "committed_metadata": "n" * 100,
            }
            for index in range(100)
        ]
        answer = wire.call(
            "offset_commit", 7, group_id=group, member_id="", generation_id_or_member_epoch=-1, group_instance_id=None,
            topics=[{"name": topic, "partitions": rows}],
        )  # fmt: skip
        return {partition.error_code for partition in answer.topics[0].partitions}

    def limit(node):
        return node.services.coordinators.groups.serving(group).shard.config.record_bytes_max

    assert commit() == {0}
    alter(wire, BROKER, "", "message.max.bytes", "5000")
    eventually(node, limit, 5000 - 512)
    assert commit() == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    alter(wire, TOPIC, "__consumer_offsets", "max.message.bytes", "100000")
    eventually(node, limit, 100_000 - 512)
    assert commit() == {0}
    alter(wire, TOPIC, "__consumer_offsets", "max.message.bytes", None)
    alter(wire, BROKER, "", "message.max.bytes", None)
    eventually(node, limit, 1_048_588 - 512)


def test_verification_and_the_memory_of_producers_change_at_work(node, wire):
    def verifies(node):
        return node.services.coordinators.transactions.gate.verifies

    def remembered_ms(node):
        return node.services.replicas.logs.config.producer_id_expiration_ms

    assert node.run(verifies) is True
    alter(wire, BROKER, "", "transaction.partition.verification.enable", "false")
    eventually(node, verifies, False)
    alter(wire, BROKER, "", "transaction.partition.verification.enable", None)
    eventually(node, verifies, True)
    usual = node.run(remembered_ms)
    alter(wire, BROKER, "", "producer.id.expiration.ms", "60000")
    eventually(node, remembered_ms, 60_000)
    alter(wire, BROKER, "", "producer.id.expiration.ms", None)
    eventually(node, remembered_ms, usual)

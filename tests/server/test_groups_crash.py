"""Acknowledged offsets survive kill -9 at any moment, and so does the group."""

import random
import threading
import time

import pytest

from harness import KlammProcess, Wire
from klamm.model.errors import ErrorCode

SEEDS = range(3)


def commit_fields(group, topic, partition, offset):
    return {
        "group_id": group,
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "group_instance_id": None,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": f"note {offset}",
                    }
                ],
            }
        ],
    }


def ready(node):
    """A connection to a node whose coordinator has loaded."""
    wire = Wire(node.port)
    for _ in range(200):
        coordinator = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"]).coordinators[0]
        if coordinator.error_code == ErrorCode.NONE and wire.call("list_groups", 3).error_code == ErrorCode.NONE:
            return wire
    raise AssertionError("the coordinator does not load")


def commit_until_broken(wire, sent, acknowledged, partitions, first):
    """Commit rising offsets, a few at a time, until the connection breaks."""
    offset = first
    try:
        while True:
            window = []
            for _ in range(8):
                partition = offset % partitions
                sent[partition] = offset
                window.append((wire.send("offset_commit", 8, **commit_fields("g", "t", partition, offset)), offset))
                offset += 1
            for correlation_id, committed in window:
                answer = wire.receive("offset_commit", 8, correlation_id)
                code = answer.topics[0].partitions[0].error_code
                assert code == ErrorCode.NONE, code
                acknowledged[committed % partitions] = committed
    except OSError:
        return


def wait_for_commits(writer, acknowledged, partitions, first):
    """Until every partition has an acknowledged offset of this storm, however slow the machine is."""
    deadline = time.monotonic() + 60
    while sum(offset >= first for offset in list(acknowledged.values())) < partitions:
        assert writer.is_alive(), "the storm ended by itself"
        assert time.monotonic() < deadline, acknowledged
        time.sleep(0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_there_after_kill_9(tmp_path, seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    partitions = 3
    overrides = {"offsets.topic.num.partitions": "3", "offsets.topic.compression.codec": str(seed)}
    with KlammProcess(tmp_path, overrides=overrides) as node:
        wire = ready(node)
        wire.create_topic("t", partitions)
        sent, acknowledged = {}, {}
        for turn in range(3):
            writer = threading.Thread(
                target=commit_until_broken, args=(wire, sent, acknowledged, partitions, turn * 1_000_000)
            )
            writer.start()
            wait_for_commits(writer, acknowledged, partitions, turn * 1_000_000)
            writer.join(chance.uniform(0.05, 0.3))
            node.kill9()
            writer.join(20)
            assert not writer.is_alive()
            wire.close()
            node.start()
            wire = ready(node)
            topics = [{"name": "t", "partition_indexes": list(range(partitions))}]
            answer = wire.call("offset_fetch", 7, group_id="g", topics=topics, require_stable=True)
            assert acknowledged
            for part in answer.topics[0].partitions:
                index = part.partition_index
                assert acknowledged.get(index, -1) <= part.committed_offset <= sent[index]
                assert part.metadata == f"note {part.committed_offset}"
        wire.close()

"""OffsetCommit on the quick and the general path: the same answers to the byte, the same offsets afterwards."""

import random

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire, request_bytes, unique
from klamm.model.errors import ErrorCode, KlammError
from klamm.server.handlers.offsets import offset_commit_quick


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path, "offset.metadata.max.bytes=100", "group.initial.rebalance.delay.ms=0") as thread:
        yield thread


@pytest.fixture
def wire(node):
    with Wire(node.port) as connection:
        yield connection


@pytest.fixture
def topics(wire):
    names = [unique(), unique()]
    made = wire.call(
        "create_topics", 7, topics=[{"name": name, "num_partitions": 3, "replication_factor": 1} for name in names]
    )
    return [(topic.name, topic.topic_id.bytes) for topic in made.topics]


def ready(wire, group):
    for _ in range(2000):
        coordinator = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group]).coordinators[0]
        served = wire.call("offset_fetch", 7, group_id=group, topics=None, require_stable=False)
        if coordinator.error_code == served.error_code == ErrorCode.NONE:
            return
    pytest.fail("no coordinator")


def some_commit(chance, topics, members):
    """Fields of a commit that may be wrong in any way a client can be."""
    member_id, generation = chance.choice([("", -1), ("", -1), ("unknown", 1), *members, *members])
    generation += chance.choice([0, 0, 0, 0, 1])
    chosen = chance.sample([*topics, ("unknown", b"u" * 16)], chance.randrange(1, 3))
    return {
        "member_id": member_id,
        "generation_id_or_member_epoch": generation,
        "group_instance_id": None,
        "retention_time": chance.choice([-1, -1, 60_000]),
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": chance.choice([0, 1, 2, 2, 5]),
                        "committed_offset": chance.randrange(1000),
                        "committed_leader_epoch": chance.choice([-1, 0]),
                        "committed_metadata": chance.choice(["", "", None, "note", "n" * 101]),
                    }
                    for _ in range(chance.randrange(1, 4))
                ],
            }
            for name, topic_id in chosen
        ],
    }


def member_of(wire, group):
    fields = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "group_instance_id": None,
    }
    first = wire.call("join_group", 5, member_id="", **fields)
    joined = wire.call("join_group", 5, member_id=first.member_id, **fields)
    shares = [{"member_id": joined.member_id, "assignment": b""}]
    rest = {"generation_id": joined.generation_id, "member_id": joined.member_id, "group_instance_id": None}
    assert wire.call("sync_group", 3, group_id=group, assignments=shares, **rest).error_code == ErrorCode.NONE
    return joined.member_id, joined.generation_id


def test_both_ways_give_the_same_answers_and_offsets(node, wire, topics, monkeypatch):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    quick_calls = []
    real = offset_commit_quick.handle

    def counted(*args):
        quick_calls.append(real(*args))
        return quick_calls[-1]

    pairs = [tuple(f"{way}-{kind}-{seed}" for way in ("quick", "plain")) for kind in ("simple", "member")]
    members = {}
    for pair in pairs:
        for group in pair:
            ready(wire, group)
            members[group] = [member_of(wire, group)] if "member" in group else []
    for step in range(300):
        pair, version = chance.choice(pairs), chance.randrange(2, 11)
        state = chance.getstate()
        answers = []
        for group, way in zip(pair, ({8: counted}, {}), strict=True):
            chance.setstate(state)
            monkeypatch.setattr(node.node.router, "quick_paths", way)
            fields = some_commit(chance, topics, members[group])
            wire.send_frame(request_bytes("offset_commit", version, step, "c", group_id=group, **fields))
            answers.append(wire.receive_frame())
        assert answers[0] == answers[1], f"step {step}, version {version}"
    assert True in quick_calls
    assert False in quick_calls
    for pair in pairs:
        stored = [wire.call("offset_fetch", 7, group_id=g, topics=None, require_stable=False).topics for g in pair]
        rows = [
            sorted(
                (t.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata)
                for t in topics
                for p in t.partitions
            )
            for topics in stored
        ]
        assert rows[0] == rows[1]
        assert rows[0]


def test_a_commit_whose_write_fails_is_told(node, wire, topics, monkeypatch):
    group = unique("g")
    ready(wire, group)

    def refuse(_node):
        active = _node.services.coordinators.groups.serving(group)
        monkeypatch.setattr(active._log._replica.log, "stage_from", _refuse, raising=True)

    node.run(refuse)
    for version in (7, 9, 10):
        fields = {
            "member_id": "",
            "generation_id_or_member_epoch": -1,
            "group_instance_id": None,
            "topics": [
                {
                    "name": topics[0][0],
                    "topic_id": topics[0][1],
                    "partitions": [
                        {
                            "partition_index": 1,
                            "committed_offset": 5,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        answer = wire.call("offset_commit", version, group_id=group, **fields)
        (topic,) = answer.topics
        assert topic.partitions[0].partition_index == 1
        assert topic.partitions[0].error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refuse(*_args, **_more):
    raise KlammError(ErrorCode.KAFKA_STORAGE_ERROR)

"""Groups on the wire, in every version, encoded by an independent codec."""

import pytest

from harness.wire import unique
from klamm.model.errors import ErrorCode

TOPIC_ID_NONE = bytes(16)
OFFSETS_PARTITIONS = 50
"""The default of offsets.topic.num.partitions."""


@pytest.fixture
def topic(wire):
    name = unique()
    made = wire.call("create_topics", 7, topics=[{"name": name, "num_partitions": 3, "replication_factor": 1}])
    assert made.topics[0].error_code == ErrorCode.NONE
    return name


@pytest.fixture
def group(wire):
    name = unique("g")
    assert find_coordinator(wire, name).error_code == ErrorCode.NONE
    return name


def find_coordinator(wire, group):
    """The answer once the coordinator has loaded."""
    for _ in range(500):
        coordinator = wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group]).coordinators[0]
        served = wire.call("offset_fetch", 7, group_id=group, topics=None, require_stable=False)
        if coordinator.error_code == ErrorCode.NONE and served.error_code == ErrorCode.NONE:
            return coordinator
    return coordinator


def join(wire, group, version=9, member_id="", **more):
    fields = {
        "group_id": group,
        "session_timeout": 6000,
        "rebalance_timeout": 5000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"words"}],
        **more,
    }
    if version >= 5:
        fields.setdefault("group_instance_id", None)
    return wire.call("join_group", version, **fields)


def member(wire, group, version=9):
    """A stable group of one."""
    answer = join(wire, group, version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = join(wire, group, version, answer.member_id)
    assert answer.error_code == ErrorCode.NONE
    synced = wire.call(
        "sync_group",
        3,
        group_id=group,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        group_instance_id=None,
        assignments=[{"member_id": answer.member_id, "assignment": b"mine"}],
    )
    assert synced.error_code == ErrorCode.NONE
    return answer.member_id, answer.generation_id


def commit(wire, version, group, topic, offset, member_id="", generation=-1, partition=0, topic_id=TOPIC_ID_NONE):
    fields = {
        "group_id": group,
        "member_id": member_id,
        "retention_time": -1,
        "generation_id_or_member_epoch": generation,
        "group_instance_id": None,
        "topics": [
            {
                "name": topic,
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 2,
                        "committed_metadata": "note",
                    }
                ],
            }
        ],
    }
    return wire.call("offset_commit", version, **fields).topics[0].partitions[0].error_code


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_found_in_every_version(wire, klamm, version):
    find_coordinator(wire, "any")
    if version < 4:
        coordinator = wire.call("find_coordinator", version, key="any", key_type=0)
    else:
        answer = wire.call("find_coordinator", version, key_type=0, coordinator_keys=["any", "other"])
        coordinator = answer.coordinators[0]
    assert (coordinator.error_code, coordinator.node_id) == (ErrorCode.NONE, 1)
    assert (coordinator.host, coordinator.port) == ("127.0.0.1", klamm.port)


def test_coordinators_this_broker_does_not_have_are_refused(wire):
    coordinator = wire.call("find_coordinator", 6, key_type=2, coordinator_keys=["g:topic:0"]).coordinators[0]
    assert coordinator.error_code == ErrorCode.INVALID_REQUEST
    coordinator = wire.call("find_coordinator", 3, key_type=9, key="x")
    assert coordinator.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(10))
def test_join_in_every_version(wire, group, version):
    answer = join(wire, group, version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.member_id.startswith("wire-")
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = join(wire, group, version, answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id
    assert [(m.member_id, m.metadata) for m in answer.members] == [(answer.member_id, b"words")]


@pytest.mark.parametrize("version", range(6))
def test_sync_in_every_version(wire, group, version):
    member_id, generation = member(wire, group)
    fields = {"group_id": group, "generation_id": generation, "member_id": member_id, "assignments": []}
    if version >= 3:
        fields["group_instance_id"] = None
    if version >= 5:
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    answer = wire.call("sync_group", version, **fields)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    fields["generation_id"] += 1
    assert wire.call("sync_group", version, **fields).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_in_every_version(wire, group, version):
    member_id, generation = member(wire, group)
    fields = {"group_id": group, "generation_id": generation, "member_id": member_id}
    if version >= 3:
        fields["group_instance_id"] = None
    assert wire.call("heartbeat", version, **fields).error_code == ErrorCode.NONE
    fields["member_id"] = "stranger"
    assert wire.call("heartbeat", version, **fields).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
def test_leave_in_every_version(wire, group, version):
    member_id, _ = member(wire, group)

    def leave(who):
        if version < 3:
            return wire.call("leave_group", version, group_id=group, member_id=who).error_code
        identity = {"member_id": who, "group_instance_id": None, "reason": "done"}
        answer = wire.call("leave_group", version, group_id=group, members=[identity])
        assert answer.error_code == ErrorCode.NONE
        return answer.members[0].error_code

    assert leave(member_id) == 0
    assert leave(member_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_needs_a_name(wire):
    assert join(wire, "").error_code == ErrorCode.INVALID_GROUP_ID
    beat = wire.call("heartbeat", 4, group_id="", generation_id=1, member_id="x", group_instance_id=None)
    assert beat.error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(wire, group, topic, version):
    ids = wire.call("metadata", 12, topics=[{"name": topic, "topic_id": TOPIC_ID_NONE}]).topics[0]
    topic_id = ids.topic_id.bytes
    assert commit(wire, version, group, topic, 7, topic_id=topic_id) == 0
    committed = fetch(wire, 7, group, topic)
    assert (committed.committed_offset, committed.metadata) == (7, "note")
    assert committed.committed_leader_epoch == (2 if version >= 6 else -1)
    unknown = commit(wire, version, group, topic, 7, partition=3, topic_id=topic_id)
    assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    nowhere = commit(wire, version, group, "nowhere", 7, topic_id=bytes(15) + b"\x09")
    assert nowhere == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_known_and_unknown_partitions_in_one_commit(wire, group, topic):
    def partition(index):
        return {"partition_index": index, "committed_offset": 5, "committed_metadata": None}

    answer = wire.call(
        "offset_commit",
        5,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            {"name": topic, "partitions": [partition(0), partition(9)]},
            {"name": "nowhere", "partitions": [partition(0)]},
        ],
    )
    codes = {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {(topic, 0): 0, (topic, 9): unknown, ("nowhere", 0): unknown}
    assert fetch(wire, 5, group, topic).committed_offset == 5


def fetch(wire, version, group, topic, partition=0):
    topics = [{"name": topic, "partition_indexes": [partition]}]
    answer = wire.call("offset_fetch", version, group_id=group, topics=topics, require_stable=False)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_read_in_every_version(wire, group, topic, version):
    ids = wire.call("metadata", 12, topics=[{"name": topic, "topic_id": TOPIC_ID_NONE}]).topics[0]
    commit(wire, 8, group, topic, 11)
    if version < 8:
        assert fetch(wire, version, group, topic).committed_offset == 11
        assert fetch(wire, version, group, topic, 2).committed_offset == -1
        unknown = fetch(wire, version, "unknown", topic)
        assert (unknown.committed_offset, unknown.error_code, unknown.metadata) == (-1, 0, "")
        return
    requested_topic = {"name": topic, "topic_id": ids.topic_id.bytes, "partition_indexes": [0, 2]}
    groups = [
        {"group_id": name, "member_id": None, "member_epoch": -1, "topics": [requested_topic]}
        for name in (group, "unknown")
    ]
    answer = wire.call("offset_fetch", version, groups=groups, require_stable=True)
    assert [[p.committed_offset for p in g.topics[0].partitions] for g in answer.groups] == [[11, -1], [-1, -1]]
    everything = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}]
    answer = wire.call("offset_fetch", version, groups=everything, require_stable=True)
    assert [p.committed_offset for p in answer.groups[0].topics[0].partitions] == [11]
    if version >= 10:
        assert answer.groups[0].topics[0].topic_id == ids.topic_id


def test_an_unknown_topic_id_has_no_offsets(wire, group):
    requested_topic = {"topic_id": bytes(15) + b"\x07", "partition_indexes": [0]}
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": [requested_topic]}]
    answer = wire.call("offset_fetch", 10, groups=groups, require_stable=False)
    partition = answer.groups[0].topics[0].partitions[0]
    assert (partition.committed_offset, partition.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(wire, group, version):
    member_id, _ = member(wire, group)
    requested = [group, "unknown"]
    groups = wire.call("describe_groups", version, groups=requested, include_authorized_operations=True).groups
    described = sorted(groups, key=lambda group: requested.index(group.group_id))
    existing, missing = described
    assert (existing.group_state, existing.protocol_type, existing.protocol_data) == ("Stable", "consumer", "range")
    only = existing.members[0]
    assert (only.member_id, only.client_id, only.client_host) == (member_id, "wire", "/127.0.0.1")
    assert (only.member_metadata, only.member_assignment) == (b"words", b"mine")
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(wire, group, version):
    member(wire, group)
    listed = {g.group_id: g for g in wire.call("list_groups", version, states_filter=[], types_filter=[]).groups}
    assert listed[group].protocol_type == "consumer"
    if version >= 4:
        assert listed[group].group_state == "Stable"
        empty = wire.call("list_groups", version, states_filter=["Empty"], types_filter=[]).groups
        assert group not in {g.group_id for g in empty}
    if version >= 5:
        assert listed[group].group_type == "classic"
        modern = wire.call("list_groups", version, states_filter=[], types_filter=["consumer"]).groups
        assert group not in {g.group_id for g in modern}


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(wire, group, topic, version):
    member_id, generation = member(wire, group)
    commit(wire, 8, group, topic, 3, member_id, generation)

    def delete():
        results = wire.call("delete_groups", version, groups_names=[group, "unknown"]).results
        return {r.group_id: r.error_code for r in results}

    assert delete() == {group: ErrorCode.NON_EMPTY_GROUP, "unknown": ErrorCode.GROUP_ID_NOT_FOUND}
    leaver = {"member_id": member_id, "group_instance_id": None}
    wire.call("leave_group", 3, group_id=group, members=[leaver])
    assert delete()[group] == 0
    assert fetch(wire, 5, group, topic).committed_offset == -1


def test_single_offsets_are_deleted(wire, group, topic):
    commit(wire, 8, group, topic, 3)
    partitions = [{"partition_index": i} for i in (0, 1, 9)]
    answer = wire.call("offset_delete", 0, group_id=group, topics=[{"name": topic, "partitions": partitions}])
    assert answer.error_code == ErrorCode.NONE
    codes = {p.partition_index: p.error_code for p in answer.topics[0].partitions}
    assert codes == {0: 0, 1: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert fetch(wire, 5, group, topic).committed_offset == -1
    missing = wire.call("offset_delete", 0, group_id="unknown", topics=[{"name": topic, "partitions": partitions}])
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_replies_keep_their_order_while_a_join_waits(wire, klamm, group):
    from harness import Wire

    member(wire, group)
    with Wire(klamm.port) as other:
        first = join(other, group)
        fields = {
            "group_id": group,
            "session_timeout": 6000,
            "rebalance_timeout": 300,
            "member_id": first.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"words"}],
        }
        waiting = other.send("join_group", 9, **fields)
        listed = other.send("list_groups", 3)
        answer = other.receive("join_group", 9, waiting)
        assert (answer.error_code, answer.generation_id) == (0, 2)
        assert other.receive("list_groups", 3, listed).error_code == ErrorCode.NONE


def test_the_internal_topic_is_compacted_and_marked_internal(wire, group):
    named = {"name": "__consumer_offsets", "topic_id": TOPIC_ID_NONE}
    offsets_topic = wire.call("metadata", 12, topics=[named]).topics[0]
    assert offsets_topic.is_internal
    assert len(offsets_topic.partitions) == OFFSETS_PARTITIONS
    resource = {"resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": None}
    described = wire.call("describe_configs", 4, resources=[resource], include_synonyms=False)
    settings = {c.name: c.value for c in described.results[0].configs}
    assert (settings["cleanup.policy"], settings["compression.type"]) == ("compact", "producer")
    assert settings["segment.bytes"] == "104857600"

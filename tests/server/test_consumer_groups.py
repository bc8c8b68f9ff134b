"""Consumer groups on the wire: every version of the two requests, and what other group requests say of such groups."""

import uuid

import pytest

from harness import KlammProcess, Wire
from harness.wire import unique
from klamm.model.errors import ErrorCode

SOFTWARE = {"client_software_name": "wire-tests", "client_software_version": "1.0"}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    overrides = {"group.consumer.assignment.interval.ms": "0", "offsets.topic.num.partitions": "4"}
    with KlammProcess(tmp_path_factory.mktemp("consumer-groups"), overrides=overrides) as process:
        with Wire(process.port) as connection:
            connection.call("find_coordinator", 4, key_type=0, coordinator_keys=["any"])
        yield process
        process.stop()


@pytest.fixture
def wire(node):
    with Wire(node.port) as connection:
        yield connection


def heartbeat(wire, group, member, epoch, version=1, **fields):
    if epoch == 0:
        fields = {"rebalance_timeout": 10_000, "topic_partitions": [], **fields}
    return wire.call(
        "consumer_group_heartbeat", version, group_id=group, member_id=member, member_epoch=epoch, **fields
    )


def numbers(reply):
    return sorted(p for topic in reply.assignment.topic_partitions for p in topic.partitions)


@pytest.mark.parametrize("version", [0, 1])
def test_join_stay_leave(wire, version):
    topic = wire.create_topic(partitions=3)
    group = unique("g")
    member = "" if version == 0 else "one"
    joined = heartbeat(wire, group, member, 0, version, subscribed_topic_names=[topic])
    assert joined.error_code == ErrorCode.NONE
    assert numbers(joined) == [0, 1, 2]
    assert joined.member_epoch == 1
    assert joined.member_id
    stays = heartbeat(wire, group, joined.member_id, 1, version, subscribed_topic_names=None, topic_partitions=None)
    assert stays.error_code == ErrorCode.NONE
    assert stays.assignment is None
    assert heartbeat(wire, group, joined.member_id, 7, version).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    left = heartbeat(wire, group, joined.member_id, -1, version)
    assert (left.error_code, left.member_epoch) == (0, -1)


def test_refusals_say_why(wire):
    group = unique("g")
    for fields, code in (
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["t"], "server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ):
        reply = heartbeat(wire, group, "one", 0, **fields)
        assert reply.error_code == code, fields
        assert reply.error_message
    assert heartbeat(wire, "", "one", 0, subscribed_topic_names=["t"]).error_code == ErrorCode.INVALID_REQUEST
    assert heartbeat(wire, group, "one", 4).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", [0, 1])
def test_describe(wire, version):
    topic = wire.create_topic(partitions=2)
    group = unique("g")
    heartbeat(wire, group, "one", 0, subscribed_topic_names=[topic], rack_id="r", instance_id="i")
    reply = wire.call("consumer_group_describe", version, group_ids=[group, "none"], include_authorized_operations=True)
    known, unknown = reply.groups
    assert (known.error_code, known.group_state, known.group_epoch, known.assignor_name) == (0, "Stable", 1, "uniform")
    assert known.authorized_operations > 0
    (member,) = known.members
    assert (member.member_id, member.rack_id, member.instance_id, member.member_epoch) == ("one", "r", "i", 1)
    assert list(member.subscribed_topic_names) == [topic]
    assert [(t.topic_name, list(t.partitions)) for t in member.assignment.topic_partitions] == [(topic, [0, 1])]
    if version == 1:
        assert member.member_type == 1
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "not found" in unknown.error_message


def test_other_requests_know_the_group(wire):
    topic = wire.create_topic(partitions=1)
    group = unique("g")
    heartbeat(wire, group, "one", 0, subscribed_topic_names=[topic])
    (listed,) = [
        g
        for g in wire.call("list_groups", 5, states_filter=[], types_filter=["consumer"]).groups
        if g.group_id == group
    ]
    assert (listed.group_type, listed.group_state, listed.protocol_type) == ("consumer", "Stable", "consumer")
    assert (
        wire.call("describe_groups", 6, groups=[group], include_authorized_operations=False).groups[0].error_code
        == ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert wire.call("delete_groups", 2, groups_names=[group]).results[0].error_code == ErrorCode.NON_EMPTY_GROUP

    def commit(epoch, version=9):
        partition = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        reply = wire.call(
            "offset_commit",
            version,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id="one",
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [partition]}],
        )
        return reply.topics[0].partitions[0].error_code

    assert commit(1) == 0
    assert commit(2) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(1, version=8) == ErrorCode.UNSUPPORTED_VERSION

    def fetch(epoch):
        requested = {"group_id": group, "member_id": "one", "member_epoch": epoch, "topics": None}
        return wire.call("offset_fetch", 9, groups=[requested], require_stable=False).groups[0]

    assert fetch(1).topics[0].partitions[0].committed_offset == 3
    assert fetch(2).error_code == ErrorCode.STALE_MEMBER_EPOCH
    heartbeat(wire, group, "one", -1)
    assert wire.call("delete_groups", 2, groups_names=[group]).results[0].error_code == ErrorCode.NONE


def test_a_cluster_tells_that_it_has_consumer_groups(wire):
    reply = wire.call("api_versions", 4, **SOFTWARE)
    assert {f.name: f.max_version_level for f in reply.finalized_features}["group.version"] == 1
    served = {key.api_key: (key.min_version, key.max_version) for key in reply.api_keys}
    assert served[68] == (0, 1)
    assert served[69] == (0, 1)


def test_a_node_can_be_told_to_leave_the_new_protocol_out(tmp_path):
    overrides = {"group.coordinator.rebalance.protocols": "classic"}
    with KlammProcess(tmp_path, overrides=overrides) as process, Wire(process.port) as wire:
        assert (
            heartbeat(wire, "g", str(uuid.uuid4()), 0, subscribed_topic_names=["t"]).error_code
            == ErrorCode.UNSUPPORTED_VERSION
        )
        reply = wire.call("consumer_group_describe", 0, group_ids=["g"], include_authorized_operations=False)
        assert reply.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION

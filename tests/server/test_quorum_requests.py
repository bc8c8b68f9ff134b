"""What one member of the quorum says to strangers: kio asks for votes, fetches the metadata log, and lies a little."""

import pytest

from harness import NodeThread, Wire, unique
from klamm.model.errors import ErrorCode
from klamm.model.ids import METADATA_TOPIC_ID
from klamm.records.batch import iter_batches
from klamm.records.control import ControlType, control_records

TOPIC = "__cluster_metadata"
ELSEWHERE = bytes(range(16))


@pytest.fixture
def node(tmp_path):
    with NodeThread(tmp_path) as made:
        yield made


@pytest.fixture
def wire(node):
    with Wire(node.node.addresses["CONTROLLER"][1]) as made:
        yield made


def epoch(node):
    return node.run(lambda inner: inner.services.raft.leader[1])


def vote(wire, node, **changes):
    requested = {
        "partition_index": 0,
        "replica_epoch": epoch(node),
        "replica_id": 2,
        "replica_directory_id": ELSEWHERE,
        "voter_directory_id": bytes(16),
        "last_offset_epoch": 1000,
        "last_offset": 10**6,
        "pre_vote": True,
        **changes,
    }
    cluster_id = requested.pop("cluster_id", node.node.services.cluster_id)
    topics = [{"topic_name": TOPIC, "partitions": [requested]}]
    return wire.call("vote", 2, cluster_id=cluster_id, voter_id=1, topics=topics)


def fetch(wire, node, offset, *, topic_id=METADATA_TOPIC_ID, leader_epoch=None, last_epoch=0, wait_ms=0):
    requested = {
        "partition": 0,
        "current_leader_epoch": epoch(node) if leader_epoch is None else leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "partition_max_bytes": 1 << 20,
        "replica_directory_id": ELSEWHERE,
    }
    reply = wire.call(
        "fetch",
        17,
        cluster_id=node.node.services.cluster_id,
        replica_state={"replica_id": 9, "replica_epoch": -1},
        max_wait=wait_ms,
        topics=[{"topic_id": topic_id, "partitions": [requested]}],
    )
    return reply if reply.error_code else reply.responses[0].partitions[0]


def test_a_living_leader_grants_nothing(node, wire):
    partition = vote(wire, node).topics[0].partitions[0]
    assert (partition.error_code, partition.vote_granted, partition.leader_id) == (0, False, 1)


def test_an_older_epoch_is_fenced(node, wire):
    partition = vote(wire, node, replica_epoch=0).topics[0].partitions[0]
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert partition.leader_epoch == epoch(node)


def test_another_cluster_is_refused_as_a_whole(node, wire):
    reply = vote(wire, node, cluster_id="another-cluster")
    assert reply.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_vote_for_another_disk_of_this_node_is_not_ours_to_give(node, wire):
    partition = vote(wire, node, voter_directory_id=ELSEWHERE).topics[0].partitions[0]
    assert partition.error_code == ErrorCode.INVALID_VOTER_KEY


def test_an_observer_reads_the_log_and_is_seen(node, wire):
    partition = fetch(wire, node, 0)
    assert (partition.error_code, partition.current_leader.leader_id) == (0, 1)
    batches = list(iter_batches(partition.records))
    assert control_records(batches[0])[0].type == ControlType.LEADER_CHANGE
    end = batches[-1].next_offset
    assert partition.high_watermark >= end
    requested = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]
    described = wire.call("describe_quorum", 2, topics=requested).topics[0].partitions[0]
    assert [observer.replica_id for observer in described.observers] == [9]


def test_a_fetch_at_the_end_waits_for_what_comes(node, wire):
    partition = fetch(wire, node, 0)
    end = list(iter_batches(partition.records))[-1]
    with Wire(node.port) as client:
        name = unique()
        client.create_topic(name)
    more = fetch(wire, node, end.next_offset, last_epoch=end.leader_epoch, wait_ms=5_000)
    assert name.encode() in bytes(more.records)


def test_a_log_that_is_no_prefix_of_ours_hears_where_it_parts(node, wire):
    partition = fetch(wire, node, 10**6, last_epoch=epoch(node))
    assert partition.error_code == 0
    assert 0 < partition.diverging_epoch.end_offset < 10**6


def test_a_fetch_of_a_later_epoch_does_not_end_this_one(node, wire):
    """A leader learns of a later epoch by the requests of an election only, as in Kafka."""
    before = epoch(node)
    partition = fetch(wire, node, 0, leader_epoch=before + 3)
    assert partition.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    with Wire(node.port) as client:
        client.create_topic(unique())
    assert epoch(node) == before


def test_other_topics_are_not_fetched_here(node, wire):
    assert fetch(wire, node, 0, topic_id=ELSEWHERE).error_code == ErrorCode.INVALID_REQUEST


def test_fixed_voters_do_not_change(node, wire):
    listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
    added = wire.call(
        "add_raft_voter",
        0,
        cluster_id=None,
        timeout=1000,
        voter_id=2,
        voter_directory_id=ELSEWHERE,
        listeners=[listener],
    )
    assert added.error_code == ErrorCode.UNSUPPORTED_VERSION
    removed = wire.call("remove_raft_voter", 0, cluster_id=None, voter_id=1, voter_directory_id=ELSEWHERE)
    assert removed.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("behind", "refusal"), [(1, ErrorCode.FENCED_LEADER_EPOCH), (-1, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_voter_of_another_epoch_learns_the_leader_and_changes_nothing(node, wire, behind, refusal):
    answer = wire.call(
        "update_raft_voter",
        0,
        cluster_id=None,
        current_leader_epoch=epoch(node) - behind,
        voter_id=1,
        voter_directory_id=bytes(16),
        listeners=[{"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}],
        k_raft_version_feature={"min_supported_version": 0, "max_supported_version": 1},
    )
    assert answer.error_code == refusal
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, epoch(node))

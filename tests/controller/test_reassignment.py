"""Moving partitions: add replicas first, remove others once all that stay are in sync; and cancelling."""

import pytest

from klamm.metadata.image import UNASSIGNED_DIR
from klamm.model.errors import ErrorCode
from klamm.protocol.messages import alter_partition as ap
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages import list_partition_reassignments as lpr


@pytest.fixture
def five(cluster):
    made = cluster(5)
    made.create("orders", assignments=[[1, 2, 3]])
    return made


def move(cluster, replicas, *, index=0, topic="orders", **fields):
    part = apr.ReassignablePartition(partition_index=index, replicas=replicas)
    moved = apr.ReassignableTopic(name=topic, partitions=[part])
    request = apr.AlterPartitionReassignmentsRequest(topics=[moved], **fields)
    response = cluster.commit(cluster.controller.alter_partition_reassignments(request))
    assert response.error_code == 0
    return ErrorCode(response.responses[0].partitions[0].error_code)


def in_sync(cluster, *isr):
    """The leader proposes an ISR."""
    partition = cluster.partition("orders")
    data = ap.PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[ap.BrokerState(broker_id=broker, broker_epoch=cluster.epochs[broker]) for broker in isr],
    )
    topic = ap.TopicData(topic_id=cluster.image.topics.by_name["orders"].id, partitions=[data])
    leader = partition.leader
    request = ap.AlterPartitionRequest(broker_id=leader, broker_epoch=cluster.epochs[leader], topics=[topic])
    return cluster.commit(cluster.controller.alter_partition(request, 3)).topics[0].partitions[0]


def moving(cluster, topics=None):
    request = lpr.ListPartitionReassignmentsRequest(topics=topics)
    decision = cluster.controller.list_partition_reassignments(request)
    assert decision.records == ()
    return {
        (topic.name, partition.partition_index): (
            partition.replicas,
            partition.adding_replicas,
            partition.removing_replicas,
        )
        for topic in decision.response.topics
        for partition in topic.partitions
    }


def test_a_move_widens_the_partition_and_waits(five):
    assert move(five, [4, 5, 1]) is ErrorCode.NONE
    partition = five.partition("orders")
    assert (partition.replicas, partition.isr) == ((4, 5, 1, 2, 3), (1, 2, 3))
    assert (partition.adding_replicas, partition.removing_replicas) == ((4, 5), (2, 3))
    assert (partition.leader, partition.leader_epoch) == (1, 0), "no replica was removed yet: the leader stays"
    assert moving(five) == {("orders", 0): ([4, 5, 1, 2, 3], [4, 5], [2, 3])}
    assert partition.directory(4) == bytes([4]) * 16, "a broker with one directory can only use that"


def test_it_ends_when_all_who_stay_are_in_sync(five):
    move(five, [4, 5, 1])
    assert in_sync(five, 1, 2, 3, 4).error_code == 0
    assert five.partition("orders").is_reassigning, "5 is missing"
    answer = in_sync(five, 1, 2, 3, 4, 5)
    partition = five.partition("orders")
    assert (partition.replicas, sorted(partition.isr)) == ((4, 5, 1), [1, 4, 5])
    assert not partition.is_reassigning
    assert partition.leader == 1
    assert partition.leader_epoch == 1, "who was removed is fenced by a new epoch"
    assert (answer.error_code, answer.leader_epoch, sorted(answer.isr)) == (0, 1, [1, 4, 5])
    assert moving(five) == {}


def test_a_leader_that_is_moved_away_hears_of_it(five):
    move(five, [4, 5])
    answer = in_sync(five, 1, 2, 3, 4, 5)
    assert ErrorCode(answer.error_code) is ErrorCode.NEW_LEADER_ELECTED
    partition = five.partition("orders")
    assert (partition.replicas, partition.leader, sorted(partition.isr)) == ((4, 5), 4, [4, 5])


def test_another_order_or_fewer_replicas_need_no_waiting(five):
    move(five, [3, 1, 2])
    assert five.partition("orders").replicas == (3, 1, 2)
    assert not five.partition("orders").is_reassigning
    assert five.partition("orders").leader == 1, "the preferred leader comes with the next balance"
    move(five, [3, 2])
    partition = five.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 2), (2, 3), 3)
    assert len(partition.directories) == 2


def test_a_shrink_waits_for_somebody_who_stays(five):
    in_sync(five, 1)
    move(five, [2, 3])
    partition = five.partition("orders")
    assert (partition.leader, partition.isr, partition.removing_replicas) == (1, (1,), (1,))
    in_sync(five, 1, 2, 3)
    assert (five.partition("orders").replicas, five.partition("orders").leader) == ((2, 3), 2)


def test_a_shrunk_partition_has_no_eligible_leader_outside_its_replicas(five):
    five.create("narrow", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "2"})
    assert move(five, [1], topic="narrow") is ErrorCode.NONE
    partition = five.partition("narrow")
    assert (partition.replicas, partition.isr, partition.elr) == ((1,), (1,), ())


def test_a_move_is_taken_back(five):
    move(five, [4, 5])
    in_sync(five, 1, 2, 3, 4)
    assert move(five, None) is ErrorCode.NONE
    partition = five.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert not partition.is_reassigning
    assert partition.leader_epoch == 1, "4 and 5 are fenced"
    assert move(five, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_cannot_be_taken_back_when_only_new_replicas_have_the_records(five):
    move(five, [4, 5, 1])
    in_sync(five, 1, 4)
    five.silence(1)
    assert five.partition("orders").leader == 4
    assert move(five, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert five.partition("orders").is_reassigning


def test_a_move_under_way_can_be_sent_elsewhere(five):
    move(five, [4, 2, 3])
    move(five, [5, 2, 3])
    partition = five.partition("orders")
    assert partition.replicas == (5, 2, 3, 1, 4)
    assert (partition.adding_replicas, partition.removing_replicas) == ((5,), (1, 4))
    in_sync(five, 1, 2, 3, 5)
    assert five.partition("orders").replicas == (5, 2, 3)


def test_a_move_back_by_hand_ends_at_once(five):
    move(five, [4, 5])
    move(five, [1, 2, 3])
    partition = five.partition("orders")
    assert (partition.replicas, partition.isr, partition.is_reassigning) == ((1, 2, 3), (1, 2, 3), False)


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"replicas": []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": [1, 9]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"replicas": [1, 2], "index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"replicas": [1, 2], "topic": "nothing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"replicas": None}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (
            {"replicas": [1, 2], "allow_replication_factor_change": False},
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
    ],
)
def test_moves_refused(five, wish, code):
    before = five.image
    assert move(five, **wish) is code
    assert five.image == before


def test_a_move_of_the_same_size_is_allowed_where_the_size_may_not_change(five):
    assert move(five, [3, 4, 5], allow_replication_factor_change=False) is ErrorCode.NONE
    assert move(five, [1, 4, 5], allow_replication_factor_change=False) is ErrorCode.NONE


def test_a_move_may_name_a_broker_that_is_down_and_waits_for_it(five):
    five.silence(5)
    assert move(five, [1, 2, 5]) is ErrorCode.NONE
    assert five.partition("orders").adding_replicas == (5,)


def test_a_broker_with_two_directories_says_itself_where_the_replica_lies(cluster):
    made = cluster(3)
    made.start(4, log_dirs=[b"a" * 16, b"b" * 16])
    made.create("orders", assignments=[[1, 2, 3]])
    move(made, [1, 2, 4])
    assert made.partition("orders").directory(4) == UNASSIGNED_DIR


def test_listing_names_only_what_was_requested(five):
    five.create("other", assignments=[[1], [2]])
    move(five, [4], topic="other", index=1)
    move(five, [4, 5])
    assert set(moving(five)) == {("orders", 0), ("other", 1)}
    topics = [lpr.ListPartitionReassignmentsTopics(name="other", partition_indexes=[0, 1, 9])]
    assert set(moving(five, topics)) == {("other", 1)}
    assert moving(five, [lpr.ListPartitionReassignmentsTopics(name="nothing", partition_indexes=[0])]) == {}


def test_a_move_survives_the_death_of_its_leader(five):
    move(five, [4, 5, 1])
    five.silence(1)
    assert five.partition("orders").leader in (2, 3)
    assert five.partition("orders").is_reassigning

"""Leaders and in-sync replicas: what a leader may ask for, and who is elected."""

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages import alter_partition as ap
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def three(cluster):
    made = cluster(3)
    made.create("orders", assignments=[[1, 2, 3]])
    return made


def propose(three, isr, *, version=3, broker_id=1, broker_epoch=None, topic_id=None, index=0, **fields):
    partition = three.partition("orders")
    data = ap.PartitionData(
        partition_index=index,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=list(isr) if version < 3 else [],
        new_isr_with_epochs=[
            ap.BrokerState(broker_id=replica, broker_epoch=three.epochs.get(replica, 0)) for replica in isr
        ]
        if version >= 3
        else [],
    )
    for name, value in fields.items():
        setattr(data, name, value)
    topic = ap.TopicData(topic_id=topic_id or three.image.topics.by_name["orders"].id, partitions=[data])
    epoch = three.epochs[broker_id] if broker_epoch is None else broker_epoch
    request = ap.AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch, topics=[topic])
    return three.commit(three.controller.alter_partition(request, version))


def answer_of(response):
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_shrinks_and_grows_its_isr(three, version):
    answer = answer_of(propose(three, [1, 3], version=version))
    assert (answer.error_code, answer.isr, answer.leader_id) == (0, [1, 3], 1)
    assert (answer.leader_epoch, answer.partition_epoch) == (0, 1)
    answer = answer_of(propose(three, [1, 3, 2], version=version))
    assert (answer.isr, answer.partition_epoch) == ([1, 3, 2], 2)
    assert three.partition("orders").isr == (1, 3, 2)


def test_asking_for_what_is_already_so_writes_nothing(three):
    before = three.next_offset
    assert answer_of(propose(three, [1, 2, 3])).error_code == 0
    assert three.next_offset == before


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 4]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 1]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [2, 3]}, ErrorCode.INVALID_REQUEST),
        ({"isr": []}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1], "leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_proposals_refused(three, wish, code):
    propose(three, [1, 2])
    before = three.partition("orders")
    answer = answer_of(propose(three, **{"isr": [1, 2, 3], **wish}))
    assert answer.error_code == code
    assert three.partition("orders") == before


def test_an_old_broker_epoch_is_refused_as_a_whole(three):
    response = propose(three, [1], broker_epoch=0)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert not response.topics


def test_a_replica_that_is_down_or_another_process_may_not_join(three):
    three.silence(3)
    assert answer_of(propose(three, [1, 2, 3])).error_code == ErrorCode.INELIGIBLE_REPLICA
    three.heartbeat(3)
    assert answer_of(propose(three, [1, 2, 3])).error_code == 0
    three.epochs[3] -= 1
    propose(three, [1, 2])
    assert answer_of(propose(three, [1, 2, 3])).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert answer_of(propose(three, [1, 2, 3], version=2)).error_code == 0


def elect(three, kind, partitions):
    wanted = None
    if partitions is not None:
        wanted = [TopicPartitions(topic=topic, partitions=[index]) for topic, index in partitions]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=wanted)
    answer = three.commit(three.controller.elect_leaders(request))
    return answer, [result.error_code for topic in answer.replica_election_results for result in topic.partition_result]


def test_the_preferred_leader_is_given_back_its_place(three):
    three.silence(1)
    assert three.partition("orders").leader == 2
    assert elect(three, PREFERRED, [("orders", 0)])[1] == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    three.heartbeat(1)
    assert elect(three, PREFERRED, [("orders", 0)])[1] == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    propose(three, [1, 2, 3], broker_id=2)
    assert elect(three, PREFERRED, [("orders", 0)])[1] == [ErrorCode.NONE]
    assert three.partition("orders").leader == 1
    assert elect(three, PREFERRED, [("orders", 0)])[1] == [ErrorCode.ELECTION_NOT_NEEDED]


def test_elections_for_all_partitions_mention_only_what_was_needed(three):
    assert elect(three, PREFERRED, None)[1] == []
    three.silence(1)
    three.heartbeat(1)
    propose(three, [1, 2, 3], broker_id=2)
    assert elect(three, PREFERRED, None)[1] == [ErrorCode.NONE]


def test_elections_of_what_does_not_exist(three):
    assert elect(three, PREFERRED, [("unknown", 0), ("orders", 4)])[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert elect(three, 7, None)[0].error_code == ErrorCode.INVALID_REQUEST


def test_an_unclean_election_takes_whoever_lives(three):
    three.create("risky", assignments=[[1, 2]], configs={"min.insync.replicas": "1"})
    three.silence(2)
    three.silence(1, 2)
    three.heartbeat(2)
    assert (three.partition("risky").leader, three.partition("risky").elr) == (-1, (1,))
    assert elect(three, UNCLEAN, [("risky", 0)])[1] == [ErrorCode.NONE]
    partition = three.partition("risky")
    assert (partition.leader, partition.isr, partition.elr, partition.leader_recovery_state) == (2, (2,), (), 1)
    assert elect(three, UNCLEAN, [("risky", 0)])[1] == [ErrorCode.ELECTION_NOT_NEEDED]


def test_an_unclean_election_needs_somebody_alive(three):
    three.create("dark", assignments=[[1]])
    three.silence(1)
    assert elect(three, UNCLEAN, [("dark", 0)])[1] == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]


def test_a_topic_may_prefer_an_old_leader_to_none(three):
    three.create("risky", assignments=[[1, 2]], configs={"unclean.leader.election.enable": "true"})
    three.silence(2)
    three.silence(1, 2)
    three.heartbeat(2)
    partition = three.partition("risky")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), 1)


def test_a_recovering_leader_says_when_it_has_recovered(three):
    three.create("dark", assignments=[[1]])
    three.now_ms += 9_000
    three.register(1, incarnation_id=b"\1" * 15 + b"\2")
    three.heartbeat(1)
    partition = three.partition("dark")
    assert partition.leader_recovery_state == 1
    data = ap.PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[ap.BrokerState(broker_id=1)],
    )
    topic = ap.TopicData(topic_id=three.image.topics.by_name["dark"].id, partitions=[data])
    request = ap.AlterPartitionRequest(broker_id=1, broker_epoch=three.epochs[1], topics=[topic])
    assert answer_of(three.commit(three.controller.alter_partition(request, 3))).error_code == 0
    assert three.partition("dark").leader_recovery_state == 0


def test_replicas_that_left_below_the_minimum_stay_eligible(three):
    three.create("safe", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "2"})
    three.silence(3)
    assert three.partition("safe").elr == ()
    three.silence(2, 3)
    assert (three.partition("safe").isr, three.partition("safe").elr) == ((1,), (2,))
    three.silence(1, 2, 3)
    assert (three.partition("safe").isr, sorted(three.partition("safe").elr)) == ((), [1, 2])
    three.heartbeat(3)
    assert three.partition("safe").leader == -1, "3 left while enough others were in sync"
    three.heartbeat(2)
    assert (three.partition("safe").leader, three.partition("safe").isr, three.partition("safe").elr) == (2, (2,), (1,))


def test_leaders_are_balanced_a_few_at_a_time(cluster):
    three = cluster(3)
    three.create("many", assignments=[[1, 2, 3]] * 5)
    three.silence(1)
    three.heartbeat(1)
    topic = three.image.topics.by_name["many"]
    for index, partition in topic.partitions.items():
        data = ap.PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[ap.BrokerState(broker_id=replica) for replica in (1, 2, 3)],
        )
        topics = [ap.TopicData(topic_id=topic.id, partitions=[data])]
        request = ap.AlterPartitionRequest(broker_id=2, broker_epoch=three.epochs[2], topics=topics)
        three.commit(three.controller.alter_partition(request, 3))
    assert three.commit(three.controller.balance_leaders(limit=3)) is True
    assert [three.partition("many", i).leader for i in range(5)] == [1, 1, 1, 2, 2]
    assert three.commit(three.controller.balance_leaders()) is False
    assert [three.partition("many", i).leader for i in range(5)] == [1] * 5
    assert not three.controller.balance_leaders().records


def test_allowing_an_unclean_leader_helps_partitions_that_have_none(three):
    propose(three, [1])
    three.silence(1)
    assert three.partition("orders").leader == -1
    assert three.commit(three.controller.elect_unclean_leaders()) is False
    assert three.partition("orders").leader == -1, "records would be lost"
    three.commit(three.controller.incremental_alter_configs(unclean_allowed("orders")))
    assert three.partition("orders").leader == -1
    three.commit(three.controller.elect_unclean_leaders())
    partition = three.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), 1)


def unclean_allowed(topic):
    setting = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[setting])
    return IncrementalAlterConfigsRequest(resources=[resource])

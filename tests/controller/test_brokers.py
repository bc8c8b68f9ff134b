"""Brokers coming, living and going."""

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.broker_registration import Feature, Listener
from klamm.protocol.messages.metadata_records import PartitionChangeRecord
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest


def second_life(broker_id):
    return bytes([broker_id]) * 15 + b"\2"


def test_a_broker_starts_fenced_and_is_let_in_once_it_has_read_of_itself(cluster):
    one = cluster()
    answer = one.register(1)
    assert answer.broker_epoch == one.next_offset - 1
    assert one.image.cluster.brokers[1].fenced
    early = one.heartbeat(1, current_metadata_offset=answer.broker_epoch - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    waiting = one.heartbeat(1, want_fence=True)
    assert (waiting.is_caught_up, waiting.is_fenced) == (True, True)
    assert not one.heartbeat(1).is_fenced
    assert one.image.cluster.is_active(1)
    before = one.next_offset
    assert not one.heartbeat(1).is_fenced
    assert one.next_offset == before, "a quiet heartbeat writes nothing"


def test_the_broker_is_registered_as_it_described_itself(cluster):
    one = cluster()
    one.start(1, rack="east")
    broker = one.image.cluster.brokers[1]
    assert broker.rack == "east"
    assert broker.endpoints["PLAINTEXT"] == ("127.0.0.1", 9001, 0)
    assert broker.features["metadata.version"] == (7, 30)
    assert broker.directories == (b"\1" * 16,)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [b"a" * 16, b"a" * 16]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [b"\2" * 16]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION),
        (
            {"features": [Feature(name="metadata.version", min_supported_version=1, max_supported_version=29)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
        (
            {"features": [Feature(name="metadata.version", min_supported_version=1, max_supported_version=30)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_registrations_refused(cluster, fields, code):
    one = cluster()
    one.start(2)
    answer = one.register(1, **fields)
    assert (answer.error_code, answer.broker_epoch) == (code, -1)
    assert 1 not in one.image.cluster.brokers


def test_two_processes_cannot_be_one_broker(cluster):
    one = cluster(1)
    assert one.register(1, incarnation_id=second_life(1)).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    one.now_ms += 9_000
    assert one.register(1, incarnation_id=second_life(1)).error_code == 0


def test_the_same_process_may_register_again_and_keeps_its_epoch(cluster):
    one = cluster(1)
    epoch = one.epochs[1]
    assert one.register(1, rack="west").broker_epoch == epoch
    assert one.image.cluster.brokers[1].rack == "west"
    assert one.image.cluster.is_active(1)


def test_a_restarted_node_does_not_wait_for_the_session_of_its_former_self(cluster):
    one = cluster(1)
    one.controller.take_over(one.image, one.now_ms)
    assert one.register(1, incarnation_id=second_life(1)).error_code == 0


def test_an_old_epoch_is_told_so(cluster):
    one = cluster(1)
    assert one.heartbeat(1, broker_epoch=one.epochs[1] - 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    one.epochs[5] = one.epochs[1]
    assert one.heartbeat(5).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_silent_broker_is_fenced_and_its_partitions_go_on(cluster):
    three = cluster(3)
    three.create("orders", assignments=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    assert three.controller.next_tick_ms() == three.now_ms + 9_000
    three.silence(2)
    assert three.image.cluster.brokers[2].fenced
    assert [three.partition("orders", i).leader for i in range(3)] == [1, 3, 3]
    assert three.partition("orders", 1).isr == (3, 1)
    assert three.partition("orders", 1).leader_epoch == 1
    assert three.partition("orders", 0).leader_epoch == 0, "an ISR may shrink without a new leader epoch"


def test_nothing_is_fenced_while_all_brokers_send_heartbeats(cluster):
    three = cluster(3)
    before = three.next_offset
    three.silence()
    assert three.next_offset == before


def test_a_new_controller_gives_everybody_a_full_session(cluster):
    three = cluster(3)
    three.now_ms += 60_000
    three.commit(three.controller.take_over(three.image, three.now_ms))
    assert not three.controller.tick(three.now_ms + 8_999).records
    assert three.controller.tick(three.now_ms + 9_000).records


def test_a_controller_that_stood_still_fences_none_for_that_time(cluster):
    three = cluster(3)
    three.now_ms += 60_000
    three.controller.extend_sessions(60_000)
    assert not three.controller.tick(three.now_ms + 8_999).records
    assert three.controller.tick(three.now_ms + 9_000).records


def test_the_last_replica_stays_eligible_and_leads_again_when_it_is_back(cluster):
    one = cluster(1)
    one.create("orders", 1, 1)
    one.silence(1)
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (1,), (1,))
    assert not one.heartbeat(1).is_fenced
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (1, (1,), (), ())
    assert (partition.leader_epoch, partition.leader_recovery_state) == (2, 0)


def test_without_eligible_leader_replicas_the_last_member_stays_in_the_isr(cluster):
    one = cluster(1, finalized_features={"metadata.version": 30})
    one.create("orders", 1, 1)
    one.silence(1)
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.elr) == (-1, (1,), ())
    one.heartbeat(1)
    assert one.partition("orders").leader == 1


def test_a_clean_restart_keeps_the_right_to_lead(cluster):
    one = cluster(1)
    one.create("orders", 1, 1)
    answer = one.heartbeat(1, want_shut_down=True)
    assert not answer.should_shut_down
    assert one.partition("orders").leader == -1
    answer = one.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    one.start(1, incarnation_id=second_life(1), previous_broker_epoch=one.epochs[1])
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 0)


def test_after_a_crash_the_last_leader_is_taken_as_a_last_resort_and_recovers(cluster):
    one = cluster(1)
    one.create("orders", 1, 1)
    one.now_ms += 9_000
    one.register(1, incarnation_id=second_life(1))
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (), (1,))
    one.heartbeat(1)
    partition = one.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 1)


def test_after_a_crash_the_others_lead(cluster):
    three = cluster(3)
    three.create("orders", assignments=[[2, 1, 3]])
    three.now_ms += 9_000
    three.register(2, incarnation_id=second_life(2))
    partition = three.partition("orders")
    assert (partition.leader, partition.isr, partition.elr) == (1, (1, 3), ())


def test_a_controlled_shutdown_moves_leaders_first_and_lets_go_when_the_others_know(cluster):
    three = cluster(3)
    three.create("orders", assignments=[[1, 2, 3]])
    answer = three.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert three.image.cluster.brokers[1].in_controlled_shutdown
    assert (three.partition("orders").leader, three.partition("orders").isr) == (2, (2, 3))
    assert not three.heartbeat(1, want_shut_down=True).should_shut_down, "2 and 3 have not read of it"
    three.heartbeat(2)
    three.heartbeat(3, current_metadata_offset=0)
    assert not three.heartbeat(1, want_shut_down=True).should_shut_down, "3 has not read of it"
    three.heartbeat(3)
    answer = three.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert three.create("later", 1, 3).error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_who_has_begun_to_stop_comes_back_only_as_a_new_process(cluster):
    three = cluster(3)
    three.create("orders", assignments=[[1, 2, 3]])
    three.heartbeat(1, want_shut_down=True)
    three.silence(1)
    assert three.heartbeat(1).is_fenced
    three.start(1, incarnation_id=second_life(1))
    assert three.image.cluster.is_active(1)


def test_a_broker_that_leads_nothing_may_stop_at_once(cluster):
    three = cluster(3)
    answer = three.heartbeat(3, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert three.heartbeat(3, want_shut_down=True).should_shut_down


def test_a_failed_disk_takes_its_replicas_out(cluster):
    two = cluster()
    for broker_id in (1, 2):
        two.start(broker_id, log_dirs=[bytes([broker_id, 1]) * 8, bytes([broker_id, 2]) * 8])
    two.create("orders", assignments=[[1, 2], [1, 2]])
    topic = two.image.topics.by_name["orders"]
    bad, good = bytes([1, 1]) * 8, bytes([1, 2]) * 8
    placed = [
        _placed(topic.id, 0, [bad, bytes([2, 1]) * 8]),
        _placed(topic.id, 1, [good, bytes([2, 1]) * 8]),
    ]
    two.controller.replay(placed, two.next_offset, 1)
    assert not two.heartbeat(1, offline_log_dirs=[bad]).is_fenced
    assert (two.partition("orders", 0).leader, two.partition("orders", 0).isr) == (2, (2,))
    assert (two.partition("orders", 1).leader, two.partition("orders", 1).isr) == (1, (1, 2))
    assert two.image.cluster.brokers[1].directories == (good,)


def _placed(topic_id, index, directories):
    return PartitionChangeRecord(topic_id=topic_id, partition_id=index, directories=directories)


def test_cordoned_disks_are_remembered_and_get_no_new_replicas(cluster):
    one = cluster(1)
    one.heartbeat(1, cordoned_log_dirs=[b"\1" * 16])
    assert one.image.cluster.brokers[1].cordoned_directories == (b"\1" * 16,)
    assert one.create("orders", 1, 1).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    one.heartbeat(1, cordoned_log_dirs=[])
    assert one.create("orders", 1, 1).error_code == 0


def test_an_unregistered_broker_is_forgotten(cluster):
    three = cluster(3)
    three.create("orders", assignments=[[1, 2, 3]])
    answer = three.commit(three.controller.unregister_broker(UnregisterBrokerRequest(broker_id=1)))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert 1 not in three.image.cluster.brokers
    assert (three.partition("orders").leader, three.partition("orders").isr) == (2, (2, 3))
    answer = three.commit(three.controller.unregister_broker(UnregisterBrokerRequest(broker_id=1)))
    assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert answer.error_message


def test_a_dead_process_is_fenced_without_waiting(cluster):
    made = cluster(3)
    made.create("orders", assignments=[[1, 2, 3]])
    assert made.commit(made.controller.fence_dead_broker(1, made.epochs[1])) is True
    assert made.image.cluster.brokers[1].fenced
    assert made.partition("orders").leader == 2
    assert made.commit(made.controller.fence_dead_broker(1, made.epochs[1])) is False, "once is enough"


def test_only_the_process_that_died_is_fenced(cluster):
    made = cluster(2)
    assert made.commit(made.controller.fence_dead_broker(1, made.epochs[1] - 1)) is False
    assert made.commit(made.controller.fence_dead_broker(7, 1)) is False
    assert not made.image.cluster.brokers[1].fenced


def test_who_was_taken_for_dead_comes_back_with_its_next_heartbeat(cluster):
    made = cluster(2)
    made.commit(made.controller.fence_dead_broker(1, made.epochs[1]))
    assert not made.heartbeat(1).is_fenced


def test_after_a_death_the_next_process_need_not_wait(cluster):
    made = cluster(2)
    made.commit(made.controller.fence_dead_broker(1, made.epochs[1]))
    assert made.register(1, incarnation_id=b"n" * 16).error_code == 0


def test_a_process_at_the_same_address_follows_one_whose_connection_ended(cluster):
    made = cluster(2)
    assert ErrorCode(made.register(1, incarnation_id=b"n" * 16).error_code) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    made.controller.on_broker_disconnected(1)
    elsewhere = [Listener(name="PLAINTEXT", host="127.0.0.1", port=9999)]
    refused = made.register(1, incarnation_id=b"n" * 16, listeners=elsewhere)
    assert ErrorCode(refused.error_code) is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "both may be alive"
    assert made.register(1, incarnation_id=b"n" * 16).error_code == 0


def test_a_connection_that_came_back_counts_again(cluster):
    made = cluster(2)
    made.controller.on_broker_disconnected(1)
    made.heartbeat(1)
    assert ErrorCode(made.register(1, incarnation_id=b"n" * 16).error_code) is ErrorCode.DUPLICATE_BROKER_REGISTRATION

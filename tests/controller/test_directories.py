"""Brokers with several disks say where their replicas lie."""

import pytest

from klamm.metadata.image import UNASSIGNED_DIR
from klamm.model.errors import ErrorCode
from klamm.protocol.messages import assign_replicas_to_dirs as ard
from klamm.protocol.messages import controller_registration as cr
from klamm.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

LEFT, RIGHT, GONE = b"left".ljust(16), b"right".ljust(16), b"gone".ljust(16)


@pytest.fixture
def two(cluster):
    made = cluster()
    made.start(1, log_dirs=[LEFT, RIGHT])
    made.start(2)
    made.create("orders", assignments=[[1, 2]])
    return made


def assign(two, directory, index=0, topic_id=None, broker_id=1, epoch=None):
    topic_id = topic_id or two.image.topics.by_name["orders"].id
    topics = [ard.TopicData(topic_id=topic_id, partitions=[ard.PartitionData(partition_index=index)])]
    request = ard.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=two.epochs.get(broker_id, 0) if epoch is None else epoch,
        directories=[ard.DirectoryData(id=directory, topics=topics)],
    )
    answer = two.commit(two.controller.assign_replicas_to_dirs(request))
    return answer.error_code or answer.directories[0].topics[0].partitions[0].error_code


def test_a_replica_is_noted_where_it_lies(two):
    assert two.partition("orders").directories == (UNASSIGNED_DIR, b"\2" * 16)
    assert assign(two, RIGHT) == 0
    partition = two.partition("orders")
    assert (partition.directories, partition.leader, partition.leader_epoch) == ((RIGHT, b"\2" * 16), 1, 0)
    before = two.next_offset
    assert assign(two, RIGHT) == 0
    assert two.next_offset == before


def test_a_replica_on_a_directory_that_is_not_there_stops_leading(two):
    assert assign(two, GONE) == 0
    partition = two.partition("orders")
    assert (partition.leader, partition.isr, partition.directories[0]) == (2, (2,), GONE)


def test_assignments_refused(two):
    two.create("elsewhere", assignments=[[2]])
    elsewhere = two.image.topics.by_name["elsewhere"].id
    assert assign(two, LEFT, topic_id=b"x" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    assert assign(two, LEFT, index=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(two, LEFT, topic_id=elsewhere) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert assign(two, LEFT, epoch=0) == ErrorCode.STALE_BROKER_EPOCH


def test_a_registered_controller_has_a_say_in_feature_levels(two):
    spans = [cr.Feature(name="metadata.version", min_supported_version=7, max_supported_version=30)]
    listeners = [cr.Listener(name="CONTROLLER", host="127.0.0.1", port=9093)]
    request = cr.ControllerRegistrationRequest(controller_id=3, listeners=listeners, features=spans)
    answer = two.commit(two.controller.register_controller(request))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert two.image.cluster.controllers[3].end_points[0].port == 9093
    update = FeatureUpdateKey(feature="eligible.leader.replicas.version", max_version_level=1)
    refused = two.commit(two.controller.update_features(UpdateFeaturesRequest(feature_updates=[update]), 2))
    assert "Controller 3" in refused.error_message

"""A broker with several log directories tells the controller which holds each replica (KIP-858)."""

import time

from harness import NodeThread, Wire, unique

PATIENCE_S = 30.0


def lies_in(node, topic, index):
    """Where a replica really lies."""
    logs = node.services.logs
    return logs.directory_ids[logs.log_dir_of(logs.get(topic, index)).path]


def registered_directory(node, topic, index):
    """Where the metadata says it lies."""
    return node.services.image.topics.partition(topic, index).directory(1)


def wait_until_reported(made, topic, partitions):
    deadline = time.monotonic() + PATIENCE_S
    while any(made.run(registered_directory, topic, i) != made.run(lies_in, topic, i) for i in range(partitions)):
        assert time.monotonic() < deadline, "the metadata never heard where the replicas lie"
        time.sleep(0.01)


def test_the_metadata_hears_where_replicas_lie(tmp_path):
    folders = f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}"
    with NodeThread(tmp_path, folders) as made, Wire(made.port) as wire:
        topic = wire.create_topic(unique(), partitions=6)
        wait_until_reported(made, topic, 6)
        used = {made.run(lies_in, topic, index) for index in range(6)}
        assert len(used) == 2, "the partitions are spread over both directories"
    with NodeThread(tmp_path, folders) as made:
        wait_until_reported(made, topic, 6)
        assert {made.run(lies_in, topic, index) for index in range(6)} == used


def test_a_broker_with_one_directory_has_nothing_to_tell(tmp_path):
    with NodeThread(tmp_path) as made, Wire(made.port) as wire:
        topic = wire.create_topic(unique(), partitions=2)
        assert [made.run(registered_directory, topic, i) for i in range(2)] == [
            made.run(lies_in, topic, i) for i in range(2)
        ]

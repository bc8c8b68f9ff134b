"""A producer that sends on without answers: large batches, three replicas, one of which stands still for a moment.

Older tests sent large frames one at a time and read every answer, or many small ones. Here more large frames are on
their way than a connection may have without an answer: it is paused exactly at the end of one, and must be read again.
"""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import KlammCluster
from klamm.net.channel import IN_FLIGHT_MAX

RECORDS = 2 * IN_FLIGHT_MAX
RECORD_BYTES = 130_000
"""Enough for a frame that is read to its end and no further."""
PATIENCE_S = 120


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(600)
def test_no_connection_is_dropped_under_large_batches(tmp_path):
    body = bytes(RECORD_BYTES)
    refused: list[str] = []

    def on_delivery(error, _message) -> None:
        if error is not None:
            refused.append(str(error))

    with KlammCluster(tmp_path, 3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("large", 1, 3)])["large"].result(60)
        leader_id = admin.list_topics("large", timeout=60).topics["large"].partitions[0].leader
        leader = next(node for node in cluster.nodes if node.node_id == leader_id)
        follower = next(node for node in cluster.nodes if node.node_id != leader_id)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "log_level": 2,
                "queue.buffering.max.kbytes": 2_000_000,
                "delivery.timeout.ms": 300_000,
                "request.timeout.ms": 120_000,
                "socket.send.buffer.bytes": 1_000_000,
                "batch.num.messages": 1,
                "retries": 0,
            }
        )
        producer.produce("large", b"first")
        assert producer.flush(PATIENCE_S) == 0
        [log_file] = leader.data.glob("**/large-0/*.log")
        follower.pause()
        try:
            for number in range(1, RECORDS):
                producer.produce("large", b"%08d" % number + body, on_delivery=on_delivery)
                producer.poll(0)
            wait_for(lambda: log_file.stat().st_size > IN_FLIGHT_MAX * RECORD_BYTES)
        finally:
            follower.resume()
        assert producer.flush(PATIENCE_S) == 0
        assert refused == []
        reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends", "log_level": 2})
        try:
            assert reader.get_watermark_offsets(TopicPartition("large", 0), timeout=60) == (0, RECORDS)
        finally:
            reader.close()
        assert "decided_by=node" not in leader.log()

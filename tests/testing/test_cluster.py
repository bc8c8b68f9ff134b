"""A cluster of a test goes on when one of its nodes is killed, and takes it back."""

from confluent_kafka import Producer

from klamm.testing.cluster import cluster


def send(bootstrap: str, topic: str, partitions: int) -> list[object]:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": 60_000})
    ended: list[object] = []
    for partition in range(partitions):
        producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: ended.append(error))
    assert producer.flush(70) == 0
    return ended


def test_three_nodes_outlive_one():
    with cluster(3) as running:
        assert [node.id for node in running.nodes] == [1, 2, 3]
        topic = running.topic(partitions=3)
        assert send(running.bootstrap, topic, 3) == [None] * 3
        running.nodes[2].kill()
        assert send(running.bootstrap, topic, 3) == [None] * 3
        running.nodes[2].start()
        running.wait(3)
        assert send(running.nodes[2].bootstrap, topic, 3) == [None] * 3

"""Topics and their settings through the clients' admins."""

import pytest

from harness import unique


def test_topics_come_and_go(client):
    name = unique("admin")
    client.create_topic(name, partitions=3, configs={"retention.ms": "1000000"})
    assert name in client.topics()
    assert client.partition_count(name) == 3
    assert client.topic_settings(name)["retention.ms"] == "1000000"
    with pytest.raises(Exception, match=r"(?i)exist"):
        client.create_topic(name)
    client.delete_topic(name)
    assert name not in client.topics()
    with pytest.raises(Exception, match=r"(?i)unknown"):
        client.delete_topic(name)


def test_a_topic_that_cannot_be_is_refused(client):
    with pytest.raises(Exception, match=r"(?i)invalid|illegal|policy|topic"):
        client.create_topic("not a name")
    with pytest.raises(Exception, match=r"(?i)config"):
        client.create_topic(unique("admin"), configs={"retention.ms": "soon"})


def test_partitions_are_added(client):
    name = unique("admin")
    client.create_topic(name)
    client.add_partitions(name, 4)
    assert client.partition_count(name) == 4
    with client.producer() as producer:
        producer.send(name, b"x", partition=3)
        assert producer.flush()[0][:2] == (3, 0)
    with pytest.raises(Exception, match=r"(?i)partition"):
        client.add_partitions(name, 2)


def test_settings_are_changed(client):
    name = unique("admin")
    client.create_topic(name)
    before = client.topic_settings(name)
    assert len(before) > 25
    client.set_topic_settings(name, {"retention.ms": "777", "cleanup.policy": "compact"})
    after = client.topic_settings(name)
    assert (after["retention.ms"], after["cleanup.policy"]) == ("777", "compact")
    assert {key for key in before if before[key] != after[key]} == {"retention.ms", "cleanup.policy"}


def test_records_are_deleted(client):
    name = unique("admin")
    client.create_topic(name)
    with client.producer() as producer:
        for number in range(10):
            producer.send(name, b"%d" % number, partition=0)
        producer.flush()
    client.delete_records(name, 4)
    assert (client.beginning(name), client.end(name)) == (4, 10)
    assert [row.value for row in client.read(name, 6, offset=4)] == [b"%d" % number for number in range(4, 10)]

"""Client libraries of Go and C in tight loops: transactions, cooperative groups, large records, killed nodes."""

from collections import Counter
from pathlib import Path

import pytest

from ecosystem.clients import CONFLUENT, FRANZ, KAFKA_GO, SARAMA, Client, checksum, events, value
from ecosystem.cluster import Cluster, Read, eventually
from ecosystem.judging import (
    assert_kept,
    assert_rising,
    numbers,
    positions,
    seen,
    wait_for_acknowledged,
    wait_for_more_records,
)
from ecosystem.processes import Process

BROKER_SETTINGS = {"message.max.bytes": "10000000", "replica.fetch.max.bytes": "10000000"}
PARTITIONS = 6
ALL = [client.parameter for client in (FRANZ, SARAMA, KAFKA_GO, CONFLUENT)]
TRANSACTIONAL = [client.parameter for client in (FRANZ, SARAMA, CONFLUENT)]


def committed_values(prefix: str, producers: int, count: int, records: int) -> list[str]:
    """What transactional loops leave behind: every fifth transaction was aborted."""
    return [
        f"{prefix}-{producer}/{number}/{index}"
        for producer in range(producers)
        for number in range(count)
        if number % 5 != 4
        for index in range(records)
    ]


def assert_in_order(values: list[Read]) -> None:
    """Within a partition the transactions of one producer stand in the order in which they ended."""
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for record in values:
        producer, number, index = record.text.split("/")
        place = (record.partition, producer)
        assert last.get(place, (-1, -1)) < (int(number), int(index)), record
        last[place] = (int(number), int(index))


@pytest.mark.quick
@pytest.mark.parametrize("client", TRANSACTIONAL)
def test_transactions_without_a_pause(client: Client, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Three producers begin each of 60 transactions over six partitions as soon as the last one ended, every fifth
    is aborted: none fails, read_committed gives the committed records once and in order."""
    cluster.create_topic(topic, PARTITIONS)
    ended = client.run(
        "transactions", tmp_path / "log", bootstrap=cluster.bootstrap, topic=topic, id=topic, count=60, records=12
    )
    assert len([event for event in ended if event["event"] == "ended"]) == 180
    records = cluster.read(topic)
    assert sorted(record.text for record in records) == sorted(committed_values(topic, 3, 60, 12))
    assert_in_order(records)


@pytest.mark.quick
@pytest.mark.parametrize("client", ALL)
@pytest.mark.parametrize(("size", "count"), [(500_000, 240), (4_000_000, 24)], ids=["500 KB", "4 MB"])
def test_large_records(client: Client, cluster: Cluster, topic: str, tmp_path: Path, size: int, count: int) -> None:
    """240 records of 500 KB and 24 of 4 MB with acks=all and batches of many records: each is in the log once and in
    order, and a group reads every byte back."""
    cluster.create_topic(topic, 3, max_message_bytes="10000000")
    where = {"bootstrap": cluster.bootstrap, "topic": topic}
    sent = client.run(
        "produce", tmp_path / "produce.log", **where, count=count, size=size, partitions=3, batch_bytes=8_000_000
    )
    assert sorted(positions(sent[:-1]).values()) == list(range(count))
    records = cluster.read(topic)
    assert numbers(records) == {partition: list(range(partition, count, 3)) for partition in range(3)}
    assert all(record.value == value(int(record.text[:8]), size) for record in records)
    with client.start("member", tmp_path / "member.log", **where, group=topic, balancer="range") as member:
        eventually(lambda: len(set(seen(member))) >= count, f"{count} records were read")
        assert member.stop() == 0, member.tail()
        assert sorted(event["crc"] for event in events(member.text, "record")) == sorted(
            checksum(number, size) for number in range(count)
        )


@pytest.mark.quick
@pytest.mark.parametrize("client", ALL)
def test_a_few_records_for_each_of_many_partitions(
    client: Client, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Two records for each of 900 new partitions, so that some hundred small requests or one of some hundred
    partitions reach a node at once: each record is in its partition, in order and as it was sent; an idempotent
    producer leaves none twice.

    A node once stored other bytes than it had checked when more replies than one turn sends were due to a connection
    (`tests/net/test_borrowed_frames.py`); no test had sent so many requests of one connection at once.
    """
    partitions, size = 900, 40
    cluster.create_topic(topic, partitions)
    where = {"bootstrap": cluster.bootstrap, "topic": topic}
    sent = client.run("produce", tmp_path / "log", **where, count=2 * partitions, size=size, partitions=partitions)
    assert sorted(positions(sent[:-1]).values()) == list(range(2 * partitions))
    records = cluster.read(topic)
    assert_kept(client, records, positions(sent[:-1]))
    kept = {partition: sorted(set(in_order)) for partition, in_order in numbers(records).items()}
    assert kept == {partition: [partition, partition + partitions] for partition in range(partitions)}
    assert all(record.value == value(int(record.text[:8]), size) for record in records)


@pytest.mark.quick
@pytest.mark.parametrize("client", ALL)
def test_group_members_come_and_go(client: Client, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Three members share six partitions while records arrive, one leaves, one is killed, another comes (cooperative
    rebalances where the library has them): every record is read, and in order within each partition."""
    cluster.create_topic(topic, PARTITIONS)
    where = {"bootstrap": cluster.bootstrap, "topic": topic}
    balancer = "cooperative-sticky" if client.has_cooperative_groups else "range"
    group = {**where, "group": topic, "balancer": balancer}
    members: list[Process] = []
    with client.start("produce", tmp_path / "produce.log", **where, pause="4ms") as producer:
        try:
            for name in ("a", "b", "c"):
                members.append(client.start("member", tmp_path / f"{name}.log", **group))
                members[-1].wait_line('"record"', times=50)
            assert members[0].stop() == 0, members[0].tail()
            members[1].kill9()
            members.append(client.start("member", tmp_path / "d.log", **group))
            for member in members[2:]:
                wait_for_more_records(member, 200)
            assert producer.stop() == 0, producer.tail()
            acknowledged = set(positions(events(producer.text, "acknowledged")))
            eventually(
                lambda: acknowledged <= {place for member in members for place in seen(member)},
                "every acknowledged record was read",
                pause_s=0.5,
            )
            for member in members[2:]:
                assert member.stop() == 0, member.tail()
        finally:
            for member in members:
                member.kill9()
    if client.reports_assignments:
        for member in members:
            assert_rising(member)


@pytest.mark.quick
@pytest.mark.parametrize("client", [FRANZ.parameter, CONFLUENT.parameter])
def test_members_with_a_pattern(client: Client, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two members of the consumer protocol subscribe with a pattern that the broker resolves, as soon as the topics
    are made, and one more topic is made while they read: they read every record of the topics that match, and no
    other."""
    count = 60

    def fill(name: str, size: int = 20) -> None:
        cluster.create_topic(name, 3)
        sent = {"topic": name, "count": count, "size": size, "partitions": 3}
        client.run("produce", tmp_path / f"{name}.log", bootstrap=cluster.bootstrap, **sent)

    fill(f"{topic}-other", 40)
    fill(f"{topic}-orders")
    fill(f"{topic}-orders-v2")
    flags = {"bootstrap": cluster.bootstrap, "topic": f"^{topic}-orders.*", "group": topic, "balancer": "server"}
    with (
        client.start("member", tmp_path / "a.log", **flags) as first,
        client.start("member", tmp_path / "b.log", **flags) as second,
    ):

        def is_read(topics: int) -> bool:
            read = Counter(event["crc"] for member in (first, second) for event in events(member.text, "record"))
            return read.keys() <= expected and all(read[crc] >= topics for crc in expected)

        expected = {checksum(number) for number in range(count)}
        eventually(lambda: is_read(2), "the records of both topics were read", pause_s=0.5)
        fill(f"{topic}-orders-v3")
        eventually(lambda: is_read(3), "the records of the third topic were read", pause_s=0.5)
        for member in (first, second):
            assert member.stop() == 0, member.tail()


@pytest.mark.parametrize("client", ALL)
def test_nodes_are_killed(client: Client, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Every node is killed with SIGKILL and restarted once while a producer writes and a group member reads: all
    acknowledged records are in the log and were read; an idempotent producer leaves none twice or out of order."""
    cluster.create_topic(topic, PARTITIONS)
    where = {"bootstrap": cluster.bootstrap, "topic": topic}
    with (
        client.start("produce", tmp_path / "produce.log", **where, pause="2ms") as producer,
        client.start("member", tmp_path / "member.log", **where, group=topic) as member,
    ):
        for node in (1, 2, 3):
            wait_for_acknowledged(producer, 300)
            cluster.restart(node)
        wait_for_acknowledged(producer, 300)
        assert producer.stop() == 0, producer.tail()
        acknowledged = positions(events(producer.text, "acknowledged"))
        eventually(lambda: set(acknowledged) <= set(seen(member)), "every acknowledged record was read", pause_s=0.5)
        assert member.stop() == 0, member.tail()
    assert_kept(client, cluster.read(topic), acknowledged)


@pytest.mark.parametrize("client", TRANSACTIONAL)
def test_read_process_write(client: Client, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two instances copy 3,000 records into another topic in transactions that carry the offsets; one is killed with
    SIGKILL and replaced, then a node is: read_committed has each record once and in order."""
    cluster.create_topic(topic, PARTITIONS)
    copy = cluster.create_topic(f"{topic}-copy", PARTITIONS)
    where = {"bootstrap": cluster.bootstrap, "topic": topic}
    client.run("produce", tmp_path / "produce.log", **where, count=3000)
    flags = {**where, "to": copy, "group": topic, "records": 10}
    with (
        client.start("etl", tmp_path / "a.log", **flags, id=f"{topic}-a") as first,
        client.start("etl", tmp_path / "b.log", **flags, id=f"{topic}-b") as second,
    ):
        cluster.wait_for_records(copy, 300)
        first.kill9()
        with client.start("etl", tmp_path / "c.log", **flags, id=f"{topic}-a") as third:
            cluster.wait_for_progress(copy, 3000)
            cluster.restart(cluster.leader(copy))
            cluster.wait_for_records(copy, 3000, 240.0)
            for program in (second, third):
                assert program.stop() == 0, program.tail()
    assert numbers(cluster.read(copy)) == {
        partition: list(range(partition, 3000, PARTITIONS)) for partition in range(PARTITIONS)
    }

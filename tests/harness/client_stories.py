"""Scenarios of Klamm's client for any broker: `tests/client` runs them on Klamm, `compat` on Apache Kafka too.

A story is a function of bootstrap servers; it makes topics and groups of its own.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import klamm
from harness.wire import unique
from klamm.client import Admin, AsyncConsumer, AsyncProducer, Consumer, NewTopic, Producer, TopicPartition
from klamm.client.admin.types import AlterOp, ConfigResource, ConfigSource, ElectionType, EndpointType, OffsetSpec
from klamm.client.errors import (
    ErrorCode,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidTransactionStateError,
    KafkaError,
    ProducerFencedError,
    RecordTooLargeError,
    SomeFailed,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

PATIENCE_S = 60.0
PRODUCE_KEY = 0
FENCED_TIMEOUT_MS = 5000
Story = Callable[[str], None]


def topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    name = unique("client")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(
            name, partitions, 1, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
    return name


def reader(bootstrap: str, **settings) -> Consumer:
    return Consumer(bootstrap_servers=bootstrap, **{"auto_offset_reset": "earliest", **settings})


def read(consumer: Consumer, count: int) -> list:
    records: list = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        records += consumer.poll(1.0)
    return records


def read_all(bootstrap: str, name: str, count: int, **settings) -> list:
    with reader(bootstrap, **settings) as consumer:
        consumer.assign([(name, partition) for partition in consumer.partitions_for(name)])
        return read(consumer, count)


def until(condition: Callable[[], object], what: str) -> object:
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, what
    return result


def records_come_back_as_they_went(bootstrap: str) -> None:
    name = topic(bootstrap, 3)
    sent = [
        (b"key", b"value", [("a", b"1"), ("a", b"2"), ("none", None)], 1_700_000_000_000),
        (None, b"no key", (), 1_700_000_000_001),
        (b"tombstone", None, (), 1_700_000_000_002),
        (b"", b"", (), 1_700_000_000_003),
    ]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
            promised = [
                producer.send(name, value, key, partition=1, headers=headers, timestamp=at)
                for key, value, headers, at in sent
            ]
        assert [delivery.metadata.partition for delivery in promised] == [1] * 4
    got = read_all(bootstrap, name, 20)
    assert [record.offset for record in got] == list(range(20))
    for number, record in enumerate(got):
        key, value, headers, at = sent[number % 4]
        assert (record.key, record.value, record.headers, record.timestamp) == (key, value, tuple(headers), at)
        assert (record.topic, record.partition) == (name, 1)


def every_acks_delivers(bootstrap: str) -> None:
    name = topic(bootstrap)
    for acks in (0, 1, "all"):
        with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
            promised = [producer.send(name, b"%d" % number) for number in range(10)]
        offsets = [delivery.metadata.offset for delivery in promised]
        assert all(offset == -1 for offset in offsets) if acks == 0 else offsets == sorted(offsets)
    assert len(read_all(bootstrap, name, 30)) == 30


def a_key_has_one_partition(bootstrap: str) -> None:
    name = topic(bootstrap, 7)
    with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        places = {}
        for number in range(50):
            for _ in range(2):
                where = producer.send(name, b"v", b"key-%d" % number).result(PATIENCE_S).partition
                assert places.setdefault(number, where) == where
    assert len(set(places.values())) > 1


def transactions_are_seen_whole_or_not_at_all(bootstrap: str) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        with producer.transaction():
            for number in range(10):
                producer.send(name, b"committed", partition=number % 2)
            producer.send_offsets_to_transaction({TopicPartition(name, 0): 5}, group)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            _send_and_fail(producer, name, group)
        with producer.transaction():
            pass
        with producer.transaction():
            producer.send(name, b"committed", partition=0)
    committed = read_all(bootstrap, name, 11, isolation_level="read_committed")
    assert {record.value for record in committed} == {b"committed"}
    assert {record.value for record in read_all(bootstrap, name, 12)} == {b"committed", b"aborted"}
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group, require_stable=True)[TopicPartition(name, 0)].offset == 5


def _send_and_fail(producer: Producer, name: str, group: str) -> None:
    producer.send(name, b"aborted", partition=0).result(PATIENCE_S)
    producer.send_offsets_to_transaction({TopicPartition(name, 0): 99}, group)
    raise ZeroDivisionError


@contextmanager
def deposed(bootstrap: str, name: str) -> Iterator[tuple[Producer, Producer]]:
    """A producer in the middle of a transaction, and one that came after it with its id."""
    transactional_id = unique("tx")
    with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as old:
        old.init_transactions()
        old.begin_transaction()
        old.send(name, b"left open").result(PATIENCE_S)
        with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as new:
            new.init_transactions()
            yield old, new


def an_older_producer_is_fenced(bootstrap: str) -> None:
    name = topic(bootstrap)
    with deposed(bootstrap, name) as (old, new):
        with pytest.raises(ProducerFencedError):
            old.commit_transaction()
        with pytest.raises(KafkaError):
            old.begin_transaction()
        with new.transaction():
            new.send(name, b"new")
    assert [record.value for record in read_all(bootstrap, name, 1, isolation_level="read_committed")] == [b"new"]


def transactions_have_their_order(bootstrap: str) -> None:
    name = topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer:
        with pytest.raises(InvalidTransactionStateError):
            producer.begin_transaction()
        producer.init_transactions()
        producer.partitions_for(name)
        with pytest.raises(InvalidTransactionStateError):
            producer.commit_transaction()
        with pytest.raises(InvalidTransactionStateError):
            producer.send(name, b"outside")


def a_group_goes_on_where_it_stopped(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(100):
            producer.send(name, b"%d" % number, partition=number % 2)
    seen = []
    with reader(bootstrap, group_id=group, max_poll_records=7, **settings) as consumer:
        consumer.subscribe([name])
        seen += read(consumer, 40)
    with reader(bootstrap, group_id=group, enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([name])
        rest = read(consumer, 100 - len(seen))
        seen += rest
        consumer.commit()
        committed = consumer.committed([(name, 0), (name, 1)])
        assert [position.offset for position in committed.values() if position] == [50, 50]
    assert sorted(int(record.value) for record in seen) == list(range(100))


def members_share_partitions(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap, 4), unique("group")
    calls: list[tuple[str, int]] = []
    with (
        reader(bootstrap, group_id=group, **settings) as first,
        reader(bootstrap, group_id=group, **settings) as second,
    ):
        first.subscribe(
            [name],
            on_assign=lambda places: calls.append(("assign", len(places))),
            on_revoke=lambda places: calls.append(("revoke", len(places))),
        )
        until(lambda: first.poll(0.2) or len(first.assignment()) == 4, "one member has all")
        second.subscribe([name])

        def both() -> bool:
            first.poll(0.1)
            second.poll(0.1)
            return len(first.assignment()) == len(second.assignment()) == 2

        until(both, "two members have two each")
        assert not first.assignment() & second.assignment(), (first.assignment(), second.assignment(), calls)
        second.close()
        until(lambda: first.poll(0.2) or len(first.assignment()) == 4, "the one that stays has all again")
    assert calls[0] == ("assign", 4)
    assert ("revoke", 4) in calls or ("revoke", 2) in calls


def a_static_member_returns_to_its_partitions(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    options = {"group_id": group, "group_instance_id": "one", **settings}
    with reader(bootstrap, **options) as consumer:
        consumer.subscribe([name])
        until(lambda: consumer.poll(0.2) or consumer.assignment(), "the member has partitions")
        before = consumer.group_metadata()
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert [member.instance_id for member in admin.describe_groups([group])[group].members] == ["one"]
    with reader(bootstrap, **options) as consumer:
        consumer.subscribe([name])
        until(lambda: consumer.poll(0.2) or consumer.assignment(), "the member has partitions again")
        assert consumer.group_metadata().group_instance_id == before.group_instance_id == "one"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.remove_members(group, instance_ids=["one"])


def positions_can_be_chosen(bootstrap: str) -> None:
    name = topic(bootstrap, 2)
    base = 1_700_000_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(50):
            producer.send(name, b"%d" % number, partition=0, timestamp=base + number)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    with reader(bootstrap) as consumer:
        consumer.assign([first, second])
        consumer.seek(first, 20)
        assert read(consumer, 30)[0].offset == 20
        assert consumer.position(first) == 50
        assert consumer.lag(first) == 0
        consumer.seek_to_beginning(first)
        assert read(consumer, 50)[0].offset == 0
        consumer.seek_to_end()
        assert consumer.position(first) == 50
        offsets = consumer.offsets_for_times({first: base + 10, second: base})
        assert offsets[first] is not None
        assert (offsets[first].offset, offsets[first].timestamp) == (10, base + 10)
        assert offsets[second] is None
        assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert consumer.end_offsets([first, second]) == {first: 50, second: 0}
        consumer.pause(first)
        consumer.seek(first, 0)
        assert consumer.paused() == {first}
        assert consumer.poll(0.3) == []
        consumer.resume(first)
        assert read(consumer, 50)[0].offset == 0


def an_iteration_counts_what_it_handed_out(bootstrap: str) -> None:
    name, group = topic(bootstrap), unique("group")
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(30):
            producer.send(name, b"%d" % number)
    with reader(bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([name])
        for record in consumer:
            if record.offset == 9:
                break
        consumer.commit()
        committed = consumer.committed([(name, 0)])[TopicPartition(name, 0)]
        assert committed is not None
        assert committed.offset == 10
        assert consumer.poll(PATIENCE_S)[0].offset == 10


def asyncio_works_the_same(bootstrap: str) -> None:
    name = topic(bootstrap, 3)

    async def main() -> list[int]:
        async with AsyncProducer(bootstrap_servers=bootstrap, value_serializer="json") as producer:
            promised = [await producer.send(name, {"number": number}) for number in range(100)]
            landed = [await delivery for delivery in promised]
            assert len({(metadata.partition, metadata.offset) for metadata in landed}) == 100
        seen = []
        settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": unique("group")}
        async with AsyncConsumer(settings, value_deserializer="json") as consumer:
            consumer.subscribe(re.compile(re.escape(name) + "$"))
            async for record in consumer:
                seen.append(record.value["number"])
                if len(seen) == 100:
                    break
        return seen

    assert sorted(asyncio.run(main())) == list(range(100))


def columns_go_in_and_out(bootstrap: str) -> None:
    name = topic(bootstrap, 3)
    count = 5000
    table = pa.table(
        {
            "id": pa.array([b"%d" % number for number in range(count)]),
            "body": pa.array(["v" * (number % 300) for number in range(count)]),
        }
    )
    for settings in ({}, {"compression_type": "zstd"}):
        with Producer(bootstrap_servers=bootstrap, **settings) as producer:
            promised = producer.send_arrow(name, table, key="id", value="body")
            producer.flush()
            assert all(delivery.metadata.offset >= 0 for delivery in promised)
    with Producer(bootstrap_servers=bootstrap) as producer:
        placed = {number: producer.send(name, b"", b"%d" % number) for number in range(20)}
    whole = klamm.read_topic(name, bootstrap=bootstrap, timeout_s=PATIENCE_S)
    assert whole.num_rows == 2 * count + 20
    assert whole.schema.names[:6] == ["key", "value", "topic", "partition", "offset", "timestamp"]
    rows = whole.to_pylist()
    for row in rows:
        number = int(row["key"])
        if row["value"]:
            assert row["value"] == b"v" * (number % 300)
        if number in placed:
            assert row["partition"] == placed[number].metadata.partition
    for partition in range(3):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    with reader(bootstrap) as consumer:
        consumer.assign([(name, partition) for partition in range(3)])
        polled = 0
        while polled < whole.num_rows:
            batch = consumer.poll_arrow(PATIENCE_S)
            assert batch.num_rows
            polled += batch.num_rows
        assert polled == whole.num_rows


def too_much_is_refused_or_split(bootstrap: str) -> None:
    name = topic(bootstrap, 1, max_message_bytes="10000")
    with Producer(bootstrap_servers=bootstrap, batch_size=100_000, linger_ms=50) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send(name, b"x" * 20_000).result(PATIENCE_S)
        with pytest.raises(RecordTooLargeError):
            producer.send(name, b"x" * 2_000_000)
        promised = [producer.send(name, b"%04d" % number + b"x" * 1000) for number in range(60)]
        assert [delivery.result(PATIENCE_S).offset for delivery in promised] == list(range(60))
    assert [int(record.value[:4]) for record in read_all(bootstrap, name, 60)] == list(range(60))


def an_admin_manages_topics(bootstrap: str) -> None:
    one, two = unique("one"), unique("two")
    with Admin(bootstrap_servers=bootstrap) as admin:
        made = admin.create_topics([NewTopic(one, 2, 1), NewTopic(two, 1, 1, {"retention.ms": "60000"})])
        assert (made[one].num_partitions, made[two].configs["retention.ms"]) == (2, "60000")
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topic(one)
        third = unique("three")
        with pytest.raises(SomeFailed) as failed:
            admin.create_topics([NewTopic(one, 1, 1), NewTopic(third, 1, 1)])
        assert (set(failed.value.failures), set(failed.value.results)) == ({one}, {third})
        created = {one, two, third}
        until(lambda: created <= {listed.name for listed in admin.list_topics()}, "the topics are listed")
        described = admin.describe_topics([one])[one]
        by_metadata = admin.describe_topics_by_metadata([one])[one]
        assert [partition.replicas for partition in by_metadata.partitions] == [
            partition.replicas for partition in described.partitions
        ]
        assert [partition.partition for partition in described.partitions] == [0, 1]
        assert described.partitions[0].leader in described.partitions[0].replicas
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topics([unique("nowhere")])
        admin.create_partitions({one: 4})
        until(lambda: len(admin.partitions_of(one)) == 4, "the topic has four partitions")
        resource = ConfigResource.topic(two)
        admin.alter_configs({resource: {"retention.ms": 1234, "cleanup.policy": (AlterOp.APPEND, "compact")}})

        def changed() -> bool:
            entries = admin.describe_configs([resource])[resource]
            return entries["retention.ms"].value == "1234" and "compact" in str(entries["cleanup.policy"].value)

        until(changed, "the settings have changed")
        admin.alter_configs({resource: {"retention.ms": None}})
        until(
            lambda: admin.describe_configs([resource])[resource]["retention.ms"].source is ConfigSource.DEFAULT_CONFIG,
            "the setting is the default again",
        )
        with Producer(bootstrap_servers=bootstrap) as producer:
            for _ in range(10):
                producer.send(two, b"x", b"key")
        where = TopicPartition(two, 0)
        assert admin.list_offsets({where: OffsetSpec.LATEST})[where].offset == 10
        missing = TopicPartition(where.topic, where.partition + 100)
        available = admin.list_available_offsets({where: OffsetSpec.LATEST, missing: OffsetSpec.LATEST})
        assert {partition: end.offset for partition, end in available.items()} == {where: 10}
        assert admin.delete_records({where: 4}) == {where: 4}
        assert admin.list_offsets({where: OffsetSpec.EARLIEST})[where].offset == 4
        sizes = admin.describe_log_dirs(topics=[two])
        assert any(where in directory.replicas for dirs in sizes.values() for directory in dirs)
        assert admin.elect_leaders([where], ElectionType.PREFERRED) == {where: False}
        admin.delete_topics([one, two, third])
        until(lambda: not {one, two} & {topic.name for topic in admin.list_topics()}, "the topics are gone")


def an_admin_manages_groups(bootstrap: str) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    where = TopicPartition(name, 0)
    with Admin(bootstrap_servers=bootstrap) as admin:
        with pytest.raises(GroupNotFoundError):
            admin.describe_groups([group])
        with reader(bootstrap, group_id=group) as consumer:
            consumer.subscribe([name])
            until(lambda: consumer.poll(0.2) or consumer.assignment(), "the member has partitions")
            consumer.commit({where: 0})
            described = admin.describe_groups([group])[group]
            assert described.state == "Stable"
            assert described.members[0].assignment == (where, TopicPartition(name, 1))
            assert group in {listed.group_id for listed in admin.list_groups()}
            with pytest.raises(GroupNotEmptyError):
                admin.alter_group_offsets(group, {where: 7})
            with pytest.raises(GroupNotEmptyError):
                admin.delete_groups([group])
        until(lambda: admin.describe_groups([group])[group].state == "Empty", "the group is empty")
        admin.alter_group_offsets(group, {where: 7})
        assert admin.list_group_offsets(group)[where].offset == 7
        admin.delete_group_offsets(group, [where])
        assert where not in admin.list_group_offsets(group)
        admin.delete_groups([group])
        with pytest.raises(GroupNotFoundError):
            admin.describe_groups([group])


def an_admin_sees_the_cluster(bootstrap: str) -> None:
    name, transactional_id = topic(bootstrap), unique("tx")
    where = TopicPartition(name, 0)
    with Admin(bootstrap_servers=bootstrap) as admin:
        cluster = admin.describe_cluster()
        assert cluster.cluster_id
        assert cluster.brokers
        quorum = admin.describe_quorum()
        assert quorum.leader_id in {voter.replica_id for voter in quorum.voters}
        assert admin.describe_features().finalized["metadata.version"] > 0
        for broker_id in (None, cluster.brokers[0].id):
            lowest, highest = admin.describe_api_versions(broker_id)[PRODUCE_KEY]
            assert 0 <= lowest < highest
        with pytest.raises(KafkaError) as refused:
            admin.describe_cluster(endpoint_type=EndpointType.CONTROLLER)
        assert refused.value.code is ErrorCode.MISMATCHED_ENDPOINT_TYPE
        broker = ConfigResource.broker(cluster.brokers[0].id)
        assert "log.retention.hours" in admin.describe_configs([broker])[broker]
        with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(name, b"open").result(PATIENCE_S)
            assert transactional_id in {transaction.transactional_id for transaction in admin.list_transactions()}
            described = admin.describe_transactions([transactional_id])[transactional_id]
            assert (described.state, described.partitions) == ("Ongoing", (where,))
            (state,) = admin.describe_producers([where])[where]
            assert state.producer_id == described.producer_id
            assert state.transaction_start_offset == 0
            leader = admin.describe_topics([name])[name].partitions[0].leader
            assert admin.describe_producers([where], broker=leader) == {where: [state]}
            admin.fence_producers([transactional_id], transaction_timeout_ms=FENCED_TIMEOUT_MS)
            assert admin.describe_transactions([transactional_id])[transactional_id].timeout_ms == FENCED_TIMEOUT_MS
            with pytest.raises(ProducerFencedError):
                producer.commit_transaction()


CLASSIC: dict[str, Story] = {
    f"members_share_partitions_{strategy}": lambda bootstrap, strategy=strategy: members_share_partitions(
        bootstrap,
        partition_assignment_strategy=strategy,
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )
    for strategy in ("range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky")
}

STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        records_come_back_as_they_went,
        every_acks_delivers,
        a_key_has_one_partition,
        transactions_are_seen_whole_or_not_at_all,
        an_older_producer_is_fenced,
        transactions_have_their_order,
        a_group_goes_on_where_it_stopped,
        positions_can_be_chosen,
        an_iteration_counts_what_it_handed_out,
        asyncio_works_the_same,
        columns_go_in_and_out,
        too_much_is_refused_or_split,
        a_static_member_returns_to_its_partitions,
        an_admin_manages_topics,
        an_admin_manages_groups,
        an_admin_sees_the_cluster,
    )
} | {
    **CLASSIC,
    "members_share_partitions_consumer": lambda bootstrap: members_share_partitions(
        bootstrap, group_protocol="consumer"
    ),
    "a_group_goes_on_where_it_stopped_consumer": lambda bootstrap: a_group_goes_on_where_it_stopped(
        bootstrap, group_protocol="consumer"
    ),
    "a_static_member_returns_to_its_partitions_consumer": lambda bootstrap: a_static_member_returns_to_its_partitions(
        bootstrap, group_protocol="consumer"
    ),
}

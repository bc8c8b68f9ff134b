"""What Klamm's client must do where several have a say: groups, fences, transactions left open, offsets that are gone.

Stories as in `client_stories`: functions of bootstrap servers.
"""

import itertools
import re
import time

import pytest

from harness.client_stories import PATIENCE_S, Story, deposed, read, read_all, reader, topic, until
from harness.wire import unique
from klamm.client import Admin, Consumer, Producer, TopicPartition
from klamm.client.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    InvalidTransactionStateError,
    KafkaError,
    NoOffsetError,
    OffsetOutOfRangeError,
    ProducerFencedError,
)
from klamm.client.producer.core.partitioners import by_crc32, by_murmur2

QUICK = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 100}
CLASSIC, MODERN = QUICK, {"group_protocol": "consumer"}


def write(bootstrap: str, name: str, count: int, **settings) -> None:
    with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        for number in range(count):
            producer.send(name, b"%d" % number, partition=0)


def holds(consumer: Consumer, count: int) -> bool:
    """Poll once; whether so many partitions are held then."""
    consumer.poll(0.1)
    return len(consumer.assignment()) == count


# Producers


def partitioners_choose(bootstrap: str) -> None:
    name, count, keys = topic(bootstrap, 4), 4, [b"key-%d" % number for number in range(40)]

    def places(given: list[bytes | None], **settings) -> list[int]:
        with Producer(bootstrap_servers=bootstrap, **settings) as producer:
            promised = [producer.send(name, b"v" * 100, key) for key in given]
        return [delivery.metadata.partition for delivery in promised]

    murmur2 = [by_murmur2(key, count) for key in keys]
    assert places([*keys]) == murmur2
    assert places([*keys], partitioner="murmur2_random") == murmur2
    assert places([*keys], partitioner="consistent_random") == [by_crc32(key, count) for key in keys]
    assert places([*keys], partitioner=lambda _topic, key, n: len(key) % n) == [len(key) % count for key in keys]
    dealt = places([None] * 40, partitioner="round_robin")
    assert [dealt.count(partition) for partition in range(count)] == [10] * 4
    stuck = places([None] * 400, batch_size=2000)
    moves = sum(one != other for one, other in itertools.pairwise(stuck))
    assert moves < 100, "a batch's worth stays together"
    assert len(read_all(bootstrap, name, 600)) == 600


def a_fenced_producer_writes_nothing(bootstrap: str) -> None:
    """The broker of the partition refuses the old epoch, not only the coordinator."""
    name = topic(bootstrap)
    with deposed(bootstrap, name) as (old, new):
        with new.transaction():
            new.send(name, b"new")
        with pytest.raises(ProducerFencedError):
            old.send(name, b"zombie").result(PATIENCE_S)
        with pytest.raises(KafkaError):
            old.commit_transaction()
    assert {record.value for record in read_all(bootstrap, name, 2)} == {b"left open", b"new"}
    assert [record.value for record in read_all(bootstrap, name, 1, isolation_level="read_committed")] == [b"new"]


def a_transaction_that_takes_too_long_is_aborted(bootstrap: str) -> None:
    name, transactional_id = topic(bootstrap), unique("tx")
    options = {"bootstrap_servers": bootstrap, "transactional_id": transactional_id, "transaction_timeout_ms": 500}
    with Producer(**options) as producer, Admin(bootstrap_servers=bootstrap) as admin:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"late").result(PATIENCE_S)

        def state() -> str:
            return admin.describe_transactions([transactional_id])[transactional_id].state

        until(lambda: state() == "CompleteAbort", "the coordinator gives up")
        with pytest.raises(InvalidTransactionStateError):
            producer.commit_transaction()
        with pytest.raises(KafkaError):
            producer.begin_transaction()
    with Producer(**options) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(name, b"next")
    assert [record.value for record in read_all(bootstrap, name, 1, isolation_level="read_committed")] == [b"next"]


def readers_of_committed_records_wait(bootstrap: str) -> None:
    name = topic(bootstrap)
    where = TopicPartition(name, 0)
    write(bootstrap, name, 3)
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"open").result(PATIENCE_S)
        write(bootstrap, name, 2)
        with reader(bootstrap, isolation_level="read_committed") as careful, reader(bootstrap) as careless:
            for consumer in (careful, careless):
                consumer.assign([where])
            assert len(read(careless, 6)) == 6
            assert len(read(careful, 3)) == 3
            assert (careful.end_offsets([where])[where], careless.end_offsets([where])[where]) == (3, 6)
            assert careful.poll(0.2) == []
            producer.commit_transaction()
            assert [record.value for record in read(careful, 3)] == [b"open", b"0", b"1"]


def offsets_go_along_with_a_transaction(bootstrap: str, **settings) -> None:
    """Read, change, write: every input counts once, although every second attempt is aborted."""
    source, sink, group = topic(bootstrap), topic(bootstrap), unique("group")
    where = TopicPartition(source, 0)
    write(bootstrap, source, 20)
    attempts = 0
    with Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer:
        producer.init_transactions()
        done = 0
        while done < 20:
            options = {"group_id": group, "enable_auto_commit": False, "isolation_level": "read_committed"}
            with reader(bootstrap, max_poll_records=10, **options, **settings) as consumer:
                consumer.subscribe([source])
                records = until(lambda consumer=consumer: consumer.poll(0.2), "there are records")
                assert isinstance(records, list)
                attempts += 1
                producer.begin_transaction()
                for record in records:
                    producer.send(sink, record.value)
                producer.send_offsets_to_transaction({where: records[-1].offset + 1}, consumer.group_metadata())
                if attempts % 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    done = records[-1].offset + 1
    written = read_all(bootstrap, sink, 20, isolation_level="read_committed")
    assert [int(record.value) for record in written] == list(range(20))


# Members


def a_cooperative_member_keeps_what_stays(bootstrap: str, **settings) -> None:
    """Only what another gets is taken away, and reading goes on meanwhile."""
    name, group = topic(bootstrap, 4), unique("group")
    revoked: list[TopicPartition] = []
    with (
        reader(bootstrap, group_id=group, **settings) as first,
        reader(bootstrap, group_id=group, **settings) as second,
    ):
        first.subscribe([name], on_revoke=revoked.extend)
        until(lambda: holds(first, 4), "one member has all")
        second.subscribe([name])
        until(lambda: holds(first, 2) & holds(second, 2), "two members have two each")
        assert sorted(revoked) == sorted(second.assignment())
        revoked.clear()
        second.close()
        until(lambda: holds(first, 4), "the one that stays has all again")
        assert revoked == []


def a_member_may_commit_and_leave_while_others_are_waited_for(bootstrap: str) -> None:
    """A join is answered when all have come; what else there is to say to the coordinator does not queue behind it."""
    name, group = topic(bootstrap, 2), unique("group")
    options = {
        "group_id": group,
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": 1000 * int(2 * PATIENCE_S),  # no member is removed during the story
        "heartbeat_interval_ms": 100,
        "default_api_timeout_ms": 10_000,
    }
    write(bootstrap, name, 5)
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        reader(bootstrap, **options) as idle,
        reader(bootstrap, **options) as busy,
    ):
        busy.subscribe([name])
        assert len(read(busy, 5)) == 5
        idle.subscribe([name])  # joins, and is not polled again: its next join is waited for
        until(lambda: holds(busy, 1) & holds(idle, 1), "both have one")
        until(lambda: admin.describe_groups([group])[group].state == "Stable", "the group has settled")
        busy.subscribe([name, topic(bootstrap)])
        busy.poll(0.1)
        until(lambda: admin.describe_groups([group])[group].state == "PreparingRebalance", "the others are waited for")
        held = next(iter(busy.assignment()))
        busy.commit({held: 3})
        assert admin.list_group_offsets(group)[held].offset == 3
        name_of_busy = busy.group_metadata().member_id
        busy.close()
        left = admin.describe_groups([group])[group].members
        assert name_of_busy not in {member.member_id for member in left}
        until(lambda: holds(idle, 2), "the other has all")


def a_static_member_is_fenced_by_its_twin(bootstrap: str) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    options = {"group_id": group, "group_instance_id": "twin", "enable_auto_commit": False, **QUICK}
    write(bootstrap, name, 5)
    with reader(bootstrap, **options) as first, reader(bootstrap, **options) as second:
        first.subscribe([name])
        assert len(read(first, 5)) == 5
        second.subscribe([name])
        until(lambda: holds(second, 2), "the twin has its place")
        with pytest.raises(FencedInstanceIdError):
            first.commit()
        with pytest.raises(FencedInstanceIdError):
            until(lambda: holds(first, -1), "the first is told")
        second.commit({TopicPartition(name, 0): 1})


def a_static_twin_waits_its_turn(bootstrap: str) -> None:
    """In the new protocol the one that is there stays; the other gets its place when it leaves."""
    name, group = topic(bootstrap, 2), unique("group")
    options = {"group_id": group, "group_instance_id": "twin", **MODERN}
    with reader(bootstrap, **options) as first, reader(bootstrap, **options) as second:
        first.subscribe([name])
        until(lambda: holds(first, 2), "the first has all")
        second.subscribe([name])
        assert second.poll(0.5) == []
        assert not second.assignment()
        assert holds(first, 2)
        first.close()
        until(lambda: holds(second, 2), "the twin has its place")


def a_member_that_was_put_out_commits_nothing(bootstrap: str) -> None:
    """Before and after its heartbeat fails, alone or inside a transaction: another member owns its offsets now."""
    name, group = topic(bootstrap), unique("group")
    where = TopicPartition(name, 0)
    write(bootstrap, name, 5)
    lost: list[TopicPartition] = []
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        reader(bootstrap, group_id=group, enable_auto_commit=False, **QUICK) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=unique("tx")) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([name], on_lost=lost.extend)
        assert len(read(consumer, 5)) == 5
        before = consumer.group_metadata()
        admin.remove_members(group)
        until(lambda: not admin.describe_groups([group])[group].members, "it is out")
        until(lambda: _is_removed(consumer), "a heartbeat reported that it is removed")
        with pytest.raises(CommitFailedError):
            consumer.commit()
        for member in (before, consumer.group_metadata()):
            producer.begin_transaction()
            with pytest.raises(CommitFailedError):
                producer.send_offsets_to_transaction({where: 5}, member)
            producer.abort_transaction()
        assert where not in admin.list_group_offsets(group)
        until(lambda: holds(consumer, 1) and lost, "it loses what it had, and joins again")
        assert lost == [where]
        consumer.commit({where: 5})
        assert admin.list_group_offsets(group)[where].offset == 5


def _is_removed(consumer: Consumer) -> bool:
    return consumer._inner._group._lost


def a_member_that_does_not_poll_is_out(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap), unique("group")
    options = {"group_id": group, "enable_auto_commit": False, **settings}
    lost: list[TopicPartition] = []
    with (
        reader(bootstrap, max_poll_interval_ms=1000, **options) as busy,
        reader(bootstrap, **options) as other,
    ):
        busy.subscribe([name], on_lost=lost.extend)
        until(lambda: holds(busy, 1), "the first has it")
        other.subscribe([name])
        until(lambda: holds(other, 1), "the other has it, for the first is busy")
        with pytest.raises(CommitFailedError):
            busy.commit({TopicPartition(name, 0): 0})
        other.close()
        until(lambda: holds(busy, 1) and lost, "the first is back")
        busy.commit({TopicPartition(name, 0): 0})


def a_pattern_finds_new_topics(bootstrap: str, **settings) -> None:
    prefix, group = unique("pattern"), unique("group")
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        reader(bootstrap, group_id=group, metadata_max_age_ms=200, **settings) as consumer,
    ):
        admin.create_topic(f"{prefix}-a", 1)
        consumer.subscribe(re.compile(re.escape(prefix) + "-[ab]"))
        until(lambda: holds(consumer, 1), "one topic matches")
        admin.create_topic(f"{prefix}-b", 2)
        admin.create_topic(f"{prefix}-c", 1)
        until(lambda: holds(consumer, 3), "two do")
        assert {partition.topic for partition in consumer.assignment()} == {f"{prefix}-a", f"{prefix}-b"}


def more_partitions_are_shared_out(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap), unique("group")
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        reader(bootstrap, group_id=group, metadata_max_age_ms=200, **settings) as consumer,
    ):
        consumer.subscribe([name])
        until(lambda: holds(consumer, 1), "there is one partition")
        admin.create_partitions({name: 3})
        until(lambda: holds(consumer, 3), "there are three")


# Positions


def pauses_last_and_cost_no_membership(bootstrap: str, **settings) -> None:
    name, group = topic(bootstrap, 2), unique("group")
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)
    with reader(bootstrap, group_id=group, **settings) as consumer:
        consumer.subscribe([name])
        until(lambda: holds(consumer, 2), "the member has both")
        consumer.pause(one)
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(20):
                producer.send(name, b"%d" % number, partition=number % 2)
        assert {record.partition for record in read(consumer, 10)} == {1}
        assert consumer.poll(0.2) == []
        assert consumer.paused() == {one}
        consumer.pause(two)
        consumer.resume(one)
        assert {record.partition for record in read(consumer, 10)} == {0}
        assert consumer.assignment() == {one, two}


def without_an_offset_the_policy_decides(bootstrap: str) -> None:
    name = topic(bootstrap)
    where = TopicPartition(name, 0)
    now = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for age_s in (7200, 1800, 60):
            producer.send(name, b"%d" % age_s, timestamp=now - age_s * 1000).result(PATIENCE_S)
    for policy, position in (("earliest", 0), ("latest", 3), ("by_duration:PT1H", 1), ("by_duration:P1D", 0)):
        with reader(bootstrap, group_id=unique("group"), auto_offset_reset=policy) as consumer:
            consumer.assign([where])
            assert consumer.position(where) == position, policy
    with reader(bootstrap, group_id=unique("group"), auto_offset_reset="none") as consumer:
        consumer.assign([where])
        with pytest.raises(NoOffsetError):
            consumer.poll(PATIENCE_S)
        consumer.seek(where, 2)
        assert consumer.poll(PATIENCE_S)[0].value == b"60"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({where: 2})
    with reader(bootstrap) as consumer:
        consumer.assign([where])
        consumer.seek(where, 0)
        assert consumer.poll(PATIENCE_S)[0].offset == 2, "what is gone is passed over"
        consumer.seek(where, 1000)
        assert consumer.poll(PATIENCE_S)[0].offset == 2, "what is not there yet, too"
    with reader(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([where])
        consumer.seek(where, 0)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(PATIENCE_S)


def moments_are_found(bootstrap: str) -> None:
    """By time over several batches, exactly, between and after all records; in the requested order."""
    name, base = topic(bootstrap, 2), 1_700_000_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(60):
            producer.send(name, b"x", partition=number % 2, timestamp=base + number * 10)
            if number % 6 == 5:
                producer.flush()
    places = [TopicPartition(name, partition) for partition in range(2)]

    def offsets(moment: int) -> list[int | None]:
        positions = consumer.offsets_for_times(dict.fromkeys(places, moment))
        return [position and position.offset for position in positions.values()]

    with reader(bootstrap) as consumer:
        assert offsets(0) == [0, 0]
        assert offsets(base + 200) == [10, 10]
        assert offsets(base + 201) == [11, 10]
        assert offsets(base + 590) == [None, 29]
        assert offsets(base + 591) == [None, None]


def both(story, **names: dict[str, object]) -> dict[str, Story]:
    """A story once for each protocol."""
    return {
        f"{story.__name__}_{name}": lambda bootstrap, settings=settings: story(bootstrap, **settings)
        for name, settings in names.items()
    }


GROUPS: dict[str, Story] = {
    story.__name__: story
    for story in (
        partitioners_choose,
        a_fenced_producer_writes_nothing,
        a_transaction_that_takes_too_long_is_aborted,
        readers_of_committed_records_wait,
        a_member_may_commit_and_leave_while_others_are_waited_for,
        a_static_member_is_fenced_by_its_twin,
        a_static_twin_waits_its_turn,
        a_member_that_was_put_out_commits_nothing,
        without_an_offset_the_policy_decides,
        moments_are_found,
    )
} | {
    **both(offsets_go_along_with_a_transaction, classic=CLASSIC, consumer=MODERN),
    **both(
        a_cooperative_member_keeps_what_stays,
        classic={**QUICK, "partition_assignment_strategy": "cooperative-sticky"},
        consumer=MODERN,
    ),
    **both(a_member_that_does_not_poll_is_out, classic=CLASSIC, consumer=MODERN),
    **both(a_pattern_finds_new_topics, classic=CLASSIC, consumer=MODERN),
    **both(more_partitions_are_shared_out, classic=CLASSIC, consumer=MODERN),
    **both(pauses_last_and_cost_no_membership, classic=CLASSIC, consumer=MODERN),
}

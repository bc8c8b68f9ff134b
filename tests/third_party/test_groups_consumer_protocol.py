"""The consumer group protocol (KIP-848) with librdkafka, alone and beside members of the classic protocol."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from harness import KlammProcess
from harness.consumer_members import ConsumerProtocolMember
from harness.members import KINDS, ConfluentMember, settled, wait_until
from third_party.test_groups_classic import PARTITIONS, Topic, everything_read

TESTS = Path(__file__).parents[1]
OVERRIDES = {
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.assignment.interval.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "100",
    "offsets.topic.num.partitions": "8",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("consumer-groups"), overrides=OVERRIDES) as process:
        yield process
        process.stop()


@pytest.fixture
def topic(node, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    return Topic(node, name)


def stop_all(*members):
    for member in members:
        member.stop()


def described(topic, group):
    description = topic.admin.describe_consumer_groups([group])[group].result(20)
    assert description.type.name == "CONSUMER"
    return description


@pytest.mark.parametrize("assignor", ConsumerProtocolMember.strategies)
def test_one_group_shares_and_another_gets_everything_too(node, topic, assignor):
    topic.write(300)
    shop = [ConsumerProtocolMember(node.bootstrap, f"shop-{topic.name}", topic.name, assignor) for _ in range(2)]
    bank = ConsumerProtocolMember(node.bootstrap, f"bank-{topic.name}", topic.name, assignor)
    try:
        wait_until(lambda: settled(shop, PARTITIONS), what=f"{[m.owned for m in shop]}")
        topic.write(60)
        wait_until(lambda: everything_read(topic, shop) and everything_read(topic, [bank]))
        assert {len(member.owned) for member in shop} == {3}
        if assignor == "range":
            assert sorted(sorted(member.owned) for member in shop) == [[0, 1, 2], [3, 4, 5]]
        group = described(topic, f"shop-{topic.name}")
        assert group.state.name == "STABLE"
        assert group.partition_assignor == assignor
        assert sorted(p.partition for m in group.members for p in m.assignment.topic_partitions) == list(range(6))
        wait_until(lambda: topic.committed(f"shop-{topic.name}") == [60] * PARTITIONS)
    finally:
        stop_all(*shop, bank)
    wait_until(lambda: topic.groups()[f"shop-{topic.name}"] == "EMPTY")
    topic.admin.delete_consumer_groups([f"shop-{topic.name}"])[f"shop-{topic.name}"].result(20)
    assert f"shop-{topic.name}" not in topic.groups()


def test_members_come_and_go_and_every_record_is_read(node, topic):
    members = [ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name)]
    gone = []
    try:
        for size in (2, 3, 4, 5, 6, 5, 3, 1):
            topic.write(24)
            while size > len(members):
                members.append(ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name))
            while size < len(members):
                gone.append(members.pop(0))
                gone[-1].stop()
            wait_until(lambda: settled(members, PARTITIONS), what=f"{[m.owned for m in members]}")
            assert max(len(m.owned) for m in members) - min(len(m.owned) for m in members) <= 1
        wait_until(lambda: everything_read(topic, members + gone))
    finally:
        stop_all(*members)


def test_only_what_must_move_is_taken_away(node, topic):
    first = ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name)
    wait_until(lambda: len(first.owned) == PARTITIONS)
    second = ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name)
    try:
        wait_until(lambda: settled([first, second], PARTITIONS))
        assert sorted(first.revoked) == sorted(second.owned)
        assert not second.revoked
    finally:
        stop_all(first, second)


def test_a_crashed_members_partitions_go_to_the_others_after_its_session(node, topic):
    group = f"g-{topic.name}"
    command = [sys.executable, "-m", "harness.consumer_members", node.bootstrap, group, topic.name]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=TESTS) as victim:
        assert victim.stdout.readline().strip() == str(PARTITIONS)
        survivor = ConsumerProtocolMember(node.bootstrap, group, topic.name)
        try:
            wait_until(lambda: len(survivor.owned) == 3)
            victim.kill()
            killed = time.monotonic()
            topic.write(60)
            wait_until(lambda: len(survivor.owned) == PARTITIONS)
            assert time.monotonic() - killed > 1.5, "it was not given up before its session was over"
            wait_until(lambda: everything_read(topic, [survivor]))
        finally:
            survivor.stop()
    assert "session expired after" in node.stderr()


def test_a_static_member_restarts_without_a_rebalance(node, topic):
    def member(name):
        return ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name, instance_id=name)

    members = [member("a"), member("b")]
    try:
        wait_until(lambda: settled(members, PARTITIONS))
        before = [set(running.owned) for running in members]
        members[1].stop()
        taken = len(members[0].revoked)
        members[1] = member("b")
        topic.write(30)
        wait_until(lambda: settled(members, PARTITIONS))
        wait_until(lambda: {p for p, _ in members[1].seen} == before[1])
        assert [set(running.owned) for running in members] == before
        assert len(members[0].revoked) == taken, "the other was disturbed"
    finally:
        stop_all(*members)


def test_new_partitions_find_an_owner(node, topic):
    members = [ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", topic.name) for _ in range(2)]
    try:
        wait_until(lambda: settled(members, PARTITIONS))
        topic.admin.create_partitions([NewPartitions(topic.name, 8)])[topic.name].result(20)
        wait_until(lambda: settled(members, 8), what=f"{[m.owned for m in members]}")
        topic.write(16, partitions=8)
        wait_until(lambda: everything_read(topic, members))
    finally:
        stop_all(*members)


def test_a_pattern_is_resolved_by_the_broker_and_finds_topics_that_come_later(node, topic):
    pattern = f"^{topic.name}-(orders|payments).*"
    first = ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", pattern)
    try:
        names = [f"{topic.name}-{kind}" for kind in ("orders", "payments-eu", "shipments")]
        for name in names:
            topic.admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
        expected = {(name, number) for name in names[:2] for number in range(2)}
        wait_until(lambda: first.places == expected, what=f"{first.places}")
        second = ConsumerProtocolMember(node.bootstrap, f"g-{topic.name}", pattern)
        wait_until(lambda: len(first.places) == len(second.places) == 2 and first.places | second.places == expected)
        second.stop()
        wait_until(lambda: first.places == expected)
        topic.admin.delete_topics(names[:1])[names[0]].result(20)
        wait_until(lambda: first.places == {place for place in expected if place[0] == names[1]})
    finally:
        first.stop()


def test_a_pattern_that_is_none_is_told_to_the_client(node, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": f"g-{topic.name}",
            "group.protocol": "consumer",
            "log_level": 2,
        }
    )
    consumer.subscribe([r"^(twice)\1"])  # the client's own engine looks back, RE2 does not
    error = None
    deadline = time.monotonic() + 20
    while error is None and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        error = message.error() if message is not None else None
    consumer.close()
    assert error is not None
    assert error.code() == KafkaError._FATAL
    assert "regular expression is not valid" in error.str()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_classic_group_is_rolled_over_to_the_new_protocol_and_back(node, topic, kind):
    group = f"g-{topic.name}"
    old = [kind(node.bootstrap, group, topic.name) for _ in range(2)]
    new = []
    gone = []
    try:
        wait_until(lambda: settled(old, PARTITIONS), what=f"{[m.owned for m in old]}")
        for _ in range(2):
            topic.write(24)
            new.append(ConsumerProtocolMember(node.bootstrap, group, topic.name))
            wait_until(lambda: settled(old + new, PARTITIONS), what=f"{[m.owned for m in old + new]}")
            gone.append(old.pop())
            gone[-1].stop()
            wait_until(lambda: settled(old + new, PARTITIONS), what=f"{[m.owned for m in old + new]}")
        assert described(topic, group).state.name in ("STABLE", "CONSUMER_GROUP_STATE_STABLE")
        topic.write(24)
        wait_until(lambda: everything_read(topic, new + gone))
        for _ in range(2):
            topic.write(24)
            old.append(kind(node.bootstrap, group, topic.name))
            wait_until(lambda: settled(old + new, PARTITIONS), what=f"{[m.owned for m in old + new]}")
            gone.append(new.pop())
            gone[-1].stop()
            wait_until(lambda: settled(old + new, PARTITIONS), what=f"{[m.owned for m in old + new]}")
        topic.write(24)
        wait_until(lambda: everything_read(topic, old + gone))
        wait_until(lambda: topic.committed(group) == [24] * PARTITIONS)
    finally:
        stop_all(*old, *new)
    log = node.stderr()
    assert f"group upgraded to the consumer protocol group={group}" in log
    assert f"group downgraded to the classic protocol group={group}" in log


def test_members_of_both_protocols_live_together(node, topic):
    group = f"g-{topic.name}"
    members = [ConsumerProtocolMember(node.bootstrap, group, topic.name)]
    members.append(ConfluentMember(node.bootstrap, group, topic.name, "cooperative-sticky"))
    members.append(ConsumerProtocolMember(node.bootstrap, group, topic.name))
    try:
        wait_until(lambda: settled(members, PARTITIONS), what=f"{[m.owned for m in members]}")
        assert [len(member.owned) for member in members] == [2, 2, 2]
        topic.write(60)
        wait_until(lambda: everything_read(topic, members))
    finally:
        stop_all(*members)


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill-9"])
def test_the_group_goes_on_when_the_broker_restarts(tmp_path, clean):
    with KlammProcess(tmp_path, overrides=OVERRIDES) as node:
        topic = Topic(node, "t")
        topic.write(60)
        members = [ConsumerProtocolMember(node.bootstrap, "g", "t") for _ in range(2)]
        wait_until(lambda: settled(members, PARTITIONS) and everything_read(topic, members))
        wait_until(lambda: topic.committed("g") == [10] * PARTITIONS)
        before = [set(member.owned) for member in members]
        epoch = node.stderr().count("rebalance")
        node.restart(clean=clean)
        topic.write(60)
        wait_until(lambda: everything_read(topic, members))
        assert [set(member.owned) for member in members] == before
        assert node.stderr().count("rebalance") <= epoch + 1
        stop_all(*members)


def test_offsets_are_committed_inside_a_transaction_by_a_member_of_the_new_protocol(node, topic):
    topic.write(6)
    group = f"g-{topic.name}"
    settings = {"bootstrap.servers": node.bootstrap, "log_level": 2}
    consumer = Consumer(
        {**settings, "group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    producer = Producer({**settings, "transactional.id": group})
    producer.init_transactions(20)
    consumer.subscribe([topic.name])
    read = []
    deadline = time.monotonic() + 20
    while len(read) < 6 and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.append(message)
    producer.begin_transaction()
    for message in read:
        producer.produce(f"{topic.name}-out", message.value())
    places = [TopicPartition(topic.name, message.partition(), message.offset() + 1) for message in read]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 20)
    producer.commit_transaction(20)
    assert topic.committed(group) == [1] * PARTITIONS
    consumer.close()

"""Consumer groups as real clients live them: share, join, leave, crash, return, and never lose a committed offset."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from harness import KlammProcess
from harness.members import KINDS, ConfluentMember, settled, wait_until

PARTITIONS = 6
WAYS = [(kind, strategy) for kind in KINDS.values() for strategy in kind.strategies]
WAY_NAMES = [f"{kind.kind}-{strategy}" for kind, strategy in WAYS]
MEMBERS_PY = Path(__file__).parents[1] / "harness" / "members.py"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    overrides = {"group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "8"}
    with KlammProcess(tmp_path_factory.mktemp("groups"), overrides=overrides) as process:
        yield process
        process.stop()


class Topic:
    """A topic for one test."""

    def __init__(self, node, name, partitions=PARTITIONS):
        self.bootstrap, self.name = node.bootstrap, name
        self.admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 2})
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
        self.producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "log_level": 2})
        self.written = set()

    def write(self, count, partitions=PARTITIONS):
        def on_delivery(error, message):
            assert error is None, error
            self.written.add((message.partition(), message.offset()))

        for i in range(count):
            self.producer.produce(self.name, str(i), partition=i % partitions, on_delivery=on_delivery)
        assert self.producer.flush(20) == 0

    def committed(self, group, partitions=PARTITIONS):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 2})
        positions = consumer.committed([TopicPartition(self.name, p) for p in range(partitions)], 20)
        consumer.close()
        return [position.offset for position in positions]

    def groups(self):
        return {g.group_id: g.state.name for g in self.admin.list_consumer_groups().result(20).valid}


@pytest.fixture
def topic(node, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    return Topic(node, name)


def everything_read(topic, members):
    return topic.written <= {place for member in members for place in member.seen}


@pytest.mark.parametrize(("kind", "strategy"), WAYS, ids=WAY_NAMES)
def test_one_group_shares_and_another_gets_everything_too(node, topic, kind, strategy):
    topic.write(300)
    shop = [kind(node.bootstrap, f"shop-{topic.name}", topic.name, strategy) for _ in range(2)]
    bank = [kind(node.bootstrap, f"bank-{topic.name}", topic.name, strategy)]
    try:
        wait_until(lambda: settled(shop, PARTITIONS), what=f"{[m.owned for m in shop]}")
        wait_until(lambda: everything_read(topic, shop) and everything_read(topic, bank))
        topic.write(60)
        wait_until(lambda: everything_read(topic, shop) and everything_read(topic, bank))
        assert {len(member.owned) for member in shop} == {3}
        wait_until(lambda: topic.committed(f"shop-{topic.name}") == [60] * PARTITIONS)
    finally:
        for member in shop + bank:
            member.stop()
    wait_until(lambda: topic.groups()[f"shop-{topic.name}"] == "EMPTY")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_members_come_and_go_and_every_record_is_read(node, topic, kind):
    group = f"g-{topic.name}"
    members = [kind(node.bootstrap, group, topic.name)]
    gone = []
    try:
        for size in (2, 3, 4, 3, 2, 1):
            topic.write(24)
            if size > len(members):
                members.append(kind(node.bootstrap, group, topic.name))
            else:
                leaver = members.pop(0)
                leaver.stop()
                gone.append(leaver)
            wait_until(lambda: settled(members, PARTITIONS), what=f"{[m.owned for m in members]}")
        wait_until(lambda: everything_read(topic, members + gone))
    finally:
        for member in members:
            member.stop()


def test_three_kinds_of_clients_share_one_group(node, topic):
    topic.write(60)
    members = [kind(node.bootstrap, f"mixed-{topic.name}", topic.name) for kind in KINDS.values()]
    try:
        wait_until(lambda: settled(members, PARTITIONS), what=f"{[m.owned for m in members]}")
        assert [len(member.owned) for member in members] == [2, 2, 2]
        wait_until(lambda: everything_read(topic, members))
    finally:
        for member in members:
            member.stop()


def test_a_cooperative_member_keeps_what_it_may_keep(node, topic):
    group = f"coop-{topic.name}"
    first = ConfluentMember(node.bootstrap, group, topic.name, "cooperative-sticky")
    wait_until(lambda: len(first.owned) == PARTITIONS)
    second = ConfluentMember(node.bootstrap, group, topic.name, "cooperative-sticky")
    try:
        wait_until(lambda: settled([first, second], PARTITIONS) and len(second.owned) == 3)
        assert sorted(first.revoked) == sorted(second.owned), "only what moved was taken away"
    finally:
        first.stop()
        second.stop()


def test_a_crashed_members_partitions_go_to_the_others_after_its_session(node, topic):
    group = f"crash-{topic.name}"
    command = [sys.executable, str(MEMBERS_PY), "confluent-kafka", node.bootstrap, group, topic.name, "range", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout.readline().strip() == str(PARTITIONS)
        survivor = ConfluentMember(node.bootstrap, group, topic.name, session_ms=2000)
        try:
            wait_until(lambda: len(survivor.owned) == 3)
            victim.kill()
            killed = time.monotonic()
            topic.write(60)
            wait_until(lambda: len(survivor.owned) == PARTITIONS)
            assert time.monotonic() - killed > 1.0, "it was not given up before its session was over"
            wait_until(lambda: everything_read(topic, [survivor]))
        finally:
            survivor.stop()
    assert "session expired after 2000 ms" in node.stderr()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_static_member_restarts_without_a_rebalance(node, topic, kind):
    group = f"static-{topic.name}"
    members = [kind(node.bootstrap, group, topic.name, instance_id=name, session_ms=20_000) for name in "ab"]
    try:
        wait_until(lambda: settled(members, PARTITIONS))
        before = [set(member.owned) for member in members]
        members[1].stop()
        taken = len(members[0].revoked)
        members[1] = kind(node.bootstrap, group, topic.name, instance_id="b", session_ms=20_000)
        topic.write(30)
        wait_until(lambda: settled(members, PARTITIONS))
        wait_until(lambda: {p for p, _ in members[1].seen} == before[1])
        assert [set(member.owned) for member in members] == before
        assert len(members[0].revoked) == taken, "the other was disturbed"
    finally:
        for member in members:
            member.stop()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_new_partitions_find_an_owner(node, topic, kind):
    members = [kind(node.bootstrap, f"grow-{topic.name}", topic.name) for _ in range(2)]
    try:
        wait_until(lambda: settled(members, PARTITIONS))
        topic.admin.create_partitions([NewPartitions(topic.name, 8)])[topic.name].result(20)
        wait_until(lambda: settled(members, 8), what=f"{[m.owned for m in members]}")
        topic.write(16, partitions=8)
        wait_until(lambda: everything_read(topic, members))
    finally:
        for member in members:
            member.stop()


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill-9"])
def test_no_committed_offset_is_lost_when_the_broker_restarts(tmp_path, clean):
    with KlammProcess(tmp_path, overrides={"offsets.topic.num.partitions": "4"}) as node:
        topic = Topic(node, "t")
        topic.write(60)
        reader = ConfluentMember(node.bootstrap, "g", "t", "cooperative-sticky")
        wait_until(lambda: everything_read(topic, [reader]))
        wait_until(lambda: topic.committed("g") == [10] * PARTITIONS)
        first = len(reader.seen)
        node.restart(clean=clean)
        assert topic.committed("g") == [10] * PARTITIONS
        topic.write(30)
        wait_until(lambda: everything_read(topic, [reader]))
        assert len(reader.seen) == first + 30, "the member went on where it was, without reading anything twice"
        reader.stop()
        node.restart(clean=clean)
        assert topic.committed("g") == [15] * PARTITIONS
        assert topic.groups() == {"g": "EMPTY"}
        again = ConfluentMember(node.bootstrap, "g", "t", "range")
        topic.write(6)
        wait_until(lambda: len(again.seen) == 6)
        again.stop()
        assert set(again.seen) == {(p, 15) for p in range(PARTITIONS)}

"""Replicas of a three-node cluster: drained, followed and cancelled; brokers that may restart; leaders elected."""

import re
import time

import pytest

from klamm.client import TopicPartition
from klamm.client.admin.replica_types import LogDirDescription, Reassignment, ReplicaInfo
from klamm.client.admin.types import QuorumDescription
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.move_progress import list_progress
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.restarts import check_restart, check_restarts
from klamm.console.core.samples import BrokerSample, ClusterSample, TopicSample
from klamm.console.service import ConsoleConfig
from klamm.testing import cluster, unique

from .served import ServedConsole

WAIT_S = 60


@pytest.fixture(scope="module")
def nodes():
    with cluster(3, config={"min.insync.replicas": 1}) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def console(nodes):
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", nodes.bootstrap),), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def visit(console):
    visit = console.visitor()
    yield visit
    visit.client.close()


def wait_for(condition, what):
    deadline_s = time.monotonic() + WAIT_S
    while not (answer := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)
    return answer


def words_of(page):
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_drain_is_planned_throttled_followed_and_cancelled(nodes, console, visit):
    topic = unique("drained")
    with nodes.admin() as admin, nodes.producer() as producer:
        admin.create_topic(topic, replica_assignment={partition: [1, 2] for partition in range(4)})
        for partition in range(4):
            for _ in range(8):
                producer.send(topic, b"x" * 200_000, partition=partition)
        producer.flush()
    console.collect()
    page = visit.get(f"/c/test/reassignments?plan=drain&broker=2&topic={topic}")
    assert "<b>4 partitions</b> would move" in page
    # Nothing is left on the drained broker, and nothing moves that was not on it.
    rows = re.findall(rf'>{topic}-(\d)</th>.*?data-label="Then">([^<]+)<', page)
    assert {number: set(replicas.split(", ")) for number, replicas in rows} == {
        str(partition): {"1", "3"} for partition in range(4)
    }
    assert "No partition moves." in page
    path = "/c/test/reassignments"
    plan = f"{path}?plan=drain&broker=2&topic={topic}"
    page = visit.post(plan, path, plan=visit.plan(plan), throttle="10KiB")
    assert "4 partitions move now." in page

    # Each partition with its share, of the bytes of its leader.
    def find_shares():
        return re.findall(rf"{topic}-(\d): (\d+) ?% copied", visit.get(path))

    shares = wait_for(find_shares, "no progress is shown")
    assert sorted(partition for partition, _ in shares) == ["0", "1", "2", "3"]
    assert all(int(share) < 100 for _, share in shares)
    assert re.search(r"4 partitions move\. Of all, .* are copied \(\d+ ?%\)", words_of(visit.get(path)))

    # One is cancelled, the others go on.
    page = visit.post(path, f"{path}/cancel", partition=f"{topic}/2")
    assert "Cancelled 1 move." in page
    with nodes.admin() as admin:
        moving = admin.list_partition_reassignments()
        assert sorted(place.partition for place in moving if place.topic == topic) == [0, 1, 3]
    visit.post(path, f"{path}/cancel", 409, partition=f"{topic}/2")
    visit.post(path, f"{path}/cancel", 400, partition="nonsense")
    visit.post(path, f"{path}/cancel", 400)  # no partition and not all: nothing is cancelled by mistake
    page = visit.post(path, f"{path}/cancel", all="1")
    assert "Cancelled 3 moves." in page
    with nodes.admin() as admin:
        assert admin.list_partition_reassignments() == {}
        described = admin.describe_topics([topic])[topic]
        assert {partition.replicas for partition in described.partitions} == {(1, 2)}
    assert "Removed the throttle." in visit.post(path, f"{path}/unthrottle")


def test_a_drain_ends_with_the_replicas_elsewhere(nodes, console, visit):
    topic = unique("moved")
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={0: [2, 3], 1: [3, 1]})
    console.collect()
    path = "/c/test/reassignments"
    plan = f"{path}?plan=drain&broker=3&topic={topic}"
    visit.post(plan, path, plan=visit.plan(plan))

    def is_drained():
        with nodes.admin() as admin:
            partitions = admin.describe_topics([topic])[topic].partitions
            return all(3 not in partition.replicas and len(partition.isr) == 2 for partition in partitions)

    wait_for(is_drained, "broker 3 keeps replicas")


def test_a_plan_of_more_moves_than_are_listed_is_started_as_a_whole(nodes, console, visit):
    topic = unique("many")
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={partition: [1] for partition in range(600)})
    console.collect()
    path = "/c/test/reassignments"
    plan = f"{path}?plan=drain&broker=1&topic={topic}"
    assert "The first 500 are listed; all are started." in visit.get(plan)
    assert "600 partitions move now." in visit.post(plan, path, plan=visit.plan(plan))

    def is_drained():
        with nodes.admin() as admin:
            return all(partition.replicas != (1,) for partition in admin.describe_topics([topic])[topic].partitions)

    wait_for(is_drained, "broker 1 keeps replicas")
    with nodes.admin() as admin:
        admin.delete_topics([topic])


def test_the_replicas_of_a_topic_are_more_then_fewer(nodes, console, visit):
    topic, path = unique("copied"), "/c/test/reassignments"
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={0: [1], 1: [2]})
    console.collect()
    assert "write the name of the topic" in visit.get(f"{path}?plan=copies&copies=2")
    assert "write how many replicas" in visit.get(f"{path}?plan=copies&topic={topic}")
    assert "has 4 copies" in visit.get(f"{path}?plan=copies&topic={topic}&copies=4")
    for copies in (3, 2):
        plan = f"{path}?plan=copies&topic={topic}&copies={copies}"
        assert "2 partitions move now." in visit.post(plan, path, plan=visit.plan(plan))

        def has_copies(wanted=copies):
            with nodes.admin() as admin:
                partitions = admin.describe_topics([topic])[topic].partitions
                return all(len(partition.replicas) == len(partition.isr) == wanted for partition in partitions)

        wait_for(has_copies, f"partitions have not {copies} replicas")
        console.collect()


def test_a_drain_without_enough_brokers_is_refused(nodes, console, visit):
    topic = unique("everywhere")
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={0: [1, 2, 3]})
    console.collect()
    page = visit.get(f"/c/test/reassignments?plan=drain&broker=3&topic={topic}")
    assert 'role="alert"' in page
    assert "Start " not in page


def test_a_restart_considers_the_minimum_of_each_topic(nodes, console, visit):
    topic = unique("careful")
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
    console.collect()
    words = words_of(visit.get("/c/test/brokers/1"))
    assert f"needs it for min.insync.replicas, such as {topic}-0" in words
    assert "producers with acks=all cannot write" in words
    page = visit.get("/c/test/brokers")
    assert page.count("not now") == 2  # brokers 1 and 2, not 3
    with nodes.admin() as admin:
        admin.delete_topics([topic])
    console.collect()

    def is_safe():
        return "needs it for min.insync.replicas" not in visit.get("/c/test/brokers/1")

    wait_for(is_safe, "the deleted topic is still considered")


def test_preferred_leaders_are_elected_from_the_overview(nodes, console, visit):
    topic = unique("led")
    with nodes.admin() as admin:
        admin.create_topic(topic, replica_assignment={0: [1, 2], 1: [1, 2]})
        # Another order of the same replicas: the leader stays, and is not the preferred one any more.
        admin.alter_partition_reassignments({TopicPartition(topic, index): [2, 1] for index in (0, 1)})

        def find_leaders():
            partitions = admin.describe_topics([topic])[topic].partitions
            return {partition.leader for partition in partitions if partition.replicas == (2, 1)}

        wait_for(lambda: find_leaders() == {1}, "the order of replicas is not changed")
        console.collect()
        overview = visit.get("/c/test")
        assert "led by another than the preferred replica" in overview
        # The cure is one click away, and one more makes it.
        assert '<a class="button" href="/c/test/brokers#elect">Elect preferred leaders</a>' in overview
        assert "2 partitions are led by another" in visit.get("/c/test/brokers")
        page = visit.post("/c/test/brokers", "/c/test/elect")
        assert "Elected the preferred leaders of 2 partitions." in page
        wait_for(lambda: find_leaders() == {2}, "the preferred leaders do not lead")
    console.collect()
    assert "All partitions have their preferred leader." in visit.get("/c/test/brokers")
    # A second click on a page that is still open changes nothing.
    token = visit.token("/c/test/topics/" + topic)
    assert visit.client.post("/c/test/elect", data={"_token": token}).status_code == 409


# Pure parts


def make_sample(**topics):
    samples = {
        name: TopicSample(
            name, False, tuple(PartitionSample(i, isr[0], (1, 2, 3), isr, 0, 1, 1) for i, isr in enumerate(isrs))
        )
        for name, isrs in topics.items()
    }
    return ClusterSample(1, "id", 1, tuple(BrokerSample(i, "h", 1) for i in (1, 2, 3)), samples)


def test_minimums_decide_about_restarts():
    sample = make_sample(full=[(1, 2, 3)], two=[(1, 2)], one=[(1,)], below=[(2, 3)])
    checks = check_restarts(sample, None, {"full": 2, "two": 2, "one": 1, "below": 3})
    assert {broker: len(check.reasons) for broker, check in checks.items()} == {1: 2, 2: 1, 3: 0}
    assert "such as one-0" in checks[1].reasons[0]
    assert "such as two-0" in checks[2].reasons[0]
    # A partition that cannot be written already is no reason.
    assert checks[3].safe


def test_topics_without_a_known_minimum_are_counted():
    sample = make_sample(a=[(1, 2)], b=[(2, 3)])
    assert check_restart(sample, 2, None, {"a": 1}).unknown_topics == 1
    assert check_restart(sample, 2, None, {"a": 1, "b": 1}).unknown_topics == 0
    assert check_restart(sample, 1, QuorumDescription(1, 1, 5, (), (), {})).unknown_topics == 1


def test_progress_is_the_share_of_the_leaders_bytes():
    place, empty = TopicPartition("t", 0), TopicPartition("t", 1)
    moves = {
        place: Reassignment((1, 2, 3), (2, 3), (1,)),
        empty: Reassignment((1, 2), (2,), ()),
    }

    def folder(size, is_future=False):
        return LogDirDescription("/d", 0, -1, -1, {place: ReplicaInfo(size, 0, is_future)})

    log_dirs = {1: [folder(1000)], 2: [folder(250), folder(9000, True)], 3: [folder(1200)]}
    rows = list_progress(moves, {place: 1, empty: 1}, log_dirs)
    assert [(row.name, row.copied_bytes, row.total_bytes, row.share) for row in rows] == [
        ("t-0", 1250, 2000, 0.625),
        ("t-1", 0, 0, None),
    ]

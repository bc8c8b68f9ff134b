"""Groups of real clients share a topic; members come, go, crash, pause and return: nothing lost, one owner each."""

from collections.abc import Callable, Iterator

import pytest

from compat.brokers import Broker
from compat.clients import Client, GoClient, JavaClient, JsClient, ProcessClient
from compat.crowds import Crowd

PARTITIONS = 12
CLASSIC = ("range", "roundrobin", "sticky", "cooperative-sticky")
CONSUMER = ("consumer-uniform", "consumer-range", "pattern-uniform")
INCREMENTAL = ("cooperative-sticky", "consumer-uniform", "pattern-uniform")
"""Ways in which a member never lets go of what it keeps."""
Gather = Callable[..., Crowd]


@pytest.fixture
def gather(broker: Broker, java: JavaClient, topic: str) -> Iterator[Gather]:
    made: list[Crowd] = []

    def gather_crowd(way: str, partitions: int = PARTITIONS, **settings: int) -> Crowd:
        name = topic if not made else f"{topic}-{len(made)}"
        made.append(Crowd(broker, java, name, way, partitions, **settings))
        return made[-1]

    yield gather_crowd
    for crowd in made:
        crowd.close()


@pytest.mark.parametrize("way", [*CLASSIC, *CONSUMER])
def test_java_members_come_and_go(gather: Gather, java: JavaClient, way: str) -> None:
    """One member, three, more, fewer by leaving, fewer by crashing."""
    crowd = gather(way)
    crowd.write()
    crowd.join(java)
    crowd.settle()
    for more in (2, 5):
        before, counts = crowd.owned_partitions(), crowd.event_counts()
        crowd.join(java, more)
        crowd.write()
        crowd.settle()
        if way in INCREMENTAL:
            crowd.assert_kept(before, counts)
    before, counts = crowd.owned_partitions(), crowd.event_counts()
    crowd.leave(*crowd.present[:3])
    crowd.write()
    crowd.settle()
    if way in INCREMENTAL:
        crowd.assert_kept(before, counts)
    crowd.leave(*crowd.present[:2], how="crash")
    crowd.write()
    crowd.settle()
    crowd.finish()


@pytest.mark.parametrize("way", ["range", "cooperative-sticky", "consumer-uniform"])
def test_twenty_java_members(gather: Gather, java: JavaClient, way: str) -> None:
    """More members than partitions at first; then the topic gets more partitions, and every member has some."""
    crowd = gather(way, 16)
    crowd.write()
    crowd.join(java, 20)
    crowd.settle()
    assert sorted(len(member.owned) for member in crowd.present) == [0] * 4 + [1] * 16
    grow(crowd, 40)
    crowd.write()
    crowd.settle()
    assert {len(member.owned) for member in crowd.present} == {2}
    crowd.leave(*crowd.present[5:])
    crowd.settle()
    crowd.finish()


@pytest.mark.parametrize("way", ["roundrobin", "consumer-uniform"])
def test_a_paused_member_loses_its_share_and_gets_one_again(gather: Gather, java: JavaClient, way: str) -> None:
    crowd = gather(way, 6, poll_interval_ms=3000)
    crowd.write()
    sleeper, _ = crowd.join(java, 2)
    crowd.settle()
    crowd.pause(sleeper, True)
    crowd.write()
    crowd.settle()
    crowd.pause(sleeper, False)
    crowd.settle()
    assert sleeper.owned, crowd.describe("who woke up got nothing")
    crowd.write()
    crowd.finish()


@pytest.mark.parametrize("way", ["range", "sticky", "cooperative-sticky", "consumer-uniform"])
def test_static_members_return_without_a_rebalance(gather: Gather, java: JavaClient, way: str) -> None:
    crowd = gather(way, 6)
    crowd.write()
    first, second, third = crowd.join(java, 3, static=True)
    crowd.settle()
    shares, counts = crowd.owned_partitions(), crowd.event_counts()
    crowd.leave(second)  # a static member does not leave for good
    crowd.write()
    heir = crowd.rejoin(second)
    crowd.settle()
    assert heir.owned == shares[second.name], crowd.describe("the returned member has another share")
    for other in (first, third):
        assert not crowd.events_since(other, counts[other.name]), crowd.describe("a return made a rebalance")
    crowd.leave(heir)  # it does not return now: the others take over after the session timeout
    crowd.settle()
    crowd.write()
    crowd.finish()


@pytest.mark.parametrize("way", ["cooperative-sticky", "consumer-uniform"])
def test_a_killed_jvm(gather: Gather, java: JavaClient, way: str) -> None:
    """kill -9 of a process with four members, beside three that live on."""
    doomed = JavaClient()
    try:
        crowd = gather(way)
        crowd.write()
        crowd.join(doomed, 4)
        crowd.join(java, 3)
        crowd.settle()
        before, counts = crowd.owned_partitions(), crowd.event_counts()
        crowd.write()
        crowd.kill(doomed)
        before = {member.name: before[member.name] for member in crowd.present}
        crowd.settle()
        crowd.assert_kept(before, counts)
        crowd.write()
        crowd.finish()
    finally:
        doomed.close()


WAYS_OF_OTHERS = [*[("franz-go", way) for way in CLASSIC], ("kafkajs", "roundrobin")]


@pytest.mark.parametrize(("name", "way"), WAYS_OF_OTHERS)
def test_members_of_other_clients(gather: Gather, all_clients: dict[str, Client], name: str, way: str) -> None:
    home = all_clients[name]
    assert isinstance(home, ProcessClient)
    doomed = type(home)()
    assert isinstance(doomed, (GoClient, JsClient))
    try:
        crowd = gather(way, 8)
        crowd.write()
        crowd.join(home, 1)
        crowd.settle()
        crowd.join(home, 3)
        crowd.write()
        crowd.settle()
        crowd.join(doomed, 2)
        crowd.settle()
        crowd.write()
        crowd.leave(crowd.present[0])
        crowd.settle()
        crowd.write()
        crowd.kill(doomed)
        crowd.settle()
        grow(crowd, 12)
        crowd.write()
        crowd.settle()
        crowd.finish()
    finally:
        doomed.close()


def test_java_and_go_share_one_group(gather: Gather, java: JavaClient, all_clients: dict[str, Client]) -> None:
    """They agree on the protocol both know, and each reads what the other's leader gave it."""
    crowd = gather("cooperative-sticky")
    go = all_clients["franz-go"]
    assert isinstance(go, GoClient)
    crowd.write()
    crowd.join(java, 2)
    crowd.join(go, 2)
    crowd.settle()
    crowd.write()
    crowd.leave(crowd.present[0])  # the leader of the group
    crowd.settle()
    crowd.finish()


def test_a_group_changes_its_protocol_while_it_works(gather: Gather, java: JavaClient) -> None:
    """Classic members are replaced one after the other by members of the new protocol, and back again."""
    crowd = gather("range", 6)
    crowd.write()
    crowd.join(java, 3)
    crowd.settle()
    for way in ("consumer-uniform", "range"):
        crowd.way = way
        for old in list(crowd.present):
            crowd.join(java)
            crowd.write()
            crowd.settle()
            crowd.leave(old)
            crowd.settle()
    crowd.finish()


def grow(crowd: Crowd, partitions: int) -> None:
    grown = crowd.java.tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", crowd.broker.bootstrap),
        *("--alter", "--topic", crowd.topic, "--partitions", str(partitions)),
    )
    assert grown.exit == 0, grown.text
    crowd.partitions = partitions

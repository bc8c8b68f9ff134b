"""Apache Kafka and Klamm in one cluster: a controller of either kind, and a broker of each that copy one another."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.brokers import KINDS, Broker, answers
from compat.clients import JavaClient, Record

TOPICS = "org.apache.kafka.tools.TopicCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PATIENCE_S = 120.0
CONTROLLER, KAFKA, KLAMM = 1, 2, 3
Cluster = dict[int, Broker]


@pytest.fixture(scope="module", params=sorted(KINDS))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Node 1 decides, node 2 is Kafka's broker, node 3 is Klamm's."""
    nodes = make(tmp_path_factory.mktemp(f"mixed-{request.param}"), [request.param], ["kafka", "klamm"])
    try:
        yield start(nodes)
    finally:
        for node in nodes.values():
            node.close()


@pytest.fixture
def voters(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes 1 to 3 vote, the last of them Kafka's; node 4 is a broker of Klamm."""
    nodes = make(tmp_path, ["klamm", "klamm", "kafka"], ["klamm"])
    try:
        yield start(nodes)
    finally:
        for node in nodes.values():
            node.close()


def make(folder: Path, controllers: list[str], brokers: list[str]) -> Cluster:
    """Nodes from 1 on, first those that decide; none runs yet."""
    kinds = dict(enumerate([*controllers, *brokers], 1))
    nodes: Cluster = {node_id: KINDS[kind](folder / str(node_id)) for node_id, kind in kinds.items()}
    voters = ",".join(f"{i}@127.0.0.1:{nodes[i].controller_port}" for i in range(1, len(controllers) + 1))
    for node_id, node in nodes.items():
        decides = node_id <= len(controllers)
        port, name = (node.controller_port, "CONTROLLER") if decides else (node.port, "PLAINTEXT")
        node.format_flags = ("--ignore-formatted",)
        node.overrides = {
            "process.roles": "controller" if decides else "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": voters,
            "listeners": f"{name}://127.0.0.1:{port}",
            "advertised.listeners": "" if decides else f"PLAINTEXT://127.0.0.1:{port}",
            "broker.session.timeout.ms": "6000",
            "replica.lag.time.max.ms": "6000",
        }
    return nodes


def start(nodes: Cluster) -> Cluster:
    for node in nodes.values():
        node.spawn()
    for node in nodes.values():
        if "PLAINTEXT" in node.overrides["listeners"]:
            node.wait_ready()
        else:
            wait_for(lambda node=node: answers(node.controller_port), "a controller answers")
    return nodes


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def described(java: JavaClient, broker: Broker, topic: str) -> list[tuple[int, set[int]]]:
    """Leader and ISR of every partition."""
    output = java.tool(TOPICS, "--bootstrap-server", broker.bootstrap, "--describe", "--topic", topic)
    rows = re.findall(r"Partition: \d+\tLeader: (\d+).*Isr: ([\d,]*)", output.out)
    return [(int(leader), {int(replica) for replica in isr.split(",") if replica}) for leader, isr in rows]


def test_both_brokers_watch_the_quorum(java: JavaClient, cluster: Cluster) -> None:
    for node_id in (KAFKA, KLAMM):
        output = java.tool(QUORUM, "--bootstrap-server", cluster[node_id].bootstrap, "describe", "--replication")
        assert output.exit == 0, output.text
        assert len(re.findall(r"\bObserver\b", output.out)) == 2, output.out


def test_each_copies_from_the_other_and_takes_over(java: JavaClient, cluster: Cluster, topic: str) -> None:
    kafka, klamm = cluster[KAFKA], cluster[KLAMM]
    where = ("--bootstrap-server", klamm.bootstrap)
    assignment = f"{KAFKA}:{KLAMM},{KLAMM}:{KAFKA}"
    made = java.tool(TOPICS, *where, "--create", "--topic", topic, "--replica-assignment", assignment)
    assert made.exit == 0, made.text
    both = {KAFKA, KLAMM}

    def leaders(broker_id: int) -> list[int]:
        return [leader for leader, _ in described(java, cluster[broker_id], topic)]

    def all_in_sync(broker_id: int) -> bool:
        return all(isr == both for _, isr in described(java, cluster[broker_id], topic))

    wait_for(lambda: leaders(KAFKA) == [KAFKA, KLAMM] and all_in_sync(KAFKA), "each leads one and follows the other")
    records = [Record(b"%d" % i, partition=i % 2) for i in range(200)]
    java.produce(kafka.bootstrap, topic, records, acks="all", idempotent=True)

    for gone, left in ((KAFKA, KLAMM), (KLAMM, KAFKA)):
        cluster[gone].kill9()
        bootstrap = cluster[left].bootstrap
        wait_for(lambda left=left: leaders(left) == [left, left], f"{left} leads both")
        for partition in (0, 1):
            seen = java.consume(bootstrap, topic, partition, count=100)
            assert [record.value for record in seen] == [b"%d" % i for i in range(partition, 200, 2)]
        cluster[gone].start()
        wait_for(lambda left=left: all_in_sync(left), f"{gone} is in sync again")


def test_a_broker_moves_from_one_program_to_the_other(java: JavaClient, cluster: Cluster, topic: str) -> None:
    """Kafka's broker is stopped, Klamm goes on with its file and folder."""
    klamm = cluster[KLAMM]
    where = ("--bootstrap-server", klamm.bootstrap)
    made = java.tool(TOPICS, *where, "--create", "--topic", topic, "--replica-assignment", f"{KAFKA}:{KLAMM}")
    assert made.exit == 0, made.text
    java.produce(klamm.bootstrap, topic, [Record(b"%d" % i) for i in range(100)], acks="all")
    cluster[KAFKA].stop()
    heir = cluster[KAFKA] = cluster[KAFKA].successor(KINDS["klamm"])
    heir.start()
    wait_for(lambda: [isr for _, isr in described(java, klamm, topic)] == [{KAFKA, KLAMM}], "it is in sync again")
    java.produce(heir.bootstrap, topic, [Record(b"%d" % i) for i in range(100, 200)], acks="all")
    seen = java.consume(heir.bootstrap, topic, count=200)
    assert [record.value for record in seen] == [b"%d" % i for i in range(200)]


def quorum(java: JavaClient, broker: Broker) -> tuple[int, list[int]]:
    """The leader's id and the log ends of all voters; -1 while there is no leader."""
    output = java.tool(QUORUM, "--bootstrap-server", broker.bootstrap, "describe", "--replication")
    rows = re.findall(r"^(\d+)\s+\S{22}\s+(\d+)\s.*\b(Leader|Follower)\b", output.out, re.MULTILINE)
    leaders = [int(node_id) for node_id, _, status in rows if status == "Leader"]
    return leaders[0] if leaders else -1, [int(end) for _, end, _ in rows]


def test_voters_of_both_kinds_elect_one_another(java: JavaClient, voters: Cluster, topic: str) -> None:
    """Klamm's voters start faster and lead first. Each leader is killed in turn, until Kafka's has led or four have."""
    broker = voters[4]
    made: list[str] = []

    def settled() -> bool:
        leader, ends = quorum(java, broker)
        return leader > 0 and len(ends) == 3 and max(ends) - min(ends) <= 2

    for turn in range(4):
        wait_for(settled, "all three voters have the log")
        leader, _ = quorum(java, broker)
        made.append(f"{topic}-{turn}")
        created = java.tool(TOPICS, "--bootstrap-server", broker.bootstrap, "--create", "--topic", made[-1])
        assert created.exit == 0, created.text
        voters[leader].kill9()
        wait_for(lambda dead=leader: quorum(java, broker)[0] not in (-1, dead), "another leads")
        listed = java.tool(TOPICS, "--bootstrap-server", broker.bootstrap, "--list").out.split()
        assert set(made) <= set(listed)
        voters[leader].spawn()
        if leader == 3:
            break

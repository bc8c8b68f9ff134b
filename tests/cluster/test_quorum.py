"""The controller quorum as real processes: elections, minorities, zombies, snapshots, roles, voters that come and go.

Judged through DescribeQuorum and CreateTopics as kio writes them.
"""

import contextlib
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness import Wire, unique
from harness.process import KLAMM, KlammProcess
from klamm.cli.main import cli
from klamm.model.errors import ErrorCode
from klamm.model.properties import format_properties
from klamm.net.free_ports import free_ports

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

PATIENCE_S = 90.0
CLUSTER = "l6t1Q_H-TtyNbcQtxA6dGA"


class Member(KlammProcess):
    """One node with properties and format flags of its own."""

    def __init__(self, folder: Path, properties: dict[str, str], port: int, *flags: str) -> None:
        super().__init__(folder)
        self.port = port
        self.node_id = int(properties["node.id"])
        self.controller_port = 0
        self.file = folder / "server.properties"
        folder.mkdir(parents=True)
        self.file.write_text(format_properties({"log.dirs": str(folder / "data"), **properties}))
        result = CliRunner().invoke(cli, ["storage", "format", "-t", CLUSTER, "-c", str(self.file), *flags])
        assert result.exit_code == 0, result.output

    def command(self) -> list[str]:
        return [*KLAMM, "server", str(self.file), "--log-level", "info"]


class Quorum:
    """Nodes by number, started and ended one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: dict[int, Member] = {}

    def combined(self, count: int, **settings: str) -> None:
        """Static voters that are brokers too."""
        ports = free_ports("127.0.0.1", 2 * count)
        voters = ",".join(f"{i + 1}@127.0.0.1:{ports[2 * i + 1]}" for i in range(count))
        for i in range(count):
            where = {"controller.quorum.voters": voters, **settings}
            self.add(i + 1, "broker,controller", ports[2 * i], ports[2 * i + 1], where)

    def add(self, node_id, roles, port, controller_port, properties, *flags):
        listeners = [f"PLAINTEXT://127.0.0.1:{port}"] if "broker" in roles else []
        listeners += [f"CONTROLLER://127.0.0.1:{controller_port}"] if "controller" in roles else []
        known = {
            "process.roles": roles,
            "node.id": str(node_id),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "broker.session.timeout.ms": "60000",
            **properties,
        }
        member = Member(self.folder / str(node_id), known, port if "broker" in roles else controller_port, *flags)
        member.controller_port = controller_port
        self.members[node_id] = member
        return member

    def start(self, *node_ids: int) -> "Quorum":
        chosen = [self.members[i] for i in node_ids or self.members]
        for member in chosen:
            member.launch()
        for member in chosen:
            member.wait_ready(PATIENCE_S)
        return self

    def end(self) -> None:
        for member in self.members.values():
            member.kill9()

    def other(self, *node_ids: int) -> Member:
        return next(m for i, m in self.members.items() if i not in node_ids and m.process is not None)


@pytest.fixture
def quorum(tmp_path):
    made = Quorum(tmp_path)
    yield made
    made.end()


def described(port):
    """What DescribeQuorum says at a port: the one partition's part, or None when there is no answer."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    with contextlib.suppress(OSError), Wire(port) as wire:
        reply = wire.call("describe_quorum", 2, topics=topics)
        if reply.error_code == 0 and reply.topics[0].partitions[0].error_code == 0:
            return reply.topics[0].partitions[0]
    return None


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return result


def read_leader(member, but=None):
    """The leader as a node tells it, once it is not `but`."""

    def read_state():
        quorum_state = described(member.port)
        return quorum_state if quorum_state is not None and quorum_state.leader_id not in (-1, but) else None

    return wait_for(read_state, f"a leader other than {but}").leader_id


def create_topic(member, timeout_ms=20_000):
    name = unique()
    with Wire(member.port, timeout=60) as wire:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": []}
        return name, wire.call("create_topics", 7, topics=[topic], timeout=timeout_ms).topics[0].error_code


def knows(member, topic):
    with contextlib.suppress(OSError), Wire(member.port) as wire:
        # Without auto-creation: the question must not create the topic on the node that lacks it.
        reply = wire.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
        return reply.topics[0].error_code == 0
    return False


def test_a_killed_leader_is_replaced_without_waiting_for_a_timeout(quorum):
    """The timeouts are a minute here: only the refused connection can have told the others."""
    slow = {"controller.quorum.fetch.timeout.ms": "60000", "controller.quorum.election.timeout.ms": "5000"}
    quorum.combined(3, **slow)
    quorum.start()
    first = read_leader(quorum.members[1])
    quorum.members[first].kill9()
    second = read_leader(quorum.other(first), but=first)
    _, code = create_topic(quorum.other(first, second))
    assert code == 0
    quorum.members[first].start()
    assert read_leader(quorum.members[first]) == second, "who comes back follows"


def test_a_leader_that_is_told_to_stop_names_its_successor(quorum):
    slow = {"controller.quorum.fetch.timeout.ms": "60000", "controller.quorum.election.timeout.ms": "5000"}
    quorum.combined(3, **slow)
    quorum.start()
    first = read_leader(quorum.members[1])
    quorum.members[first].stop()
    read_leader(quorum.other(first), but=first)
    assert create_topic(quorum.other(first))[1] == 0


def test_a_minority_changes_nothing_and_says_so(quorum):
    quorum.combined(3)
    quorum.start()
    before, code = create_topic(quorum.members[1])
    assert code == 0
    for node_id in (2, 3):
        quorum.members[node_id].kill9()
    name, code = create_topic(quorum.members[1], timeout_ms=3_000)
    assert code == ErrorCode.REQUEST_TIMED_OUT
    quorum.start(2, 3)
    wait_for(lambda: all(knows(member, before) for member in quorum.members.values()), "the old topic is known")
    after, code = create_topic(quorum.members[3])
    assert code == 0
    wait_for(lambda: all(knows(member, after) for member in quorum.members.values()), "the new topic is known")
    # Timed out means unknown: nodes whose logs are equal up to the new topic have the old one all or none.
    assert len({knows(member, name) for member in quorum.members.values()}) == 1


def test_a_paused_leader_wakes_up_fenced(quorum):
    quorum.combined(3, **{"broker.session.timeout.ms": "6000"})
    quorum.start()
    first = read_leader(quorum.members[1])
    paused = quorum.members[first]
    paused.pause()
    try:
        second = read_leader(quorum.other(first), but=first)
        name, code = create_topic(quorum.other(first))
        assert code == 0
    finally:
        paused.resume()
    assert read_leader(paused, but=first) == second
    wait_for(lambda: knows(paused, name), "the zombie has what was decided without it")
    quorum_state = wait_for(lambda: described(paused.port), "an answer")
    assert quorum_state.leader_epoch > 1


def test_a_node_that_waits_for_its_quorum_says_so_and_can_be_stopped(quorum):
    quorum.combined(3)
    alone = quorum.members[2]
    alone.launch()
    wait_for(lambda: "metadata quorum has no leader, waiting" in alone.log(), "it says what it waits for")
    assert f"1@127.0.0.1:{quorum.members[1].controller_port}" in alone.log()
    alone.stop()
    quorum.start()
    assert create_topic(alone)[1] == 0


def test_who_was_away_too_long_gets_a_snapshot(quorum):
    """Every few records a snapshot: what the third node missed is no longer in any log."""
    quorum.combined(3, **{"metadata.log.max.record.bytes.between.snapshots": "200"})
    quorum.start()
    away = quorum.members[3]
    away.kill9()
    topics = [create_topic(quorum.members[1]) for _ in range(3)]

    def cleaned():
        names = {path.name for path in (quorum.folder / "1/data/__cluster_metadata-0").glob("*.checkpoint")}
        topics.extend(create_topic(quorum.members[1]) for _ in range(3))
        starts = sorted(int(name.split("-")[0]) for name in names)
        return len(starts) >= 2 and starts[0] > 60

    wait_for(cleaned, "the log of the others begins later than what the third has")
    away.start()
    assert all(code == 0 for _, code in topics)
    wait_for(lambda: all(knows(away, name) for name, _ in topics), "everything arrived by snapshot and log")


def test_controllers_and_brokers_in_processes_of_their_own(quorum):
    ports = free_ports("127.0.0.1", 5)
    voters = {"controller.quorum.voters": ",".join(f"{i + 1}@127.0.0.1:{ports[i]}" for i in range(3))}
    for i in range(3):
        quorum.add(i + 1, "controller", 0, ports[i], voters)
    for i in (3, 4):
        quorum.add(i + 1, "broker", ports[i], 0, voters)
    quorum.start()
    first = read_leader(quorum.members[4])
    quorum_state = wait_for(lambda: described(quorum.members[first].port), "the leader's own answer")
    assert [voter.replica_id for voter in quorum_state.current_voters] == [1, 2, 3]
    assert sorted(observer.replica_id for observer in quorum_state.observers) == [4, 5]
    quorum.members[first].kill9()
    read_leader(quorum.members[5], but=first)
    name, code = create_topic(quorum.members[5])
    assert code == 0
    wait_for(lambda: knows(quorum.members[4], name), "observers follow the new leader")
    for member in quorum.members.values():
        if member.process is not None:
            member.stop()


# Voters that come and go (KIP-853)


def growing(quorum, count, **settings):
    """Node 1 formatted alone, the others know nothing but its address."""
    ports = free_ports("127.0.0.1", 2 * count)
    where = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[1]}", **settings}
    for i in range(count):
        flag = "--standalone" if i == 0 else "--no-initial-controllers"
        quorum.add(i + 1, "broker,controller", ports[2 * i], ports[2 * i + 1], where, flag)


def read_voters(member):
    quorum_state = described(member.port)
    return None if quorum_state is None else sorted(voter.replica_id for voter in quorum_state.current_voters)


def directory_of(member, node_id):
    quorum_state = wait_for(lambda: described(member.port), "an answer")
    return next(
        voter.replica_directory_id.bytes
        for voter in (*quorum_state.current_voters, *quorum_state.observers)
        if voter.replica_id == node_id
    )


def test_a_quorum_grows_by_itself_and_survives_its_first_member(quorum):
    growing(quorum, 3, **{"controller.quorum.auto.join.enable": "true"})
    quorum.start()
    one, two = quorum.members[1], quorum.members[2]
    wait_for(lambda: read_voters(one) == [1, 2, 3], "all three vote")
    first = read_leader(one)
    quorum.members[first].kill9()
    second = read_leader(quorum.other(first), but=first)
    assert create_topic(quorum.members[second])[1] == 0
    quorum.members[first].start()
    assert create_topic(quorum.members[first])[1] == 0
    for member in (one, two, quorum.members[3]):
        member.stop()
    quorum.start()
    assert wait_for(lambda: read_voters(two), "an answer") == [1, 2, 3]


def test_voters_are_added_and_removed_by_request_at_any_broker(quorum):
    growing(quorum, 3)
    quorum.start()
    one, two, three = quorum.members.values()
    with Wire(three.port, timeout=60) as wire:
        wait_for(lambda: len(described(three.port).observers) == 2, "two observers")
        two_directory = directory_of(three, 2)
        requested = {
            "cluster_id": CLUSTER,
            "timeout": 30_000,
            "voter_id": 2,
            "voter_directory_id": two_directory,
            "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": two.controller_port}],
        }
        assert wire.call("add_raft_voter", 0, **requested).error_code == 0
        assert read_voters(three) == [1, 2]
        assert wire.call("add_raft_voter", 0, **requested).error_code == ErrorCode.DUPLICATE_VOTER
        stranger = {**requested, "cluster_id": "another", "voter_id": 3}
        assert wire.call("add_raft_voter", 0, **stranger).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        unknown = wire.call("remove_raft_voter", 0, cluster_id=CLUSTER, voter_id=2, voter_directory_id=bytes(range(16)))
        assert unknown.error_code == ErrorCode.VOTER_NOT_FOUND
        one_directory = directory_of(three, 1)
        gone = wire.call("remove_raft_voter", 0, cluster_id=CLUSTER, voter_id=1, voter_directory_id=one_directory)
        assert gone.error_code == 0, "a leader removes itself, and says so before it goes"
    assert read_leader(three, but=1) == 2
    assert read_voters(three) == [2]
    one.kill9()
    assert create_topic(three)[1] == 0


def test_a_voter_that_moved_to_another_port_tells_the_leader(quorum):
    growing(quorum, 2, **{"controller.quorum.auto.join.enable": "true"})
    quorum.start()
    one, two = quorum.members.values()
    wait_for(lambda: read_voters(one) == [1, 2], "both vote")
    two.stop()
    [port] = free_ports("127.0.0.1", 1)
    two.file.write_text(two.file.read_text().replace(str(two.controller_port), str(port)))
    two.launch()
    two.wait_ready(PATIENCE_S)
    read_leader(one)

    def moved():
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        with contextlib.suppress(OSError), Wire(one.port) as wire:
            nodes = wire.call("describe_quorum", 2, topics=topics).nodes
            return any(n.node_id == 2 and n.listeners[0].port == port for n in nodes)
        return False

    wait_for(moved, "the new port is written down")
    assert create_topic(one)[1] == 0


# Fixed voters that become free ones (kraft.version 0 to 1)


def update_kraft_version(member, level, kind=1):
    """UpdateFeatures at a broker: its error code and text."""
    change = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": kind}
    with Wire(member.port, timeout=90) as wire:
        reply = wire.call("update_features", 2, timeout=60_000, feature_updates=[change])
        return reply.error_code, reply.error_message


def kraft_version_at(member):
    with contextlib.suppress(OSError), Wire(member.port) as wire:
        versions = wire.call("api_versions", 4, client_software_name="test", client_software_version="1")
        levels = {feature.name: feature.max_version_level for feature in versions.finalized_features}
        return levels.get("kraft.version", 0)
    return None


def change_voter(member, api, node_id, wanted, **fields):
    """Ask until the voters are as wanted: a leader that goes in between may have done it and not said so."""

    def read_state():
        quorum_state = described(member.port)
        replicas = () if quorum_state is None else (*quorum_state.current_voters, *quorum_state.observers)
        directory_ids = [replica.replica_directory_id.bytes for replica in replicas if replica.replica_id == node_id]
        if directory_ids and any(directory_ids[0]):
            with contextlib.suppress(OSError), Wire(member.port, timeout=90) as wire:
                wire.call(api, 0, cluster_id=CLUSTER, voter_id=node_id, voter_directory_id=directory_ids[0], **fields)
        return read_voters(member) == wanted

    wait_for(read_state, f"{api} of {node_id}")


def test_fixed_voters_are_freed_and_all_of_them_replaced(quorum):
    """Two controllers of the file give way to two new ones; a broker that slept through it finds them."""
    ports = free_ports("127.0.0.1", 6)
    file = {"controller.quorum.voters": f"1@127.0.0.1:{ports[0]},2@127.0.0.1:{ports[1]}"}
    for i in (0, 1):
        quorum.add(i + 1, "controller", 0, ports[i], file)
    broker = quorum.add(5, "broker", ports[4], 0, file)
    sleeper = quorum.add(6, "broker", ports[5], 0, file)
    quorum.start()
    assert kraft_version_at(broker) == 0
    sleeper.kill9()
    wait_for(lambda: update_kraft_version(broker, 1)[0] == 0, "both have said who they are")
    assert kraft_version_at(broker) == 1, "the broker that answers has it"
    assert update_kraft_version(broker, 1) == (0, None), "asked again"
    code, text = update_kraft_version(broker, 0, kind=3)
    assert (code, "cannot be downgraded" in text) == (ErrorCode.INVALID_UPDATE_VERSION, True)
    for i in (1, 2):
        quorum.members[i].kill9()
    quorum.start(1, 2)
    assert wait_for(lambda: kraft_version_at(broker), "an answer") == 1, "it is on their disks"

    bootstrap = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"}
    for i in (2, 3):
        quorum.add(i + 1, "controller", 0, ports[i], bootstrap, "--no-initial-controllers")
    quorum.start(3, 4)
    for i, wanted in ((3, [1, 2, 3]), (4, [1, 2, 3, 4])):
        listeners = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": ports[i - 1]}]
        change_voter(broker, "add_raft_voter", i, wanted, timeout=30_000, listeners=listeners)
    for i, wanted in ((1, [2, 3, 4]), (2, [3, 4])):
        change_voter(broker, "remove_raft_voter", i, wanted)
    assert create_topic(broker)[1] == 0
    sleeper.start()
    assert create_topic(sleeper)[1] == 0, "its file and its log name only 1 and 2, who tell it of the others"
    for i in (1, 2):
        quorum.members[i].kill9()
    assert create_topic(sleeper)[1] == 0, "the majority no longer needs them"


def test_a_leader_killed_while_kraft_version_is_raised_leaves_one_quorum(quorum):
    """All nodes agree afterwards, on the old level or the new one, and asking again raises it."""
    quorum.combined(3)
    quorum.start()
    first = read_leader(quorum.members[1])
    other = quorum.other(first)

    def ask():
        with contextlib.suppress(OSError):
            update_kraft_version(other, 1)

    asking = threading.Thread(target=ask)
    asking.start()
    quorum.members[first].kill9()
    read_leader(other, but=first)
    quorum.start(first)
    asking.join()
    wait_for(lambda: update_kraft_version(other, 1)[0] == 0, "every voter is there again")
    wait_for(lambda: all(kraft_version_at(member) == 1 for member in quorum.members.values()), "all know it")
    quorum_state = wait_for(lambda: described(other.port), "an answer")
    assert [voter.replica_id for voter in quorum_state.current_voters] == [1, 2, 3]
    assert all(any(voter.replica_directory_id.bytes) for voter in quorum_state.current_voters), (
        "each with its directory"
    )
    assert create_topic(other)[1] == 0

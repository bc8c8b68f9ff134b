"""kafka-metadata-quorum on a quorum that grows and shrinks: one controller at first, others found by its address."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.brokers import Broker
from compat.clients import JavaClient
from compat.clusters import changing_quorum
from compat.scripts import run_klamm

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PATIENCE_S = 200.0


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    made = changing_quorum(request.config.getoption("--broker"), tmp_path_factory.mktemp("quorum"), 3)
    try:
        for node in made:
            node.spawn()
        for node in made:
            node.wait_ready()
        yield made
    finally:
        for node in made:
            node.close()


Replicas = Callable[[], dict[int, tuple[str, str]]]


@pytest.fixture
def replicas(java: JavaClient, nodes: list[Broker]) -> Replicas:
    """Directory id and status of every replica, as the tool prints them at the last node; none without a leader."""

    def describe() -> dict[int, tuple[str, str]]:
        output = java.tool(QUORUM, "--bootstrap-server", nodes[2].bootstrap, "describe", "--replication")
        rows = re.findall(r"^(\d+)\s+(\S{22})\s.*\b(Leader|Follower|Observer)\b", output.out, re.MULTILINE)
        return {int(node_id): (directory, status) for node_id, directory, status in rows}

    return describe


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"


def statuses(replicas: Replicas) -> dict[int, str]:
    return {node_id: status for node_id, (_, status) in replicas().items()}


def test_one_controller_and_two_that_watch(replicas: Replicas) -> None:
    wait_for(lambda: statuses(replicas) == {1: "Leader", 2: "Observer", 3: "Observer"}, "two observers")


def test_controllers_are_added(java: JavaClient, nodes: list[Broker], replicas: Replicas) -> None:
    for node in nodes[1:]:
        config = str(Path(node.folder) / "node.properties")
        where = ("--command-config", config, "--bootstrap-server", nodes[0].bootstrap)
        added = java.tool(QUORUM, *where, "add-controller")
        assert added.exit == 0, added.text
        assert "Added controller" in added.out, added.text
    wait_for(lambda: statuses(replicas) == {1: "Leader", 2: "Follower", 3: "Follower"}, "three voters")
    config = str(Path(nodes[1].folder) / "node.properties")
    again = java.tool(QUORUM, "--command-config", config, "--bootstrap-server", nodes[0].bootstrap, "add-controller")
    assert again.exit == 1
    assert "DuplicateVoter" in again.text


def test_our_script_removes_and_adds_one(nodes: list[Broker], replicas: Replicas) -> None:
    """By brokers and by controllers, one that leads and one that does not."""
    directory, _ = replicas()[3]
    which = ("--controller-id", "3", "--controller-directory-id", directory)
    for node in nodes[:2]:
        controller = ("--bootstrap-controller", f"127.0.0.1:{node.controller_port}")
        removed = run_klamm("kafka-metadata-quorum", *controller, "remove-controller", *which)
        assert removed.exit == 0, removed.text
        assert removed.out == f"Removed KRaft controller 3 with directory id {directory}\n"
        wait_for(lambda: statuses(replicas) == {1: "Leader", 2: "Follower", 3: "Observer"}, "two voters")
        config = ("--command-config", str(Path(nodes[2].folder) / "node.properties"))
        added = run_klamm("kafka-metadata-quorum", "--bootstrap-server", node.bootstrap, *config, "add-controller")
        assert added.exit == 0, added.text
        assert added.out.startswith(f"Added controller 3 with directory id {directory} and endpoints: CONTROLLER://")
        wait_for(lambda: statuses(replicas) == {1: "Leader", 2: "Follower", 3: "Follower"}, "three voters")
    again = run_klamm("kafka-metadata-quorum", "--bootstrap-server", nodes[0].bootstrap, *config, "add-controller")
    assert again.exit == 1
    assert "DuplicateVoter" in again.text
    status = ("--bootstrap-controller", f"127.0.0.1:{nodes[2].controller_port}", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\n", run_klamm("kafka-metadata-quorum", *status).out)


def test_the_leader_is_removed(java: JavaClient, nodes: list[Broker], replicas: Replicas) -> None:
    directory, _ = replicas()[1]
    where = ("--bootstrap-controller", f"127.0.0.1:{nodes[1].controller_port}")
    which = ("--controller-id", "1", "--controller-directory-id", directory)
    removed = java.tool(QUORUM, *where, "remove-controller", *which)
    assert removed.exit == 0, removed.text
    wait_for(lambda: sorted(statuses(replicas).values()) == ["Follower", "Leader", "Observer"], "a new leader")
    assert statuses(replicas)[1] == "Observer"
    nodes[0].kill9()
    status = java.tool(QUORUM, "--bootstrap-server", nodes[2].bootstrap, "describe", "--status")
    assert status.exit == 0, status.text
    assert re.search(r"LeaderId:\s+[23]\b", status.out), status.text

"""Clusters with SASL_SSL between nodes and on the quorum: three nodes of Klamm, and Apache Kafka and Klamm mixed.

Nodes log in to each other with SCRAM and to the quorum with PLAIN. Kafka's own tools are the clients.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat.brokers import KINDS, Broker
from compat.clients import JavaClient, ToolOutput
from compat.scripts import MAINS
from harness.cluster import KlammCluster
from harness.secured import ADMIN, LISTENER, MECHANISM, ClusterSecurity
from harness.wire import unique

USER = "alice"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PATIENCE_S = 120.0
ROOT = Path(__file__).resolve().parents[1]


class Tools:
    """Kafka's tools as a user of a secured cluster."""

    def __init__(self, java: JavaClient, security: ClusterSecurity) -> None:
        self._java = java
        self._security = security

    def settings(self, user: str) -> str:
        """A file of client settings."""
        path = self._security.folder / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={SCRAM} username="{user}" password="{self._security.password(user)}";\n'
            "ssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._security.authority}\n"
        )
        return str(path)

    def run(self, tool: str, bootstrap: str, *args: str, user: str = ADMIN) -> ToolOutput:
        """Run a tool with the settings of a user."""
        where = ("--bootstrap-server", bootstrap, "--command-config", self.settings(user))
        return self._java.tool(MAINS[tool], *where, *args)

    def write(self, bootstrap: str, topic: str, count: int, user: str = ADMIN) -> ToolOutput:
        """Write records that all replicas in sync must have."""
        size = ("--num-records", str(count), "--record-size", "100", "--throughput", "-1")
        properties = ("--command-property", "acks=all", "--command-property", "request.timeout.ms=10000")
        return self.run("kafka-producer-perf-test", bootstrap, "--topic", topic, *size, *properties, user=user)

    def read(self, bootstrap: str, topic: str, count: int, user: str = ADMIN) -> ToolOutput:
        """Read records from the beginning."""
        limits = ("--from-beginning", "--max-messages", str(count), "--timeout-ms", "30000")
        return self.run("kafka-console-consumer", bootstrap, "--topic", topic, *limits, user=user)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def check_rights(tools: Tools, granted_on: str, enforced_on: list[str], topic: str) -> None:
    """A right that one broker was asked for is in force on all of them, and so is its end."""
    # The tool describes the configs of topics, too.
    rights = ("--operation", "Describe", "--operation", "DescribeConfigs")
    entries = ("--allow-principal", f"User:{USER}", *rights, "--topic", topic)

    def may_describe(bootstrap: str) -> bool:
        shown = tools.run("kafka-topics", bootstrap, "--describe", "--topic", topic, user=USER)
        return "PartitionCount" in shown.out

    for action, expected in (("--add", True), ("--remove", False)):
        done = tools.run("kafka-acls", granted_on, action, *entries, *(() if expected else ("--force",)))
        assert done.exit == 0, done.text
        for bootstrap in enforced_on:
            wait_for(lambda b=bootstrap, e=expected: may_describe(b) is e, f"{action} on {bootstrap}")


# --- three nodes of Klamm --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, java: JavaClient) -> Iterator[tuple[KlammCluster, Tools]]:
    folder = tmp_path_factory.mktemp("three")
    security = ClusterSecurity(folder / "certs", (USER,))
    settings = {"broker.session.timeout.ms": "6000", "replica.lag.time.max.ms": "6000"}
    with KlammCluster(folder, overrides=settings, security=security) as cluster:
        yield cluster, Tools(java, security)


def test_three_nodes_replicate_over_sasl_ssl(three: tuple[KlammCluster, Tools]) -> None:
    cluster, tools = three
    topic = unique()
    where = cluster.nodes[0].bootstrap
    done = tools.run("kafka-topics", where, "--create", "--topic", topic, "--partitions", "3")
    assert done.exit == 0, done.text
    done = tools.write(where, topic, 3000)
    assert "3000 records sent" in done.out, done.text
    cluster.node(2).kill9()
    left = cluster.node(3).bootstrap
    done = tools.write(left, topic, 1000)
    assert "1000 records sent" in done.out, done.text
    assert len(tools.read(left, topic, 4000).out.splitlines()) == 4000
    cluster.node(2).start()
    under = ("--describe", "--topic", topic, "--under-replicated-partitions")
    wait_for(lambda: "Partition:" not in tools.run("kafka-topics", left, *under).out, "all replicas are in sync")


def test_the_quorum_of_three_nodes(three: tuple[KlammCluster, Tools]) -> None:
    cluster, tools = three
    done = tools.run("kafka-metadata-quorum", cluster.nodes[0].bootstrap, "describe", "--status")
    assert done.exit == 0, done.text
    assert "LeaderId:" in done.out
    assert "CurrentVoters:" in done.out


def test_rights_on_three_nodes(three: tuple[KlammCluster, Tools]) -> None:
    cluster, tools = three
    topic = unique()
    first = cluster.nodes[0].bootstrap
    assert tools.run("kafka-topics", first, "--create", "--topic", topic).exit == 0
    check_rights(tools, first, [node.bootstrap for node in cluster.nodes], topic)
    refused = tools.write(first, topic, 1, user=USER)
    assert "authoriz" in refused.text.lower(), refused.text


# --- Apache Kafka and Klamm ------------------------------------------------------------------------------------------

CONTROLLER, KAFKA, KLAMM = 1, 2, 3


@pytest.fixture(scope="module", params=sorted(KINDS))
def mixed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java: JavaClient
) -> Iterator[tuple[dict[int, Broker], Tools]]:
    """Node 1 decides, node 2 is Kafka's broker, node 3 is Klamm's; all of them read the same settings."""
    folder = tmp_path_factory.mktemp(f"mixed-sasl-{request.param}")
    security = ClusterSecurity(folder / "certs", (USER,))
    kinds = {CONTROLLER: request.param, KAFKA: "kafka", KLAMM: "klamm"}
    nodes = {node_id: KINDS[kind](folder / str(node_id)) for node_id, kind in kinds.items()}
    credentials = [
        flag
        for user in ("node", ADMIN, USER)
        for flag in ("--add-scram", f"{MECHANISM}=[name={user},password={security.password(user)}]")
    ]
    for node_id, node in nodes.items():
        decides = node_id == CONTROLLER
        listener = f"CONTROLLER://127.0.0.1:{node.controller_port}" if decides else f"{LISTENER}://{node.bootstrap}"
        node.format_flags = ("--ignore-formatted", *credentials)
        node.overrides = {
            **security.node_settings(),
            "process.roles": "controller" if decides else "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{nodes[CONTROLLER].controller_port}",
            "listeners": listener,
            "advertised.listeners": "" if decides else listener,
            "broker.session.timeout.ms": "6000",
            "replica.lag.time.max.ms": "6000",
        }
    try:
        for node in nodes.values():
            node.spawn()
        for node_id in (KAFKA, KLAMM):
            _wait_until_served(nodes[node_id], security)
        yield nodes, Tools(java, security)
    finally:
        for node in nodes.values():
            node.close()


def _wait_until_served(node: Broker, security: ClusterSecurity) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **security.client(ADMIN), "log_level": 0})

    def serves() -> bool:
        try:
            return len(admin.list_topics(timeout=2).brokers) == 2
        except KafkaException:
            assert node.process is not None
            assert node.process.poll() is None, node.log_tail()
            return False

    wait_for(serves, f"{node.kind} serves:\n{node.log_tail()}")


def test_kafka_and_klamm_copy_one_another_over_sasl_ssl(mixed: tuple[dict[int, Broker], Tools]) -> None:
    nodes, tools = mixed
    kafka, klamm = nodes[KAFKA].bootstrap, nodes[KLAMM].bootstrap
    topic = unique()
    assignment = f"{KAFKA}:{KLAMM},{KLAMM}:{KAFKA}"
    done = tools.run("kafka-topics", klamm, "--create", "--topic", topic, "--replica-assignment", assignment)
    assert done.exit == 0, done.text
    done = tools.write(kafka, topic, 2000)
    assert "2000 records sent" in done.out, done.text
    under = ("--describe", "--topic", topic, "--under-replicated-partitions")
    for bootstrap in (kafka, klamm):
        wait_for(lambda b=bootstrap: "Partition:" not in tools.run("kafka-topics", b, *under).out, "all are in sync")
        assert len(tools.read(bootstrap, topic, 2000).out.splitlines()) == 2000


def test_rights_that_one_kind_of_broker_was_asked_for_hold_on_the_other(
    mixed: tuple[dict[int, Broker], Tools],
) -> None:
    nodes, tools = mixed
    both = [nodes[KAFKA].bootstrap, nodes[KLAMM].bootstrap]
    for granted_on in both:
        topic = unique()
        assert tools.run("kafka-topics", granted_on, "--create", "--topic", topic).exit == 0
        check_rights(tools, granted_on, both, topic)


# --- the matrix of rights --------------------------------------------------------------------------------------------


def test_the_whole_matrix_of_rights_over_ssl_and_sasl() -> None:
    """`make test` tries a sample."""
    environment = {**os.environ, "KLAMM_MATRIX": "all"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/server/test_rights_protocols.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-4000:]

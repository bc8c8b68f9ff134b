"""Three real processes with an authorizer: ACLs made at one node are in force at all, clients log in with PLAIN."""

import time
from pathlib import Path

import pytest

from harness import KlammCluster, Wire, unique
from harness.access import TOPIC_DENIED
from harness.wire import batch
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.net.free_ports import free_ports
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

PATIENCE_S = 60.0
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    # Nodes connect to each other over PLAINTEXT.
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": f'{MODULE} required user_alice="one";',
    "auto.create.topics.enable": "false",
}


class SecuredCluster(KlammCluster):
    """Three nodes, each with one more listener, on which clients log in."""

    def __init__(self, folder: Path) -> None:
        ports = iter(free_ports("127.0.0.1", 3))
        self.sasl_ports: list[int] = []
        super().__init__(folder, overrides=SETTINGS)
        for planned in self.planned:
            port = next(ports)
            self.sasl_ports.append(port)
            path = Path(planned.properties)
            text = path.read_text().splitlines()
            lines = [f"{line},SASL://127.0.0.1:{port}" if line.startswith("listeners=") else line for line in text]
            path.write_text("\n".join(lines) + "\n")


def log_in(port: int) -> Wire:
    wire = Wire(port)
    assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    assert wire.call("sasl_authenticate", 1, auth_bytes=b"\0alice\0one").error_code == 0
    return wire


def test_acls_made_at_any_node_are_in_force_at_all(tmp_path: Path) -> None:
    with SecuredCluster(tmp_path) as cluster:
        for node in cluster.nodes:
            topic = unique()
            with Wire(node.port) as admin:
                admin.call(
                    "create_topics",
                    7,
                    topics=[{"name": topic, "num_partitions": 1, "replication_factor": 3}],
                    timeout=30_000,
                )
                # The partition's leader is any of the three.
                deadline = time.monotonic() + PATIENCE_S
                while (
                    leader := admin.call("metadata", 12, topics=[{"name": topic}]).topics[0].partitions[0]
                ).error_code:
                    assert time.monotonic() < deadline
                rule = {
                    "resource_type": AclResourceType.TOPIC,
                    "resource_name": topic,
                    "resource_pattern_type": PatternType.LITERAL,
                    "principal": "User:alice",
                    "host": "*",
                    "operation": AclOperation.WRITE,
                    "permission_type": AclPermission.ALLOW,
                }
                with log_in(cluster.sasl_ports[leader.leader_id - 1]) as alice:
                    assert alice.produce(topic, batch(b"v")).error_code == TOPIC_DENIED
                    assert admin.call("create_acls", 3, creations=[rule]).results[0].error_code == 0
                    while code := alice.produce(topic, batch(b"v")).error_code:
                        assert code == TOPIC_DENIED
                        assert time.monotonic() < deadline
        # Alice may create nothing, wherever the request arrives: the controller is one of the three nodes.
        for port in cluster.sasl_ports:
            with log_in(port) as alice:
                reply = alice.call(
                    "create_topics",
                    7,
                    topics=[{"name": "forbidden", "num_partitions": 1, "replication_factor": 1}],
                    timeout=30_000,
                )
                assert reply.topics[0].error_code == TOPIC_DENIED

"""Hostile requests of a client with hardly any rights, to a node with an authorizer, an audit topic and quotas.

What such a client asks for is refused, recorded and measured by names that it chooses: after all of it a denial must
still reach the audit topic, and memory must not have grown with the names.
"""

import json
import time
from pathlib import Path

from fuzz.campaign import PROBE_S, Campaign
from fuzz.requests import changed, long_name
from harness import KlammProcess, Wire, rows
from harness.access import PLAIN_MODULE
from harness.wire import request_bytes
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.net.free_ports import free_ports
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER

ADMIN, PASSWORD = "admin", "admin-secret"
HOSTILE = "User:ANONYMOUS"
AUDIT_TOPIC = "denials"
AUDIT_S = 60.0
"""How long a denial may take to the audit topic: thousands of others may be before it."""
QUOTAS = {
    "producer_byte_rate": 1e7,
    "consumer_byte_rate": 1e7,
    "request_percentage": 500.0,
    "controller_mutation_rate": 1000.0,
}
"""Of every client id of the hostile user: low enough to be measured, too high to make a connection wait for long."""
NAMES_BYTES_MAX = 2 << 20
"""Of all names of a request."""
_NAME_LISTS = (
    ("describe_groups", 5, "groups"),
    ("find_coordinator", 4, "coordinator_keys"),
    ("delete_groups", 2, "groups_names"),
    ("describe_transactions", 0, "transactional_ids"),
    ("consumer_group_describe", 0, "group_ids"),
)


class RightsProcess(KlammProcess):
    """A node whose nodes and admin log in; others are User:ANONYMOUS, which is no super user."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.open_port = free_ports("127.0.0.1", 2)
        jaas = f'{PLAIN_MODULE} required username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}";'
        self.overrides = {
            "listeners": f"SASL://127.0.0.1:{self.port},PLAINTEXT://127.0.0.1:{self.open_port},CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "SASL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": jaas,
            "listener.name.controller.plain.sasl.jaas.config": jaas,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN}",
            "klamm.audit.topic": AUDIT_TOPIC,
        }


class RightsCampaign(Campaign):
    """Requests of a client that may use one topic and one group, and has a quota."""

    def __init__(self, node: RightsProcess, seed: int, *, audit_topic: str = AUDIT_TOPIC) -> None:
        super().__init__(node, seed)
        self._open_port = node.open_port
        self._audit_topic = audit_topic
        self._read_to = 0
        """The end of what was read of the audit topic."""

    @property
    def port(self) -> int:
        return self._open_port

    @property
    def corpus(self) -> str:
        return "frames without rights"

    def _open_probe(self) -> Wire:
        wire = super()._open_probe()
        assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
        reply = wire.call("sasl_authenticate", 1, auth_bytes=f"\0{ADMIN}\0{PASSWORD}".encode())
        assert reply.error_code == 0, reply
        return wire

    def _prepare(self, probe: Wire, topic: str) -> None:
        # Bounded, so that what the client's denials fill is not taken for what they make the node keep in memory.
        probe.create_topic(self._audit_topic)
        grants = [
            (AclResourceType.TOPIC, topic, AclOperation.READ),
            (AclResourceType.TOPIC, topic, AclOperation.WRITE),
            (AclResourceType.GROUP, "g", AclOperation.READ),
        ]
        creations = [
            {
                "resource_type": resource_type,
                "resource_name": name,
                "resource_pattern_type": PatternType.LITERAL,
                "principal": HOSTILE,
                "host": "*",
                "operation": operation,
                "permission_type": AclPermission.ALLOW,
            }
            for resource_type, name, operation in grants
        ]
        results = probe.call("create_acls", 3, creations=creations).results
        assert {result.error_code for result in results} == {0}, results
        entity = [
            {"entity_type": "user", "entity_name": HOSTILE.removeprefix("User:")},
            {"entity_type": "client-id", "entity_name": None},
        ]
        ops = [{"key": key, "value": value, "remove": False} for key, value in QUOTAS.items()]
        reply = probe.call("alter_client_quotas", 1, entries=[{"entity": entity, "ops": ops}], validate_only=False)
        assert reply.entries[0].error_code == 0, reply

    def _special(self, frame: bytes, topic: str) -> tuple[str, list[bytes]]:
        """Many long names in one request, or a long client id."""
        source = self._source
        if source.random() < 0.3:
            return super()._special(frame, topic)
        api, version, field = source.choice(_NAME_LISTS)
        names, size, size_max = [], 0, source.randrange(NAMES_BYTES_MAX)
        while size < size_max and len(names) < 1000:
            names.append(long_name(source))
            size += len(names[-1].encode())
        client_id = long_name(source) if source.random() < 0.5 else "fuzz"
        request = request_bytes(api, version, 1, client_id, **{field: names})
        return "long names", [changed(source, request) if source.random() < 0.2 else request]

    def _check_node(self, probe: Wire, topic: str, before) -> None:
        super()._check_node(probe, topic, before)
        self._check_audit(probe)

    def _check_audit(self, probe: Wire) -> None:
        """Have a request denied until the denial is in the audit topic: the queue may be full, and drop some."""
        name = f"denied-{self.outcome.frames}-{self.outcome.connections}"
        deadline = time.monotonic() + AUDIT_S
        with Wire(self.port, timeout=PROBE_S) as wire:
            while True:
                reply = wire.call("describe_groups", 5, groups=[name])
                assert reply.groups[0].error_code != 0, reply
                for record in self._read_audit(probe):
                    if record.get("resource_name") == name:
                        return
                if time.monotonic() > deadline:
                    raise self._violation("a denial does not reach the audit topic")

    def _read_audit(self, probe: Wire) -> list[dict]:
        """The records of the audit topic that were not read yet; waits a little for the first one."""
        records = []
        while True:
            part = probe.fetch(self._audit_topic, self._read_to, max_wait=0 if records else 500)
            new = [row for row in rows(part.records) if row.offset >= self._read_to]
            if not new:
                return records
            self._read_to = new[-1].offset + 1
            records += [json.loads(row.value) for row in new]

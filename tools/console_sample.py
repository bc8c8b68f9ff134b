# ruff: noqa: INP001 - beside scripts
"""A small cluster with something on every page of the console, and a list of these pages.

For tests of all pages, for their pictures and for their first paints.
"""

import contextlib
import json
import random
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from klamm.client import TopicPartition
from klamm.client.admin.acl_types import AclBinding, ScramMechanism
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.pipeline.sql.known_homes import cluster_folder, data_root
from klamm.pipeline.sql.status import Home
from klamm.testing import Broker

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Of the brokers: ACLs need an authorizer."""
DRINKS = ("espresso", "mate", "green tea", "cocoa")
DEAD_LETTERS = "payments.dead_letters"
PIPELINE = "bank"
RECORDS = 300


@dataclass(frozen=True, slots=True)
class SamplePage:
    """A page below a cluster, the route that serves it, and a text that shows that it has content."""

    route: str
    path: str
    text: str


PAGES = {
    "overview": SamplePage("", "", "Needs attention"),
    "topics": SamplePage("/topics", "/topics", "orders"),
    "new-topic": SamplePage("/new-topic", "/new-topic", "Create topic"),
    "topic": SamplePage("/topics/{topic}", "/topics/orders", "Partition"),
    "messages": SamplePage(
        "/topics/{topic}/messages", "/topics/orders/messages?where=value.total+%3E+100", "50 records of"
    ),
    "message": SamplePage(
        "/topics/{topic}/messages/{partition}/{offset}", "/topics/orders/messages/0/7", "Partition 0, offset 7"
    ),
    "produce": SamplePage("/topics/{topic}/produce", "/topics/orders/produce", "Write"),
    "settings": SamplePage("/topics/{topic}/settings", "/topics/orders/settings?all=1", "retention.ms"),
    "topic-groups": SamplePage("/topics/{topic}/groups", "/topics/orders/groups", "billing"),
    "groups": SamplePage("/groups", "/groups", "billing"),
    "group": SamplePage("/groups/{group}", "/groups/billing", "Behind by"),
    "reset": SamplePage("/groups/{group}/reset", "/groups/billing/reset?to=earliest", "read again"),
    "brokers": SamplePage("/brokers", "/brokers", "Restart"),
    "broker": SamplePage("/brokers/{broker}", "/brokers/1", "log.dirs"),
    "reassignments": SamplePage("/reassignments", "/reassignments?plan=balance", "Under way"),
    "transactions": SamplePage("/transactions", "/transactions?all=1", "transfers"),
    "hanging-transactions": SamplePage("/hanging-transactions", "/hanging-transactions", "with an open transaction"),
    "schemas": SamplePage("/schemas", "/schemas", "payments-value"),
    "schema": SamplePage("/schemas/{subject}", "/schemas/payments-value", "Changes since version 1"),
    "new-schema": SamplePage("/new-schema", "/new-schema?subject=payments-value", "Check"),
    "pipelines": SamplePage("/pipelines", "/pipelines", PIPELINE),
    "pipeline": SamplePage("/pipelines/{pipeline}", f"/pipelines/{PIPELINE}", "totals"),
    "dead-letters": SamplePage(
        "/pipelines/{pipeline}/dead-letters/{stream}", f"/pipelines/{PIPELINE}/dead-letters/payments", "no number"
    ),
    "access": SamplePage("/access", "/access?principal=User:alice", "orders"),
    "audit": SamplePage("/audit", "/audit", "produce"),
}


def fill_cluster(broker: Broker, registry_url: str, replicas: int = 1) -> None:
    """Create topics, records, groups, schemas, users, rights and quotas."""
    schema_id = register_schemas(registry_url)
    chance = random.Random(7)  # noqa: S311 - the same records each time
    with broker.admin() as admin, broker.producer() as producer:
        for name, partitions in {"orders": 3, "payments": 3, "totals": 1, "copies": 1, DEAD_LETTERS: 1}.items():
            configs = {"retention.ms": "259200000"} if name == "orders" else {}
            admin.create_topic(name, num_partitions=partitions, replication_factor=replicas, configs=configs)
        for number in range(RECORDS):
            order = {
                "order": number,
                "drink": chance.choice(DRINKS),
                "total": round(chance.uniform(2, 240), 2),
                "customer": {"id": number % 7, "country": chance.choice(("AT", "CH", "DE"))},
            }
            key = f"customer-{number % 7}".encode()
            producer.send("orders", json.dumps(order).encode(), key, headers=[("trace", b"4711")])
            producer.send("payments", encode_payment(schema_id, number, paid=number % 3 > 0), str(number).encode())
        for number in range(4):
            producer.send(DEAD_LETTERS, b'{"order": "x%d"}' % number, b"k", headers=letter_headers(number))
        producer.flush()
        admin.alter_group_offsets("billing", {TopicPartition("orders", index): 20 for index in range(3)})
        admin.alter_group_offsets("fraud", {TopicPartition("payments", index): 40 for index in range(3)})
        fill_access(admin)


def fill_access(admin: Any) -> None:
    """Add a user, rights and a quota."""
    read, write = AclOperation.READ, AclOperation.WRITE
    admin.create_acls(
        [
            AclBinding(AclResourceType.TOPIC, "orders", "User:alice", operation, AclPermission.ALLOW, "*", pattern)
            for operation, pattern in ((read, PatternType.LITERAL), (write, PatternType.PREFIXED))
        ]
    )
    admin.alter_user_scram_credentials({("alice", ScramMechanism.SCRAM_SHA_512): "secret"})
    admin.alter_client_quotas({(("user", "alice"),): {"producer_byte_rate": 10 * 2**20}})


def letter_headers(number: int) -> list[tuple[str, bytes]]:
    """What a pipeline writes about a record that it could not read."""
    facts = {"stream": "payments", "topic": "payments", "partition": 0, "offset": number, "timestamp": 1000}
    facts["error"] = f"payments.order: 'x{number}' is no number"
    return [(f"dead_letter.{name}", str(value).encode()) for name, value in facts.items()]


def register_schemas(url: str) -> int:
    """Register two versions of a subject, and return the id of the second."""
    fields = [{"name": "order", "type": "long"}, {"name": "paid", "type": "boolean"}]
    first = {"type": "record", "name": "Payment", "fields": fields[:1]}
    second = {"type": "record", "name": "Payment", "fields": [fields[0], {**fields[1], "default": False}]}
    _register(url, "orders-key", '"string"')
    _register(url, "payments-value", json.dumps(first))
    return _register(url, "payments-value", json.dumps(second))


def _register(url: str, subject: str, schema: str) -> int:
    request = urllib.request.Request(  # noqa: S310 - http, as the caller says
        f"{url}/subjects/{subject}/versions",
        json.dumps({"schema": schema}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        return int(json.load(response)["id"])


def encode_payment(schema_id: int, number: int, *, paid: bool) -> bytes:
    """Return a payment in Confluent's form: a zero, the id of the schema, Avro."""
    zigzag, varint = number << 1, bytearray()
    while zigzag > 0x7F:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    return b"\0" + schema_id.to_bytes(4, "big") + bytes(varint) + bytes([paid])


@contextlib.contextmanager
def running_pipeline(broker: Broker, now_ms: int) -> Iterator[None]:
    """The status of a pipeline in the user's data folder, with its lock held as by the process that runs it."""
    with broker.admin() as admin:
        cluster_id = admin.describe_cluster().cluster_id
    home = Home(f"{data_root()}/{cluster_folder(cluster_id)}/{PIPELINE}")
    with home.hold_lock():
        home.write_status(pipeline_status(now_ms))
        yield


def pipeline_status(now_ms: int) -> dict[str, Any]:
    """Return a status with two queries, one of them failed."""
    graph = [
        {"name": "orders", "kind": "stream", "reads": [], "topic": "orders", "runs": False},
        {
            "name": "payments",
            "kind": "stream",
            "reads": [],
            "topic": "payments",
            "runs": False,
            "dead_letters": DEAD_LETTERS,
        },
        {"name": "totals", "kind": "table", "reads": ["orders", "payments"], "topic": "totals", "runs": True},
        {"name": "copies", "kind": "stream", "reads": ["totals"], "topic": "copies", "runs": True},
    ]
    queries = {
        "totals": {
            "state": "running",
            "rows_per_s": 220.5,
            "lag_records": 14,
            "lag_ms": 700,
            "late_rows": 3,
            "state_rows": 1234,
            "bad_records": {"payments": 4},
        },
        "copies": {
            "state": "failed",
            "rows_per_s": 0,
            "lag_records": 90,
            "lag_ms": 65_000,
            "error_gist": "column total: a number is too large for decimal(6, 2)",
            "advice": "klamm pipeline run bank.sql --rebuild copies",
            "error_ms": now_ms - 60_000,
        },
    }
    return {
        "state": "running",
        "pid": 4711,
        "started_ms": now_ms - 3_600_000,
        "updated_ms": now_ms,
        "error": None,
        "graph": graph,
        "queries": queries,
        "requests": {},
    }

"""The console over three nodes of the broker under test and of Apache Kafka: pages answer, changes arrive."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat import toolchain
from compat.clusters import BrokerCluster
from console.served import ServedConsole, Visit
from klamm.client import Admin, Consumer, Producer
from klamm.client.errors import GroupNotFoundError
from klamm.client.types import TopicPartition
from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from registry.conftest import RunningRegistry, running_registry

MOVED_S = 60
SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
OTHER_ROUTES = {
    "/login",
    "/static/{name}",
    "/health/live",
    "/c/{cluster}/topics/{topic}/messages/live",
    "/c/{cluster}/pipelines/{pipeline}",
    "/c/{cluster}/pipelines/{pipeline}/dead-letters/{stream}",
}
"""GET routes that need more than a cluster, or a browser."""
PAGES = {
    "/": "Overview",
    "/c/test": "Needs attention",
    "/c/test/topics": "orders",
    "/c/test/topics?q=ord&sort=-size": "orders",
    "/c/test/topics/orders": "Partition",
    "/c/test/topics/orders/messages": "50 records",
    "/c/test/topics/orders/messages?where=value.id+%3D%3D+7": "1 record of",
    "/c/test/topics/orders/messages?start=time&time=1h+ago": "customer-1",
    "/c/test/topics/orders/messages?key=customer-1": "the only one that can have this key",
    "/c/test/topics/orders/messages/0/0": "Partition 0, offset 0",
    "/c/test/topics/orders/messages/export": "customer-1",
    "/c/test/topics/orders/produce": "textarea",
    "/c/test/topics/orders/settings?all=1": "retention.ms",
    "/c/test/topics/orders/groups": "billing",
    "/c/test/groups": "billing",
    "/c/test/groups/billing": "Behind by",
    "/c/test/groups/billing/reset?to=earliest": "read again",
    "/c/test/brokers": "127.0.0.1",
    "/c/test/brokers/2": "127.0.0.1",
    "/c/test/reassignments?plan=balance": "Under way",
    "/c/test/transactions?all=1": "transfers",
    "/c/test/hanging-transactions": "1 with an open transaction",
    "/c/test/pipelines": "Pipelines",
    "/c/test/access?principal=User:alice": "Users with passwords",
    "/c/test/audit": "Audit",
    "/c/test/new-topic": "New topic",
    "/c/test/schemas": "bills-value",
    "/c/test/schemas/bills-value": "Changes since version 1",
    "/c/test/new-schema?subject=bills-value": "Check",
}
BILLS = [
    {"type": "record", "name": "Bill", "fields": [{"name": "id", "type": "long"}]},
    {"type": "record", "name": "Bill", "fields": [{"name": "id", "type": "long", "doc": "of the order"}]},
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        # Kafka too, whatever the broker under test is: the console is a client of both.
        kinds = dict.fromkeys((metafunc.config.getoption("--broker"), "kafka"))
        metafunc.parametrize("kind", list(kinds), scope="module")


@pytest.fixture(scope="module")
def cluster(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(kind, tmp_path_factory.mktemp("console"), heap_mb=256) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: BrokerCluster) -> Iterator[Admin]:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        yield admin


@pytest.fixture(scope="module")
def registry(cluster: BrokerCluster) -> Iterator[RunningRegistry]:
    """Klamm's registry, which keeps its schemas in a topic of the cluster."""
    with running_registry(cluster.bootstrap, "_schemas", "schema-registry") as registry:
        yield registry


@pytest.fixture(scope="module")
def console(cluster: BrokerCluster, admin: Admin, registry: RunningRegistry) -> Iterator[ServedConsole]:
    """A console over a cluster with records, a group that has members, and an open transaction."""
    servers = {"bootstrap.servers": cluster.bootstrap}
    admin.create_topic("orders", num_partitions=3, replication_factor=3)
    admin.create_topic("moved", num_partitions=1, replication_factor=1)
    with Producer(servers) as producer:
        for i in range(120):
            value = json.dumps({"id": i, "customer": f"customer-{i % 5}"}).encode()
            producer.send("orders", value, f"customer-{i % 5}".encode(), partition=i % 3)
        producer.flush()
    members = {**servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    with Consumer(members) as member, Producer({**servers, "transactional.id": "transfers"}) as transfers:
        member.subscribe(["orders"])
        while not member.poll(1.0):
            pass
        member.commit()
        transfers.init_transactions()
        transfers.begin_transaction()
        transfers.send("moved", b"open").result()
        settings = parse_settings('[audit]\ntopic = "console-audit"\n')
        for schema in BILLS:
            registry.register("bills-value", json.dumps(schema))
        clusters = (ConsoleCluster("test", cluster.bootstrap, registry_url=registry.url),)
        with ServedConsole(ConsoleConfig(clusters, settings, interval_s=600)) as console:
            console.collect()
            yield console
        transfers.abort_transaction()


@pytest.fixture
def visit(console: ServedConsole) -> Iterator[Visit]:
    visit = console.visitor()
    yield visit
    visit.client.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_answers(visit: Visit, page: str) -> None:
    assert PAGES[page] in visit.get(page)


def test_every_route_is_among_the_pages(console: ServedConsole) -> None:
    routes = {route.pattern for route in console.service.app.router.routes() if route.method == "GET"}
    patterns = [re.compile(re.sub(r"\{\w+\}", "[^/]+", route) + "$") for route in routes - OTHER_ROUTES]
    paths = [page.partition("?")[0] for page in PAGES]
    assert [pattern.pattern for pattern in patterns if not any(map(pattern.match, paths))] == []


def test_a_topic_is_created_changed_and_deleted(visit: Visit, admin: Admin) -> None:
    visit.post("/c/test/new-topic", "/c/test/new-topic", name="made", partitions="2", replicas="3")
    base = "/c/test/topics/made"
    assert "retention.ms is 3600000 now." in visit.post(
        f"{base}/settings?all=1", f"{base}/settings", setting="retention.ms", value="1h"
    )
    assert "made has 4 partitions now." in visit.post(base, f"{base}/grow", count="4", partitions="4")
    assert "Wrote 1 record" in visit.post(f"{base}/produce", f"{base}/produce", value="by hand")
    assert "by hand" in visit.get(f"{base}/messages")
    visit.post(base, f"{base}/delete", name="made")
    wait_until(lambda: "made" not in {topic.name for topic in admin.list_topics()})
    assert "change setting" in visit.get("/c/test/audit")


def test_records_are_written_with_a_schema_that_is_deleted_then(visit: Visit, registry: RunningRegistry) -> None:
    visit.post("/c/test/new-topic", "/c/test/new-topic", name="bills", partitions="1", replicas="3")
    base = "/c/test/topics/bills"
    visit.post(f"{base}/produce", f"{base}/produce", value='{"id": 4711}', value_schema="newest")
    assert "bills-value v2" in visit.get(f"{base}/messages")
    subject = "/c/test/schemas/bills-value"
    assert "bills-value is FULL now." in visit.post(subject, f"{subject}/level", level="FULL")
    visit.post(subject, f"{subject}/delete", name="bills-value", version="1")
    assert registry.get("/subjects/bills-value/versions") == [2]
    assert "&#34;id&#34;: 4711" in visit.get(f"{base}/messages/0/0")


def test_a_user_and_a_quota_are_set(visit: Visit, admin: Admin) -> None:
    access = "/c/test/access"
    visit.post(access, f"{access}/users", user="bob", mechanism="SCRAM-SHA-512", password="pw", again="pw")
    assert "SCRAM-SHA-512 password of bob" in visit.get(access)
    visit.post(access, f"{access}/quotas", user="bob", key="producer_byte_rate", value="10MiB")
    assert admin.describe_client_quotas()[("user", "bob"),] == {"producer_byte_rate": 10 * 2**20}
    assert "10 MiB/s" in visit.get(access)
    visit.post(access, f"{access}/quotas/delete", user="bob", key="producer_byte_rate")
    visit.post(access, f"{access}/users/delete", user="bob", mechanism="SCRAM-SHA-512")
    assert "bob" not in visit.get(access)


def test_a_replica_is_moved_with_a_throttle(visit: Visit, admin: Admin) -> None:
    (before,) = replicas_of(admin, "moved")
    page = "/c/test/reassignments"
    drain = f"{page}?plan=drain&broker={before}&topic=moved"
    visit.post(drain, page, plan=visit.plan(drain), throttle="50MiB")
    wait_until(lambda: before not in replicas_of(admin, "moved") and not admin.list_partition_reassignments())
    assert "at most 50 MiB a second" in visit.get(page)
    visit.post(page, f"{page}/unthrottle")
    assert "Remove the throttle" not in visit.get(page)


def test_a_group_is_reset_and_taken_back(visit: Visit, admin: Admin) -> None:
    admin.alter_group_offsets("idle", {TopicPartition("orders", i): 10 for i in range(3)})
    page = "/c/test/groups/idle/reset"
    fields = {"_token": visit.token("/c/test/new-topic"), "plan": visit.plan(f"{page}?to=earliest")}
    moved = visit.client.post(page, data=fields).text
    assert "Moved idle in 3 partitions." in moved
    assert {at.offset for at in admin.list_group_offsets("idle").values()} == {0}
    (undo,) = re.findall(r'action="([^"]+/undo/[^"]+)"', moved)[:1]
    visit.post("/c/test/new-topic", undo)
    assert {at.offset for at in admin.list_group_offsets("idle").values()} == {10}


def test_a_share_group_of_kafka_has_a_page(
    cluster: BrokerCluster, console: ServedConsole, visit: Visit, kind: str
) -> None:
    """With Kafka's own share consumer; Klamm does not serve share groups."""
    if kind != "kafka":
        assert "share" not in visit.get("/c/test/groups").partition("<main")[2]
        return
    where = ["--bootstrap-server", cluster.bootstrap, "--topic", "orders", "--group", "workers"]
    command = [*toolchain.java_command(heap_mb=128, log_level="off"), SHARE_CONSUMER, *where]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: has_assignment(cluster, "workers"))
            console.collect()
            assert re.search(r"workers</a></th>.*?>share<", visit.get("/c/test/groups"))
            page = visit.get("/c/test/groups/workers")
            assert "console-share-consumer" in page
            assert "Start offset" in page
        finally:
            process.terminate()
            process.wait(MOVED_S)


def has_assignment(cluster: BrokerCluster, group: str) -> bool:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        try:
            members = admin.describe_share_groups([group])[group].members
        except GroupNotFoundError:
            return False
    return any(member.assignment for member in members)


def replicas_of(admin: Admin, topic: str) -> list[int]:
    return list(admin.describe_topics([topic])[topic].partitions[0].replicas)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + MOVED_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

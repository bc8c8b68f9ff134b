"""What a real node serves about itself: its loop, its disks, its connections, its quotas, its logins."""

import os
import socket
import ssl
import struct
import threading
import time

import pytest

from client.certificates import Authority
from harness import Wire, batch, unique
from harness.inprocess import NodeThread
from harness.members import wait_until
from harness.scrapes import Scrape, check_health
from harness.wire import produce_fields, request_bytes
from klamm.metadata.image import TopicsImage
from klamm.model.errors import StorageFailure
from klamm.server.metrics import collector
from klamm.testing import broker as make_broker

LOOP_THREAD = "klamm-broker"
PURGATORY = "kafka_server_delayedoperationpurgatory_purgatorysize"
SOCKETS = "kafka_server_socket_server_metrics_"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
SETTINGS = {
    "metrics.listeners": "127.0.0.1:0",
    "log.cleaner.backoff.ms": "100",
    "transaction.state.log.num.partitions": "1",
    "max.connections": "200",
}


@pytest.fixture(scope="module")
def broker():
    with make_broker(config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def address(broker):
    (address,) = broker.node.metrics_addresses
    return address


def connect(broker, **options):
    return Wire(int(broker.bootstrap.rpartition(":")[2]), **options)


def fetch_fields(topic, *, max_wait, max_bytes=1 << 20):
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    topics = [{"topic": topic, "partitions": [partition]}]
    return {"replica_id": -1, "max_wait": max_wait, "min_bytes": 1, "max_bytes": max_bytes, "topics": topics}


def test_every_sync_of_a_log_is_timed(broker, address):
    topic = broker.topic("synced", config={"flush.messages": "1"})
    before = Scrape(address)
    with broker.producer(linger_ms=0) as producer:
        for _ in range(5):
            producer.send(topic, b"x", partition=0)
            producer.flush()
    after = Scrape(address)
    name = "klamm_log_sync_seconds"
    assert after.value(f"{name}_count") >= before.value(f"{name}_count") + 5
    assert after.value(f"{name}_sum") > before.value(f"{name}_sum")
    flushes = "kafka_log_logflushstats_logflushrateandtimems_total"
    assert after.value(flushes) == after.value(f"{name}_count")


def test_a_loop_that_is_held_up_is_late(broker, address):
    name = "klamm_loop_lag_seconds_sum"
    before = Scrape(address).value(name)
    # Longer than the second between two ticks: one of them is late by some of it.
    broker.node.services.loop.call_soon_threadsafe(time.sleep, 1.3)
    wait_until(lambda: Scrape(address).value(name) >= before + 0.25, what="no tick was late")


def test_turns_of_the_loop_are_sampled(broker, address):
    topic = broker.topic("turns")
    with connect(broker) as wire:
        for _ in range(100):
            wire.produce(topic, batch(b"x"))
    scrape = Scrape(address)
    assert scrape.value("klamm_loop_turn_seconds_count") > 0
    assert scrape.value("klamm_loop_slowest_turn_seconds") > 0
    mean = scrape.value("klamm_loop_turn_seconds_sum") / scrape.value("klamm_loop_turn_seconds_count")
    assert scrape.value("klamm_loop_slowest_turn_seconds") >= mean
    busy = scrape.value("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent")
    assert 0 <= busy <= 1


def test_passes_of_the_cleaner_are_counted(broker, address):
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "50",
    }
    topic = broker.topic("compacted", config=config)
    before = Scrape(address).value("klamm_cleaner_passes_total")

    def is_cleaned():
        with broker.producer(linger_ms=0) as producer:
            producer.send(topic, b"x", key=b"k", partition=0)
            producer.flush()
        return Scrape(address).value("klamm_cleaner_passes_total") > before

    wait_until(is_cleaned, what="no pass of the cleaner was counted")
    scrape = Scrape(address)
    assert scrape.value("kafka_log_logcleanermanager_uncleanable_partitions_count") == 0
    assert scrape.value("klamm_cleaner_running") in (0, 1)
    assert 0 <= scrape.value("kafka_log_logcleanermanager_max_dirty_percent") <= 100


def test_the_space_of_log_directories_is_that_of_their_devices(broker, address):
    (log_dir,) = broker.node.services.logs.dirs
    space = os.statvfs(log_dir.path)
    scrape = Scrape(address)
    assert scrape.value("klamm_log_dir_total_bytes", path=log_dir.path) == space.f_blocks * space.f_frsize
    assert scrape.value("klamm_log_dir_usable_bytes", path=log_dir.path) > 0
    assert scrape.value("kafka_log_logmanager_offlinelogdirectorycount") == 0


@pytest.mark.parametrize("path", ["/health/cluster", "/ready/cluster"])
def test_the_health_of_a_cluster_is_counted_beside_the_loop(broker, address, monkeypatch, path):
    threads = set()
    count = TopicsImage.partitions

    def partitions(image):
        threads.add(threading.current_thread().name)
        return count(image)

    broker.topic("counted", partitions=3)
    monkeypatch.setattr(TopicsImage, "partitions", partitions)
    status, health = check_health(address, path)
    assert (status, health["offline_partitions"]) == (200, 0)
    assert health["partitions"] >= 3
    assert LOOP_THREAD in {thread.name for thread in threading.enumerate()}
    assert threads
    assert LOOP_THREAD not in threads


def test_a_failed_log_directory_is_counted_and_makes_the_node_unhealthy(tmp_path):
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    overrides = [f"log.dirs={','.join(dirs)}", "metrics.listeners=127.0.0.1:0"]
    with NodeThread(tmp_path, *overrides) as running, Wire(running.port) as wire:
        topic = {"name": "t", "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
        wire.call("create_topics", 5, topics=[topic], timeout=30_000, validate_only=False)
        (address,) = running.node.metrics_addresses
        wait_until(lambda: len(Scrape(address).labels("kafka_log_log_size")) == 4)

        def fail(node):
            metadata_dir = node.config.metadata_log_dir
            log_dir = next(log_dir for log_dir in node.services.logs.dirs if log_dir.path != metadata_dir)
            node.services.logs.fail_dir(log_dir, StorageFailure("input/output error"))
            return log_dir.path

        path = running.run(fail)
        scrape = Scrape(address)
        assert scrape.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert scrape.find("klamm_log_dir_total_bytes", path=path) is None
        status, health = check_health(address, "/health")
        assert status == 503
        assert health["problems"] == [f"log directory {path} failed: input/output error"]
        assert scrape.value("kafka_server_replicamanager_offlinereplicacount") == 2


def test_connections_above_a_limit_are_counted_by_its_reason(tmp_path):
    overrides = ["metrics.listeners=127.0.0.1:0", "max.connections.per.ip=3"]
    with NodeThread(tmp_path, *overrides) as running:
        (address,) = running.node.metrics_addresses
        sockets = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(6)]
        try:
            wait_until(lambda: Scrape(address).value("klamm_connections_refused_total", reason="ip_limit") >= 3)
            assert Scrape(address).sum(SOCKETS + "connection_count", listener="PLAINTEXT") == 3
        finally:
            for sock in sockets:
                sock.close()


def test_a_fetch_that_waits_for_records_is_in_the_purgatory(broker, address):
    topic = broker.topic("empty")
    with connect(broker) as wire:
        wire.send("fetch", 12, **fetch_fields(topic, max_wait=20_000))
        wait_until(lambda: Scrape(address).value(PURGATORY, delayedOperation="Fetch") == 1)
        with connect(broker) as producer:
            producer.produce(topic, batch(b"x"))
        wire.receive("fetch", 12)
    scrape = Scrape(address)
    assert scrape.value(PURGATORY, delayedOperation="Fetch") == 0
    assert scrape.value("klamm_request_seconds_count", request="Fetch", phase="remote") >= 1


def test_requests_behind_others_of_a_turn_have_a_queue_time(broker, address):
    name, labels = "klamm_request_seconds_sum", {"request": "DescribeCluster", "phase": "queue"}
    with connect(broker) as wire:
        for _ in range(20):
            wire.send("describe_cluster", 1, endpoint_type=1)
        for _ in range(20):
            wire.receive("describe_cluster", 1)
    scrape = Scrape(address)
    assert scrape.value("klamm_request_seconds_count", **labels) == 20
    # All came with one or a few reads, so that most waited for others.
    assert scrape.value(name, **labels) > 0
    phase = "kafka_network_requestmetrics_requestqueuetimems_count"
    assert scrape.value(phase, request="DescribeCluster") == 20


def test_a_client_that_does_not_read_has_a_send_time(broker, address):
    topic = broker.topic("large")
    labels = {"request": "Fetch", "phase": "send"}
    before = Scrape(address).find("klamm_request_seconds_count", **labels) or 0
    with connect(broker) as wire:
        for _ in range(16):
            wire.produce(topic, batch(b"x" * 900_000))
        size = 16 << 20
        for _ in range(4):
            wire.send("fetch", 12, **fetch_fields(topic, max_wait=0, max_bytes=size))
        time.sleep(0.2)  # the time that is to be measured: nothing is read meanwhile
        for _ in range(4):
            wire.receive("fetch", 12)
    wait_until(lambda: (Scrape(address).find("klamm_request_seconds_count", **labels) or 0) > before)
    assert Scrape(address).value("klamm_request_seconds_sum", **labels) >= 0.1


def test_requests_of_a_muted_connection_are_in_the_queue(broker, address):
    topic, client = broker.topic("muted"), unique("muted")
    with broker.admin() as admin:
        admin.alter_client_quotas({(("client-id", client),): {"producer_byte_rate": 1_000.0}})
    quota = {"user": "", "client_id": client, "ip": "", "quota": "producer_byte_rate"}
    wait_until(lambda: Scrape(address).find("klamm_quota_limit", **quota) == 1_000)
    assert Scrape(address).value("kafka_network_requestchannel_requestqueuesize") == 0
    with connect(broker, client_id=client, timeout=60) as wire:
        # More than the quota of a whole window, and two requests behind it in one read.
        frames = [
            request_bytes("produce", 9, 1, client, **produce_fields(topic, batch(b"x" * 12_000))),
            *(request_bytes("metadata", 12, number, client, topics=[]) for number in (2, 3)),
        ]
        wire.sock.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        wait_until(lambda: Scrape(address).value("kafka_network_requestchannel_requestqueuesize") == 2)
        scrape = Scrape(address)
        assert scrape.value("klamm_quota_rate", **quota) > 1_000
        assert scrape.value("klamm_quota_entity_throttle_seconds_total", **quota) > 0
        for name in ("produce", "metadata", "metadata"):
            wire.receive(name, 9 if name == "produce" else 12)
    assert Scrape(address).value("kafka_network_requestchannel_requestqueuesize") == 0


def test_open_and_stuck_transactions_are_counted(broker, address, monkeypatch):
    topic = broker.topic("transactional")
    with broker.producer(transactional_id=unique("txn")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.flush()
        scrape = Scrape(address)
        assert scrape.value("klamm_transactional_ids") >= 1
        assert scrape.value("klamm_transactions_open") == 1
        assert scrape.value("klamm_transactions_stuck") == 0
        assert scrape.value("klamm_partition_transactions_open") == 1
        # As if its timeout and the minute beyond it were over.
        monkeypatch.setattr(collector, "STUCK_MS", -3_600_000)
        assert Scrape(address).value("klamm_transactions_stuck") == 1
        producer.commit_transaction()
    wait_until(lambda: Scrape(address).value("klamm_transactions_open") == 0)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    files = authority.issue("broker", "127.0.0.1", "localhost")
    keystore = folder / "keystore.pem"
    with open(files.key) as key, open(files.certificate) as certificate:
        keystore.write_text(key.read() + certificate.read())
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,TLS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={keystore}",
        "sasl.enabled.mechanisms=PLAIN",
        f"listener.name.sasl.plain.sasl.jaas.config={JAAS}",
        "connection.failed.authentication.delay.ms=0",
        "metrics.listeners=127.0.0.1:0",
    )
    with NodeThread(tmp_path_factory.mktemp("node"), *overrides) as running:
        yield running, authority


def log_in(port, password):
    with Wire(port) as wire:
        wire.call("sasl_handshake", 1, mechanism="PLAIN")
        return wire.call("sasl_authenticate", 2, auth_bytes=f"\0alice\0{password}".encode()).error_code


def test_logins_are_counted_by_listener(secured):
    running, _ = secured
    (address,) = running.node.metrics_addresses
    port = running.node.addresses["SASL"][1]
    evictions = Scrape(address).value("klamm_login_evictions_total")
    assert log_in(port, "secret") == 0
    assert log_in(port, "wrong") == 58
    with Wire(port) as wire:
        # No request of a login.
        wire.send("metadata", 12, topics=[])
        assert wire.is_closed_by_peer()
    labels = {"listener": "SASL", "networkProcessor": "0"}
    scrape = Scrape(address)
    assert scrape.value(SOCKETS + "successful_authentication_total", **labels) == 1
    assert scrape.value(SOCKETS + "failed_authentication_total", **labels) == 2
    assert scrape.value("klamm_login_evictions_total") == evictions


def test_tls_handshakes_that_fail_are_counted(secured):
    running, authority = secured
    (address,) = running.node.metrics_addresses
    port = running.node.addresses["TLS"][1]
    with Wire(port) as wire:
        wire.sock.sendall(b"no handshake at all, and long enough to be one")
        assert wire.is_closed_by_peer()
    context = ssl.create_default_context(cafile=authority.path)
    with socket.create_connection(("127.0.0.1", port)) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1"):
        pass
    scrape = Scrape(address)
    assert scrape.value("klamm_tls_handshake_failures_total", listener="TLS", reason="handshake") == 1
    assert scrape.value(SOCKETS + "failed_authentication_total", listener="TLS", networkProcessor="0") == 1


def test_connections_that_give_way_before_their_login_are_counted(secured):
    running, _ = secured
    (address,) = running.node.metrics_addresses
    port = running.node.addresses["SASL"][1]
    budget = running.node._security._budget
    before, limit = Scrape(address).value("klamm_login_evictions_total"), budget._bytes_max
    running.run(lambda _node: setattr(budget, "_bytes_max", 100_000))
    sockets = []
    try:
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        wait_until(lambda: Scrape(address).value("klamm_login_evictions_total") > before)
    finally:
        running.run(lambda _node: setattr(budget, "_bytes_max", limit))
        for sock in sockets:
            sock.close()

"""Loads about security, beside Apache Kafka: TLS, logins, 10,000 ACLs, and peers that do harm by doing nothing.

All run against a second node of the same kind, with listeners of every protocol and an authorizer; both kinds read the
same settings and PEM files.
"""

import itertools
import json
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks import acls, loaders
from benchmarks.loads import LIMIT_S, PARTITIONS, Bench, Load, Reach, Sample, with_rates
from benchmarks.machine import cpu_seconds
from compat.brokers import Broker, free_port
from klamm import Admin
from klamm.cli.certs import issue, make_authority
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER

USER, PASSWORD = "alice", "alice-secret"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
"""Kafka does not start a SASL listener without a login module; it names no user, since the node never logs in."""
ACLS = 10_000
ACL_CHUNK = 1_000
"""Entries per CreateAcls request."""
IDLE_PEERS = 1_000
SLOW_READERS = 20
FETCHES = 5
"""Requests of a slow reader that wait for their answers."""
QUIET_S = 0.3
ROUNDS = 3
CLIENT_PROCESSES = 2
BESIDE = "p99 alone : beside"
DECISION = "1 us : decision"
ACCURACY = "accuracy of the rate"
QUOTA_BYTES = 5_000_000
"""Produced per second by a client with a quota."""
QUOTA_WINDOW_S = 11
"""quota.window.num samples of a second."""
QUOTA_WINDOWS = 6


class SecuredNode:
    """A node with PLAINTEXT, SSL and SASL_SSL listeners."""

    def __init__(self, bench: Bench) -> None:
        folder = bench.folder / f"secured-{bench.kind.kind}"
        certs = str(folder / "certs")
        make_authority(certs)
        issue(certs, "node", ("127.0.0.1", "localhost"))
        self.authority = f"{certs}/ca.pem"
        self._topics: dict[str, str] = {}
        """The present topic of each purpose."""
        self._numbers = itertools.count()
        self.broker: Broker = bench.kind(folder / "node", heap_mb=1024)
        ports = {"SSL": free_port(), "SASL_SSL": free_port()}
        self.ports = {"PLAINTEXT": self.broker.port, **ports}
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        self.broker.overrides = {
            "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{self.broker.controller_port}"]),
            "advertised.listeners": ",".join(addresses),
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in self.ports)
            + ",CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{certs}/node.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": SCRAM_LOGIN,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            # Topics without an entry are free: all loads but that of the ACLs.
            "allow.everyone.if.no.acl.found": "true",
            "log.segment.delete.delay.ms": "100",
        }
        self.broker.start()
        bench.side_nodes["secured"] = self.broker
        self.admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        for future in self.admin.alter_user_scram_credentials([upsertion]).values():
            future.result(30)

    def client(self, protocol: str) -> dict[str, str]:
        """Settings of librdkafka, in the spelling of `loaders.rd`."""
        settings = {"security_protocol": protocol, "ssl_ca_location": self.authority}
        if protocol == "SASL_SSL":
            settings |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER, "sasl_password": PASSWORD}
        return settings

    def fresh_topic(self, purpose: str, partitions: int = PARTITIONS) -> str:
        """An empty topic; the last one of this purpose is deleted.

        Under a new name: a broker of Kafka that still has the old topic's partitions answers for them, and refuses the
        first requests for the new ones with NOT_LEADER_OR_FOLLOWER.
        """
        old = self._topics.get(purpose)
        name = self._topics[purpose] = f"{purpose}-{next(self._numbers)}"
        self._create(name, partitions)
        if old is not None:
            with suppress(KafkaException):
                self.admin.delete_topics([old])[old].result(30)
        return name

    def topic_of(self, purpose: str) -> str | None:
        """The topic of a purpose; None before the first."""
        return self._topics.get(purpose)

    def _create(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
            except KafkaException as error:
                # The one of this name is still being deleted.
                if time.monotonic() > deadline:
                    raise loaders.LoadFailed(f"{name} cannot be created: {error}") from error
                time.sleep(0.05)
                continue
            break
        # The controller has created it; its leaders may not have heard of it yet.
        partitions_of = [TopicPartition(name, partition) for partition in range(partitions)]
        while True:
            offsets = self.admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions_of})
            try:
                for future in offsets.values():
                    future.result(30)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise loaders.LoadFailed(f"{name} has partitions without a leader: {error}") from error
                time.sleep(0.05)
                continue
            return


_nodes: dict[int, SecuredNode] = {}
"""By the broker of a bench."""


def node_of(bench: Bench) -> SecuredNode:
    """The secured node of a bench, started once; a Java process gets faster with time."""
    key = bench.broker.pid
    if key not in _nodes:
        _nodes[key] = SecuredNode(bench)
    return _nodes[key]


@contextmanager
def measured(bench: Bench, node: SecuredNode, sample: Sample) -> Iterator[None]:
    """CPU of the secured node over the body."""
    bench.cache.fill()
    before = cpu_seconds(node.broker.pid)
    yield
    sample["cpu_s"] = cpu_seconds(node.broker.pid) - before


def produce(protocol: str, total: float = 0.5e9, record_bytes: int = 1000) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        node = node_of(bench)
        topic = node.fresh_topic("tls")
        records = bench.count(total / record_bytes)
        sample: Sample = {}
        what = (f"127.0.0.1:{node.ports[protocol]}", topic, PARTITIONS, record_bytes, 1_000_000, records, LIMIT_S)
        with measured(bench, node, sample):
            result = loaders.rd("produce", *what, timeout_s=LIMIT_S, acks=1, linger_ms=5, **node.client(protocol))
        return with_rates(sample, result)

    return run


def consume(protocol: str, total: float = 0.5e9, record_bytes: int = 1000) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        node = node_of(bench)
        records = bench.count(total / record_bytes)
        topic = node.fresh_topic("tls-read")
        what = (node.broker.bootstrap, topic, PARTITIONS, record_bytes, 1_000_000, records, LIMIT_S)
        loaders.rd("produce", *what, timeout_s=LIMIT_S, acks=1, linger_ms=5)
        sample: Sample = {}
        with measured(bench, node, sample):
            result = loaders.rd(
                *("consume", f"127.0.0.1:{node.ports[protocol]}", topic, PARTITIONS, records, LIMIT_S),
                timeout_s=LIMIT_S,
                queued_min_messages=1_000_000,
                queued_max_messages_kbytes=262_144,
                **node.client(protocol),
            )
        return with_rates(sample, result)

    return run


def handshakes(bench: Bench) -> Sample:
    """Full handshakes from two processes; the clients cost more than the server, so its CPU is the sharper measure."""
    node = node_of(bench)
    count = bench.count(2_000)
    command = [sys.executable, "-m", "benchmarks.handshakes", str(node.ports["SSL"]), node.authority, str(count)]
    sample: Sample = {}
    with measured(bench, node, sample):
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(CLIENT_PROCESSES)]
        results = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    if any(result["failed"] for result in results):
        raise loaders.LoadFailed("handshakes without an answer")
    made = sum(result["count"] for result in results)
    return {
        **sample,
        "handshakes/s": made / max(result["seconds"] for result in results),
        "CPU us/handshake": sample["cpu_s"] / made * 1e6,
    }


def with_acls(bench: Bench) -> Sample:
    """One-record requests of a user whose right is one of 10,000 entries."""
    node = node_of(bench)
    topic = node.fresh_topic("guarded")
    # The scale shortens loads, not the number of entries: that is what is measured.
    _create_acls(node.admin, topic)
    sample: Sample = {}
    what = (node.broker.port, topic, PARTITIONS, 8, 1, 100, 1)
    with measured(bench, node, sample):
        result = loaders.raw("produce", *what, bench.count(50_000), LIMIT_S, 0, timeout_s=LIMIT_S)
    return with_rates(sample, result)


def _create_acls(admin: AdminClient, topic: str) -> None:
    entries = [_allow(topic, "User:ANONYMOUS", operation) for operation in (AclOperation.WRITE, AclOperation.DELETE)]
    entries += [
        _allow(f"team{number % 500}.topic{number}", f"User:u{number % 300}", AclOperation.READ)
        for number in range(ACLS - len(entries))
    ]
    for start in range(0, len(entries), ACL_CHUNK):
        for future in admin.create_acls(entries[start : start + ACL_CHUNK], request_timeout=60).values():
            future.result(60)


def _allow(topic: str, principal: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW
    )


def decision(_: Bench) -> Sample:
    """The decision alone, in the same process."""
    return {DECISION: 1 / acls.measure()["remembered"]}


def quota(bench: Bench) -> Sample:
    """What a producer reaches in a minute under a quota of its client id, beside the quota.

    Kafka lets a client use the quota of a whole window at once and then holds it until that leaves the window. So the
    first window, which begins with such a burst, is not counted, and the minute is one of whole windows.
    """
    node = node_of(bench)
    topic = node.fresh_topic("quota")
    with Admin(bootstrap_servers=node.broker.bootstrap) as admin:
        admin.alter_client_quotas({(("client-id", "bounded"),): {"producer_byte_rate": float(QUOTA_BYTES)}})
    producer = Producer({"bootstrap.servers": node.broker.bootstrap, "client.id": "bounded", "linger.ms": 5})
    value = bytes(1000)
    windows = bench.count(QUOTA_WINDOWS)
    before = _written_in(producer, value, node, topic, QUOTA_WINDOW_S)
    after = _written_in(producer, value, node, topic, windows * QUOTA_WINDOW_S)
    producer.purge()
    producer.flush(10)
    rate = (after - before) * len(value) / (windows * QUOTA_WINDOW_S)
    return {ACCURACY: 1 - abs(rate / QUOTA_BYTES - 1), "MB/s": rate / 1e6}


def _written_in(producer: Producer, value: bytes, node: SecuredNode, topic: str, seconds: float) -> int:
    """Produce for a time; returns the records that the log has then, of which a muted producer may not know."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.05)
    ends = node.admin.list_offsets({TopicPartition(topic, n): OffsetSpec.latest() for n in range(PARTITIONS)})
    return sum(end.result(30).offset for end in ends.values())


# --- peers that do nothing -------------------------------------------------------------------------------------------


def beside(harm: Callable[[SecuredNode, ExitStack], None]) -> Callable[[Bench], Sample]:
    """The p99 of a good client at a fixed rate, alone and beside other peers, in turns."""

    def run(bench: Bench) -> Sample:
        node = node_of(bench)
        topic = node.fresh_topic("good")
        alone, disturbed = [], []
        for _ in range(ROUNDS):
            # The peers of the round before have gone: their ends are not part of what a good client pays alone.
            _wait_until_quiet(node)
            alone.append(_p99(bench, node, topic))
            with ExitStack() as stack:
                harm(node, stack)
                # What they have begun is done: measured is what they cost by waiting, not by asking.
                _wait_until_quiet(node)
                disturbed.append(_p99(bench, node, topic))
        return {
            "p99 us alone": statistics.median(alone),
            "p99 us beside": statistics.median(disturbed),
            BESIDE: statistics.median(alone) / statistics.median(disturbed),
        }

    return run


def _wait_until_quiet(node: SecuredNode) -> None:
    deadline = time.monotonic() + LIMIT_S
    before = -1.0
    while time.monotonic() < deadline and (spent := cpu_seconds(node.broker.pid)) > before:
        before = spent + 0.01  # an idle node has timers, too
        time.sleep(QUIET_S)


def _p99(bench: Bench, node: SecuredNode, topic: str) -> float:
    what = (node.broker.port, topic, PARTITIONS, 1, 64, 100, 1)
    result = loaders.raw("produce", *what, bench.count(4_000), LIMIT_S, 1000, timeout_s=LIMIT_S)
    return float(result["p99_us"])


def idle_handshakes(node: SecuredNode, stack: ExitStack) -> None:
    """A thousand peers that begin a handshake, or a frame of a login, and send no more."""
    for number in range(IDLE_PEERS):
        protocol = ("SSL", "SASL_SSL")[number % 2]
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", node.ports[protocol]), timeout=30))
        # The first bytes of a ClientHello of 512 bytes.
        peer.sendall(struct.pack(">BHHB", 22, 0x0301, 512, 1) + bytes(100))


def slow_readers(node: SecuredNode, stack: ExitStack) -> None:
    """Peers that fetch megabytes again and again, and read a few bytes a second."""
    topic = node.topic_of("slow")
    if topic is None:
        topic = node.fresh_topic("slow", 1)
        what = (node.broker.bootstrap, topic, 1, 1000, 1_000_000, 50_000, LIMIT_S)
        loaders.rd("produce", *what, timeout_s=LIMIT_S, acks=1, linger_ms=5)
    request = _fetch_request(topic)
    stopped = threading.Event()
    peers = []
    for _ in range(SLOW_READERS):
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", node.broker.port), timeout=30))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(request * FETCHES)
        peers.append(peer)

    def read_slowly() -> None:
        while not stopped.wait(0.5):
            for peer in peers:
                peer.recv(64)

    thread = threading.Thread(target=read_slowly, daemon=True)
    thread.start()
    # Stopped before the sockets are closed: the stack unwinds from its end.
    stack.callback(thread.join, 10)
    stack.callback(stopped.set)


def _fetch_request(topic: str) -> bytes:
    """Fetch v4 of one partition from its beginning, a megabyte at a time."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, 1, -1)
    body += struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    return struct.pack(">i", len(body)) + body


PRODUCE_REACH = (Reach("MB/s", 1.0), Reach("CPU s/GB", 0.6), Reach("records/s"))

SECURITY: tuple[Load, ...] = (
    Load("ssl-produce", "librdkafka produce over SSL, 1 KB records", produce("SSL"), PRODUCE_REACH),
    Load("ssl-consume", "librdkafka consume over SSL, 1 KB records", consume("SSL"), PRODUCE_REACH),
    Load("sasl-ssl-produce", "librdkafka produce over SASL_SSL (SCRAM)", produce("SASL_SSL"), PRODUCE_REACH),
    Load("sasl-ssl-consume", "librdkafka consume over SASL_SSL (SCRAM)", consume("SASL_SSL"), PRODUCE_REACH),
    Load(
        "tls-handshakes",
        "full TLS 1.3 handshakes, P-256, two clients",
        handshakes,
        (Reach("handshakes/s", 1.0), Reach("CPU us/handshake")),
    ),
    Load(
        "acls-10000",
        "one-record requests, 8 connections, 10,000 ACLs",
        with_acls,
        (Reach("CPU us/request", 0.5), Reach("requests/s")),
    ),
    Load(
        "acl-decision",
        "a decision of the authorizer with 10,000 ACLs",
        decision,
        (Reach(DECISION, 1.0, own=True),),
        warm_ups=0,
        only="klamm",
    ),
    Load(
        "quota",
        "a producer with a quota of 5 MB/s, over a minute",
        quota,
        (Reach(ACCURACY, 0.95, own=True), Reach("MB/s")),
        warm_ups=0,
    ),
    Load(
        "idle-handshakes",
        "p99 of a good client beside 1,000 idle handshakes",
        beside(idle_handshakes),
        (Reach(BESIDE, 0.9, own=True), Reach("p99 us beside")),
    ),
    Load(
        "slow-readers",
        "p99 of a good client beside 20 slow readers",
        beside(slow_readers),
        (Reach(BESIDE, 0.9, own=True), Reach("p99 us beside")),
    ),
)

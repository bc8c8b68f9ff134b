"""Loads on three combined nodes: what replication costs, and how long clients wait when a node goes."""

import itertools
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import loaders
from benchmarks.loads import GB, LIMIT_S, MIB_BATCH, SMALL_BATCH, Load, Reach, Sample, with_rates
from benchmarks.machine import PageCache, cpu_seconds, rss_mb
from compat.clusters import BrokerCluster
from klamm.client.blocking_cluster import BlockingConnection, ClusterUnreachable
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch

NODES = 3
HEAP_MB = 1024
PARTITIONS = 6
SENDS_PER_S = 200
REST_S = 10.0
SETTLE_S = 60.0


@dataclass
class ClusterBench:
    """Three running nodes and what a load needs around them."""

    kind: str
    cluster: BrokerCluster
    folder: Path
    cache: PageCache
    scale: float

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def count(self, full: float) -> int:
        """A load's size at this scale."""
        return max(1, int(full * self.scale))

    def topic(self, name: str, partitions: int) -> str:
        """A new topic with three copies, all of them in sync."""
        name = f"{name}-{time.monotonic_ns()}"
        self.admin.create_topics([NewTopic(name, partitions, NODES)])[name].result(60)
        self.wait_in_sync(name, partitions)
        return name

    def wait_in_sync(self, new: str | None = None, partitions: int = 0) -> None:
        """Return once every replica is in sync, also those of a new topic, which brokers replay one after the other."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            topics = self.admin.list_topics(timeout=30).topics
            in_sync = all(
                len(p.isrs) == len(p.replicas) and p.leader > 0 for t in topics.values() for p in t.partitions.values()
            )
            if in_sync and (new is None or (new in topics and len(topics[new].partitions) == partitions)):
                return
            time.sleep(0.1)
        raise loaders.LoadFailed(f"{self.kind}: replicas are not in sync after {SETTLE_S:.0f} s")

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            metadata = self.admin.list_topics(topic, timeout=30).topics[topic].partitions.get(partition)
            if metadata is not None and metadata.leader > 0:
                return int(metadata.leader)
            time.sleep(0.1)
        raise loaders.LoadFailed(f"{self.kind}: {topic}-{partition} has no leader after {SETTLE_S:.0f} s")

    @contextmanager
    def measured(self, sample: Sample) -> Iterator[None]:
        """CPU of all nodes over the body, with memory made ready before."""
        self.cache.fill()
        before = self.cpu()
        yield
        sample["cpu_s"] = self.cpu() - before

    def cpu(self) -> float:
        """CPU seconds of all nodes so far."""
        return sum(cpu_seconds(pid) for pid in self.cluster.pids)


def produce(batch_bytes: int, total: float) -> Callable[[ClusterBench], Sample]:
    """librdkafka, idempotent, acks=all, 1 KB records."""

    def run(bench: ClusterBench) -> Sample:
        topic = bench.topic("produce", PARTITIONS)
        records = bench.count(total / 1000)
        sample: Sample = {}
        what = (bench.cluster.bootstrap, topic, PARTITIONS, 1000, batch_bytes, records, LIMIT_S)
        with bench.measured(sample):
            result = loaders.rd("produce", *what, timeout_s=LIMIT_S, acks="all", enable_idempotence="true", linger_ms=5)
        bench.admin.delete_topics([topic])[topic].result(60)
        return with_rates(sample, result)

    return run


def one_at_a_time(bench: ClusterBench) -> Sample:
    """One record, acks=all, and the next when it is acknowledged."""
    topic = bench.topic("latency", 1)
    port = bench.cluster.node(bench.leader(topic)).port
    first = Producer({"bootstrap.servers": bench.cluster.bootstrap, "acks": "all", "log_level": 0})
    first.produce(topic, b"x")  # once this is acknowledged, its leader has the metadata
    first.flush(LIMIT_S)
    sample: Sample = {}
    with bench.measured(sample):
        what = (port, topic, 1, 1, 1, 100, 1, bench.count(5000), LIMIT_S, 0, -1)
        result = loaders.raw("produce", *what, timeout_s=LIMIT_S)
    return with_rates(sample, result)


class Ticker:
    """A producer that sends a record to partition 0 at a steady pace and notes when each is acknowledged."""

    def __init__(self, bench: ClusterBench, topic: str) -> None:
        self.acknowledged: list[float] = []
        self.failed: list[str] = []
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bench.cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(SENDS_PER_S // 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SETTLE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._note)
            self._producer.poll(1 / SENDS_PER_S)
        self._producer.flush(SETTLE_S)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is None:
            self.acknowledged.append(time.monotonic())
        else:
            self.failed.append(str(error))

    def wait(self, more: int) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        deadline = time.monotonic() + SETTLE_S
        while len(self.acknowledged) < wanted:
            if self.failed or time.monotonic() > deadline:
                raise loaders.LoadFailed(f"the producer does not get through: {self.failed[:1]}")
            time.sleep(0.01)

    def blocked_after(self, moment: float) -> float:
        """The longest time without an acknowledgement from `moment` on."""
        times = [moment, *(t for t in self.acknowledged if t >= moment)]
        return max(b - a for a, b in itertools.pairwise(times))


def stop_leader(how: signal.Signals) -> Callable[[ClusterBench], Sample]:
    """The leader of the producer's partition is killed, or stopped cleanly: how long is the producer blocked?"""

    def run(bench: ClusterBench) -> Sample:
        topic = bench.topic("goes", 1)
        node = bench.cluster.node(bench.leader(topic))
        with Ticker(bench, topic) as ticker:
            moment = time.monotonic()
            assert node.process is not None
            node.process.send_signal(how)
            node.process.wait(LIMIT_S)
            node.process = None
            ticker.wait(2 * SENDS_PER_S)
            blocked = ticker.blocked_after(moment)
        node.start()
        bench.wait_in_sync()
        return {"blocked s": blocked}

    return run


def controller_killed(bench: ClusterBench) -> Sample:
    """The active controller is killed: how long until a topic can be created again?"""
    bench.wait_in_sync()
    with_leader = BlockingConnection("127.0.0.1", bench.cluster.nodes[0].port)
    quorum_topics = [TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
    leader = with_leader.ask(DescribeQuorumRequest(topics=quorum_topics)).topics[0].partitions[0].leader_id
    with_leader.close()
    node = bench.cluster.node(leader)
    other = next(other for other in bench.cluster.nodes if other is not node)
    moment = time.monotonic()
    node.kill9()
    _create(other.port, f"after-{time.monotonic_ns()}", copies=2)
    blocked = time.monotonic() - moment
    node.start()
    bench.wait_in_sync()
    return {"blocked s": blocked}


def start_up(bench: ClusterBench) -> Sample:
    """Three more nodes: from spawn to a record acknowledged by all, then their memory at rest."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        cluster = BrokerCluster(bench.kind, Path(folder), heap_mb=HEAP_MB)
        for node in cluster.nodes:
            node.write_config()
        bench.cache.fill()
        start = time.monotonic()
        cluster.spawn()
        try:
            _create(cluster.nodes[0].port, "first", copies=NODES)
            _first_record([node.port for node in cluster.nodes], "first")
            seconds = time.monotonic() - start
            time.sleep(2)
            return {"seconds": seconds, "idle RSS MB": sum(rss_mb(pid) for pid in cluster.pids)}
        finally:
            cluster.close()


def many_topics(topics: int, together: int) -> Callable[[ClusterBench], Sample]:
    """So many topics of three partitions, some together in each request, and gone again afterwards."""

    def run(bench: ClusterBench) -> Sample:
        stamp = time.monotonic_ns()
        names = [f"many-{stamp}-{i}" for i in range(bench.count(topics))]
        sample: Sample = {}
        with bench.measured(sample):
            started = time.monotonic()
            for at in range(0, len(names), together):
                wanted = [NewTopic(name, 3, NODES) for name in names[at : at + together]]
                for future in bench.admin.create_topics(wanted, operation_timeout=60).values():
                    future.result(120)
            sample["seconds"] = time.monotonic() - started
            _write_everywhere(bench, names)
            sample["usable s"] = time.monotonic() - started
        for at in range(0, len(names), 100):
            for future in bench.admin.delete_topics(names[at : at + 100], operation_timeout=60).values():
                future.result(120)
        return sample

    return run


def _write_everywhere(bench: ClusterBench, topics: list[str]) -> None:
    """Return once every partition has taken a record: an answer may come before the replicas are there."""
    config = {
        "bootstrap.servers": bench.cluster.bootstrap,
        "acks": "all",
        "log_level": 0,
        "message.timeout.ms": 120_000,
    }
    config["topic.metadata.propagation.max.ms"] = 120_000
    failures: list[KafkaError] = []
    producer = Producer(config)
    for topic in topics:
        for partition in range(3):
            producer.produce(
                topic, b"x", partition=partition, on_delivery=lambda error, _: error and failures.append(error)
            )
    left = producer.flush(150)
    if left or failures:
        raise RuntimeError(f"{left} records not sent, {len(failures)} refused: {failures[:1]}")


def at_rest(partitions: int) -> Callable[[ClusterBench], Sample]:
    """Cores that three idle nodes use, with so many partitions of three replicas."""

    def run(bench: ClusterBench) -> Sample:
        # What earlier rows made counts too; Kafka refuses topics with very many partitions.
        there = sum(len(topic.partitions) for topic in bench.admin.list_topics(timeout=30).topics.values())
        for missing in range(partitions - there, 0, -1000):
            name = f"rest-{time.monotonic_ns()}"
            bench.admin.create_topics([NewTopic(name, min(missing, 1000), NODES)])[name].result(300)
        bench.wait_in_sync()
        time.sleep(REST_S / 2)
        before, started = bench.cpu(), time.monotonic()
        time.sleep(REST_S)
        return {"cores": (bench.cpu() - before) / (time.monotonic() - started)}

    return run


def _create(port: int, topic: str, copies: int) -> None:
    """Create a topic as soon as a controller is elected."""
    deadline = time.monotonic() + LIMIT_S
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=copies)], timeout_ms=10_000
    )
    answer = None
    while time.monotonic() < deadline:
        try:
            connection = BlockingConnection("127.0.0.1", port, timeout_s=10.0)
            answer = connection.ask(request)
            connection.close()
            if answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
        except (ClusterUnreachable, KlammError, OSError):
            pass
        time.sleep(0.005)
    raise loaders.LoadFailed(f"no topic could be created in time: {answer}")


def _first_record(ports: list[int], topic: str) -> None:
    batch = bytes(build_batch([(int(time.time() * 1000), None, b"x" * 100, ())]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for port in ports:
            try:
                connection = BlockingConnection("127.0.0.1", port, timeout_s=10.0)
                metadata = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 9)
                leader = metadata.topics[0].partitions[0].leader_id if metadata.topics[0].partitions else -1
                brokers = {broker.node_id: broker.port for broker in metadata.brokers}
                if brokers.get(leader) == port:
                    answer = connection.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
                    if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
                        return
                connection.close()
            except (ClusterUnreachable, KlammError, OSError):
                pass
        time.sleep(0.002)
    raise loaders.LoadFailed("no record was acknowledged in time")


CLUSTER: tuple[Load, ...] = (
    Load(
        "cluster-produce-1m",
        "3 nodes: librdkafka produce, idempotent, acks=all, 1 KB, 1 MB batches",
        produce(MIB_BATCH, 0.5 * GB),
        (Reach("MB/s", 1.5), Reach("CPU s/GB", 0.4)),
    ),
    Load(
        "cluster-produce-16k",
        "3 nodes: the same, 16 KB batches",
        produce(SMALL_BATCH, 0.1 * GB),
        (Reach("MB/s", 1.5), Reach("CPU s/GB", 0.4)),
    ),
    Load(
        "cluster-one",
        "3 nodes: one acks=all record at a time",
        one_at_a_time,
        (Reach("p50 us", 1.0), Reach("p99 us", 1.0), Reach("CPU us/request")),
    ),
    Load(
        "cluster-kill",
        "3 nodes: leader killed, producer blocked",
        stop_leader(signal.SIGKILL),
        (Reach("blocked s", 0.15),),
        warm_ups=0,
    ),
    Load(
        "cluster-stop",
        "3 nodes: leader stopped cleanly, producer blocked",
        stop_leader(signal.SIGTERM),
        (Reach("blocked s", 0.5),),
        warm_ups=0,
    ),
    Load(
        "cluster-controller",
        "3 nodes: controller killed, until a topic can be created",
        controller_killed,
        (Reach("blocked s", 0.5),),
        warm_ups=0,
    ),
    Load(
        "cluster-start",
        "3 nodes: start to first acks=all record; idle RSS",
        start_up,
        (Reach("seconds", 0.15), Reach("idle RSS MB", 0.15)),
        warm_ups=0,
    ),
    Load(
        "cluster-topics",
        "3 nodes: create 1,000 topics of 3 partitions",
        many_topics(1000, 100),
        (Reach("seconds", 1.0), Reach("usable s", 1.0), Reach("cpu_s")),
        repeats=1,
        warm_ups=0,
    ),
    *(
        Load(
            name,
            f"3 nodes: create 300 topics of 3 partitions, {how}",
            many_topics(300, together),
            (Reach("seconds", 1.0), Reach("usable s", 1.0), Reach("cpu_s")),
            repeats=repeats,
            warm_ups=0,
        )
        for name, how, together, repeats in (
            ("cluster-topics-300", "in one request", 300, 3),
            ("cluster-topics-single", "one request each", 1, 1),
        )
    ),
    *(
        Load(
            f"cluster-rest-{partitions}",
            f"3 nodes: at rest with {partitions:,} partitions",
            at_rest(partitions),
            (Reach("cores", 0.5),),
            repeats=1,
            warm_ups=0,
        )
        for partitions in (100, 1_000, 10_000)
    ),
)

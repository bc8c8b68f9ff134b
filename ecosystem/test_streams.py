"""Kafka Streams: word count, joins, exactly once while application and nodes die, instances with standbys."""

import collections
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ecosystem import maven
from ecosystem.cluster import Cluster, Read, eventually
from ecosystem.processes import Process

pytestmark = pytest.mark.program("Kafka Streams", maven.version("streams", "kafka-streams"))

WORDS = ["over", "the", "river", "and", "through", "the", "wood", "the", "old", "dog", "ran", "home", "again"]
KEYS = [f"key-{number}" for number in range(20)]


class Application:
    """An application of Streams: instances with a state folder each, under one application id."""

    def __init__(self, cluster: Cluster, topology: str, prefix: str, folder: Path, **settings: str) -> None:
        self.topology = topology
        self.prefix = prefix
        self.folder = folder
        self.settings = {
            "bootstrap.servers": cluster.bootstrap,
            "application.id": prefix,
            "replication.factor": "3",
            "num.stream.threads": "1",
            "commit.interval.ms": "100",
            "statestore.cache.max.bytes": "0",
            "consumer.auto.offset.reset": "earliest",
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1000",
            "producer.transaction.timeout.ms": "10000",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }

    def start(self, instance: str = "one") -> Process:
        """Start an instance, which may have run before; it keeps its state folder."""
        home = self.folder / instance
        home.mkdir(exist_ok=True)
        properties = {**self.settings, "state.dir": str(home / "state"), "client.id": instance}
        file = home / "streams.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        command = maven.java_command("streams", "StreamsApp", self.topology, str(file), self.prefix, heap_mb=384)
        return Process(command, home / "output.log")


def last_values(records: list[Read]) -> dict[str, str]:
    """The table of a changelog."""
    return {(record.key or b"").decode(): record.text for record in records}


@pytest.mark.quick
def test_word_count(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Word count through a repartition topic: 3,000 lines, the last count of each word equals a recomputation."""
    generator = random.Random(1)
    lines = [" ".join(generator.choices(WORDS, k=6)) for _ in range(3000)]
    for name in ("lines", "counts"):
        cluster.create_topic(f"{topic}-{name}")
    cluster.produce(f"{topic}-lines", [(None, line) for line in lines])
    expected = {word: str(count) for word, count in collections.Counter(" ".join(lines).split()).items()}
    with Application(cluster, "words", topic, tmp_path).start() as application:
        eventually(
            lambda: last_values(cluster.read(f"{topic}-counts")) == expected,
            "the counts equal the recomputation",
        )
        assert application.stop() in (0, 143)
        assert "stream thread failed" not in application.text


def test_joins(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """A windowed stream-stream join, a stream-table left join and a table-table join equal a recomputation."""
    for name in ("orders", "payments", "customers", "cities", "paid", "named", "places"):
        cluster.create_topic(f"{topic}-{name}", 4)
    customers = {f"id-{number}": f"customer-{number}" for number in range(200)}
    cities = {f"id-{number}": f"city-{number % 7}" for number in range(0, 300, 2)}
    orders = {f"id-{number}": f"order-{number}" for number in range(0, 400, 3)}
    payments = {f"id-{number}": f"payment-{number}" for number in range(0, 400, 5)}
    for name, table in (("customers", customers), ("cities", cities), ("orders", orders), ("payments", payments)):
        cluster.produce(f"{topic}-{name}", list(table.items()))
    expected = {
        "paid": {key: f"{order}+{payments[key]}" for key, order in orders.items() if key in payments},
        "named": {key: f"{order}+{customers.get(key, 'null')}" for key, order in orders.items()},
        "places": {key: f"{customer}+{cities[key]}" for key, customer in customers.items() if key in cities},
    }
    with Application(cluster, "joins", topic, tmp_path).start() as application:
        for name, table in expected.items():
            cluster.wait_for_records(f"{topic}-{name}", len(table))
        assert application.stop() in (0, 143)
    for name, table in expected.items():
        records = cluster.read(f"{topic}-{name}")
        assert last_values(records) == table
        if name != "places":
            assert len(records) == len(table), "a record of a stream was joined twice"


@contextmanager
def numbers_written(cluster: Cluster, topic: str, count: int) -> Iterator[list[int]]:
    """Write 1, 2, 3, ... under each key while the block runs; gives how many of each are written so far."""
    written = [0]
    failures: list[BaseException] = []

    def write() -> None:
        try:
            while written[0] < count:
                first, upto = written[0] + 1, min(count, written[0] + 10)
                cluster.produce(topic, [(key, str(number)) for number in range(first, upto + 1) for key in KEYS])
                written[0] = upto
        except BaseException as error:  # noqa: BLE001 - raised by the block below
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        writer.join()
    assert not failures, failures[0]


def sums_by_key(records: list[Read]) -> dict[str, list[int]]:
    sums: dict[str, list[int]] = {key: [] for key in KEYS}
    for record in records:
        sums[(record.key or b"").decode()].append(int(record.text))
    return sums


def assert_every_sum_once(cluster: Cluster, topic: str, count: int) -> None:
    """1, 3, 6, 10, ... under every key, each committed once and in order."""
    expected = [number * (number + 1) // 2 for number in range(1, count + 1)]
    cluster.wait_for_records(topic, count * len(KEYS))
    for key, sums in sums_by_key(cluster.read(topic)).items():
        assert sums == expected, f"{key}: first difference at {_first_difference(sums, expected)}"


def _first_difference(sums: list[int], expected: list[int]) -> str:
    for index, (one, other) in enumerate(zip(sums, expected, strict=False)):
        if one != other:
            return f"{index}: {sums[max(0, index - 2) : index + 3]}, expected {expected[max(0, index - 2) : index + 3]}"
    return f"the end: {len(sums)} sums, expected {len(expected)}"


@pytest.mark.quick
def test_exactly_once(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """exactly_once_v2 with a commit every 10 ms, so that a transaction begins while the markers of the last are still
    on their way: running sums of 20 keys on 6 partitions, each committed once and in order, no stream thread lost."""
    for name in ("numbers", "sums"):
        cluster.create_topic(f"{topic}-{name}")
    settings = {"processing_guarantee": "exactly_once_v2", "commit_interval_ms": "10"}
    application = Application(cluster, "sums", topic, tmp_path, **settings)
    with application.start() as instance, numbers_written(cluster, f"{topic}-numbers", 200):
        assert_every_sum_once(cluster, f"{topic}-sums", 200)
        assert "stream thread failed" not in instance.text, instance.tail()
        for failure in ("TaskMigratedException", "InvalidTxnStateException", "Error encountered sending record"):
            assert failure not in instance.text, instance.tail()


def test_exactly_once_while_application_and_nodes_die(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """exactly_once_v2 while the application is killed with SIGKILL four times and every node once: every running sum is
    committed once and in order."""
    for name in ("numbers", "sums"):
        cluster.create_topic(f"{topic}-{name}")
    count = 600
    application = Application(cluster, "sums", topic, tmp_path, processing_guarantee="exactly_once_v2")

    with numbers_written(cluster, f"{topic}-numbers", count):
        instance = application.start()
        try:
            for round_number in range(4):
                cluster.wait_for_progress(f"{topic}-sums", count * len(KEYS))
                if round_number < 3:
                    cluster.node(round_number + 1).kill9()
                instance.kill9()
                instance = application.start()
                cluster.restore()
            assert_every_sum_once(cluster, f"{topic}-sums", count)
        finally:
            instance.kill9()


def test_two_instances_with_standbys(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """Two instances with a standby replica each: one is killed with SIGKILL, the other takes over, the first comes
    back; every running sum is committed once and in order."""
    for name in ("numbers", "sums"):
        cluster.create_topic(f"{topic}-{name}")
    count = 400
    application = Application(
        cluster,
        "sums",
        topic,
        tmp_path,
        processing_guarantee="exactly_once_v2",
        num_standby_replicas="1",
        acceptable_recovery_lag="100",
        probing_rebalance_interval_ms="60000",
    )
    with (
        application.start("one") as one,
        application.start("two") as two,
        numbers_written(cluster, f"{topic}-numbers", count),
    ):
        for instance in (one, two):
            instance.wait_line("state RUNNING")
        cluster.wait_for_records(f"{topic}-sums", 500)
        one.kill9()
        with application.start("one"):
            assert_every_sum_once(cluster, f"{topic}-sums", count)

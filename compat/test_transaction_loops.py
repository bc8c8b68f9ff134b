"""Producers that begin their next transaction right after the last, on many partitions of three nodes.

Transactions used to be judged on one node, or with time between them: then the markers of a transaction are written
before the next one's first batch arrives. In a tight loop on several nodes they overtake each other.
"""

import re
from collections.abc import Iterator

import pytest

from compat import loops
from compat.clients import GoClient, JavaClient
from compat.clusters import BrokerCluster
from compat.loops import LoopResult, Loops

pytestmark = pytest.mark.timeout(1200)
PARTITIONS = 12
PRODUCERS = 3
TRANSACTIONS = 70
"""For each producer: a few hundred in all."""
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
RECORDS = 3000


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(request.config.getoption("--broker"), tmp_path_factory.mktemp("loops")) as running:
        yield running


@pytest.fixture
def tight(java: JavaClient, cluster: BrokerCluster, topic: str) -> Loops:
    """The loops of a test, with a topic of their own."""
    names = tuple(f"{topic}-{number}" for number in range(PRODUCERS))
    create(java, cluster, topic)
    return Loops(cluster.bootstrap, topic, PARTITIONS, names, TRANSACTIONS)


def create(java: JavaClient, cluster: BrokerCluster, topic: str) -> None:
    """A topic whose partitions have copies on all nodes."""
    options = ("--create", "--topic", topic, "--partitions", str(PARTITIONS), "--replication-factor", "3")
    made = java.tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", cluster.bootstrap, *options)
    assert made.exit == 0, made.text


@pytest.mark.parametrize("program", ["java", "franz-go"])
def test_no_producer_fails_in_a_tight_loop(all_clients: dict[str, object], tight: Loops, program: str) -> None:
    client = all_clients[program]
    assert isinstance(client, JavaClient | GoClient)
    loops.check(tight, loops.run_in_program(client, tight))


def test_no_librdkafka_producer_fails_in_a_tight_loop(tight: Loops) -> None:
    loops.check(tight, loops.run_in_librdkafka(tight))


def test_the_performance_tool_commits_every_few_milliseconds(
    java: JavaClient, cluster: BrokerCluster, topic: str
) -> None:
    create(java, cluster, topic)
    done = java.tool(
        PERFORMANCE,
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1"),
        *("--transactional-id", topic, "--transaction-duration-ms", "5"),
        *("--bootstrap-server", cluster.bootstrap, "--command-property", "linger.ms=0"),
    )
    assert done.exit == 0, done.text
    assert f"{RECORDS} records sent" in done.out, done.text
    assert not re.search(r"Exception|error", done.text, re.IGNORECASE), done.text
    written = Loops(cluster.bootstrap, topic, PARTITIONS, (), 0)
    assert sum(len(loops.read_committed(written, partition)) for partition in range(PARTITIONS)) == RECORDS


def test_a_failed_producer_and_a_lost_record_are_detected(tight: Loops) -> None:
    """The check itself fails for what it must detect."""
    names = tight.transactional_ids
    failed = [LoopResult(name, 3, "INVALID_TXN_STATE") for name in names]
    with pytest.raises(AssertionError, match="INVALID_TXN_STATE"):
        loops.check(tight, failed)
    with pytest.raises(AssertionError, match="partition 0"):
        loops.check(tight, [LoopResult(name, TRANSACTIONS, None) for name in names])

"""Transactions as Kafka's own system tests make them, and as its operators look at them."""

import json
import random
import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from compat import toolchain
from compat.brokers import Broker
from compat.clients import JavaClient, Record
from klamm.client.blocking_cluster import BlockingConnection
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records.batch import build_batch

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
RECORDS = 1500


def copier(broker: Broker, source: str, target: str, name: str) -> "subprocess.Popen[str]":
    """Kafka's TransactionalMessageCopier as a process; it prints its progress as JSON lines."""
    command = [
        *toolchain.java_command(heap_mb=128, log_level="off"), COPIER,
        "--broker-list", broker.bootstrap, "--input-topic", source, "--input-partition", "0",
        "--output-topic", target, "--max-messages", str(RECORDS), "--consumer-group", f"{name}-group",
        "--transactional-id", name, "--transaction-size", "50", "--enable-random-aborts",
        "--transaction-timeout", "20000",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finish(process: "subprocess.Popen[str]") -> dict[str, object]:
    """Wait for the end; the last line it printed."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    last: dict[str, object] = json.loads(out.strip().splitlines()[-1])
    return last


def fill(java: JavaClient, broker: Broker, topic: str) -> list[bytes]:
    values = [b"%d" % number for number in range(RECORDS)]
    java.create(broker.bootstrap, topic)
    java.produce(broker.bootstrap, topic, [Record(value) for value in values], idempotent=True)
    return values


def committed(java: JavaClient, broker: Broker, topic: str) -> list[bytes | None]:
    seen = java.consume(broker.bootstrap, topic, count=RECORDS, isolation="read_committed")
    return [record.value for record in seen]


def test_a_copy_with_aborts_is_exact(java: JavaClient, broker: Broker, topic: str) -> None:
    values = fill(java, broker, topic)
    java.create(broker.bootstrap, f"{topic}-copy")
    last = finish(copier(broker, topic, f"{topic}-copy", topic))
    assert last["stage"] == "ShutdownComplete"
    assert committed(java, broker, f"{topic}-copy") == values


@pytest.fixture
def own_broker(subject: type[Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    overrides = {
        "transaction.partition.verification.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    node = subject(tmp_path_factory.mktemp("transactions"), overrides=overrides)
    try:
        yield node.start()
    finally:
        node.close()


def test_a_copy_is_exact_when_broker_and_copier_are_killed(java: JavaClient, own_broker: Broker, topic: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    values = fill(java, own_broker, topic)
    target = f"{topic}-copy"
    java.create(own_broker.bootstrap, target)
    for _ in range(2):
        victim = copier(own_broker, topic, target, topic)
        assert victim.stdout is not None
        for _ in range(chance.randrange(3, 12)):
            victim.stdout.readline()
        victim.kill()
        victim.communicate()
        own_broker.kill9()
        own_broker.start()
    process = copier(own_broker, topic, target, topic)
    time.sleep(1.5 + chance.random())
    own_broker.kill9()
    own_broker.start()
    finish(process)
    assert committed(java, own_broker, target) == values


def test_operators_see_transactions(java: JavaClient, broker: Broker, topic: str) -> None:
    fill(java, broker, topic)
    java.create(broker.bootstrap, f"{topic}-copy")
    finish(copier(broker, topic, f"{topic}-copy", topic))
    where = ("--bootstrap-server", broker.bootstrap)
    listed = java.tool(TRANSACTIONS, *where, "list").out
    assert re.search(rf"{topic}\s+1\s+\d+\s+CompleteCommit", listed), listed
    pattern = java.tool(TRANSACTIONS, *where, "list", "--transactional-id-pattern", "nothing.*").out
    assert topic not in pattern
    shown = java.tool(TRANSACTIONS, *where, "describe", "--transactional-id", topic).out
    assert re.search(rf"1\s+{topic}\s+\d+\s+\d+\s+CompleteCommit\s+20000", shown), shown
    described = java.tool(
        TRANSACTIONS, *where, "describe-producers", "--topic", f"{topic}-copy", "--partition", "0"
    ).out
    assert re.search(r"\d+\s+\d+\s+0\s+-?\d+\s+\d+\s+None", described), described
    printed = java.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *where, "--topic", "__transaction_state",
        "--from-beginning", "--timeout-ms", "5000", "--formatter",
        "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
    )  # fmt: skip
    assert f'{{"key":{{"type":0,"data":{{"transactionalId":"{topic}"}}}},"value":{{"version":1,' in printed.out


def test_a_hanging_transaction_is_found_and_cured(java: JavaClient, own_broker: Broker, topic: str) -> None:
    """A batch of a producer without a coordinator, as a broker without verification would accept it."""
    java.create(own_broker.bootstrap, topic)
    old_ms = int(time.time() * 1000) - 3_600_000
    batch = build_batch(
        [(old_ms, None, b"hangs", ())], producer_id=4711, producer_epoch=3, base_sequence=0, transactional=True
    )
    data = [PartitionProduceData(index=0, records=bytes(batch))]
    connection = BlockingConnection("127.0.0.1", own_broker.port)
    request = ProduceRequest(
        transactional_id="lost",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    answer = connection.ask(request, version=9)
    connection.close()
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    where = ("--bootstrap-server", own_broker.bootstrap)
    hanging = java.tool(TRANSACTIONS, *where, "find-hanging", "--topic", topic).out
    assert re.search(rf"{topic}\s+0\s+4711\s+3\s+-1\s+0\s+", hanging), hanging
    place = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    assert java.tool(TRANSACTIONS, *where, "abort", *place).exit == 0
    assert "4711" not in java.tool(TRANSACTIONS, *where, "find-hanging", "--topic", topic).out
    java.produce(own_broker.bootstrap, topic, [Record(b"after")])
    seen = java.consume(own_broker.bootstrap, topic, count=1, isolation="read_committed")
    assert [record.value for record in seen] == [b"after"]

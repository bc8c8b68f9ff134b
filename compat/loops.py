"""Tight transactional loops: each producer begins its next transaction when the last is decided, on every partition.

The same loop in Java, franz-go and librdkafka. Values name their producer, transaction and partition, so what may be
read afterwards follows from how many transactions ended.
"""

import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from compat.clients import GoClient, JavaClient

ABORT_EVERY = 10
"""Every tenth transaction is aborted, the first of each producer among them."""
READ_TIMEOUT_S = 60.0
LOOPS_TIMEOUT_S = 900.0
"""The result of a loop counts, not its duration."""


@dataclass(frozen=True)
class Loops:
    """What to run."""

    bootstrap: str
    topic: str
    partitions: int
    transactional_ids: tuple[str, ...]
    transactions: int
    """For each producer."""

    def order(self) -> dict[str, Any]:
        """The same as an order for a client program."""
        return {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "partitions": self.partitions,
            "transactional_ids": list(self.transactional_ids),
            "transactions": self.transactions,
            "abort_every": ABORT_EVERY,
            "linger_ms": 0,
        }


@dataclass(frozen=True)
class LoopResult:
    """How one producer fared."""

    transactional_id: str
    ended: int
    failure: str | None


def run_in_program(client: JavaClient | GoClient, loops: Loops) -> list[LoopResult]:
    """The loops in a client program."""
    answer = client.call_slow(LOOPS_TIMEOUT_S, "transaction_loops", **loops.order())
    return [LoopResult(row["id"], row["ended"], row["failure"]) for row in answer["producers"]]


def run_in_librdkafka(loops: Loops) -> list[LoopResult]:
    """The loops in this process, a thread for each producer."""
    results: dict[str, LoopResult] = {}

    def run(transactional_id: str) -> None:
        results[transactional_id] = _loop(loops, transactional_id)

    threads = [threading.Thread(target=run, args=(name,)) for name in loops.transactional_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[name] for name in loops.transactional_ids]


def _loop(loops: Loops, transactional_id: str) -> LoopResult:
    settings = {"bootstrap.servers": loops.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    producer = Producer(settings)
    ended = 0
    try:
        producer.init_transactions(LOOPS_TIMEOUT_S)
        for number in range(loops.transactions):
            producer.begin_transaction()
            for partition in range(loops.partitions):
                producer.produce(loops.topic, f"{transactional_id}/{number}/{partition}".encode(), partition=partition)
            if number % ABORT_EVERY == 0:
                producer.flush()
                producer.abort_transaction(LOOPS_TIMEOUT_S)
            else:
                producer.commit_transaction(LOOPS_TIMEOUT_S)
            ended += 1
    except KafkaException as error:
        return LoopResult(transactional_id, ended, str(error))
    return LoopResult(transactional_id, ended, None)


def expected(loops: Loops, partition: int) -> list[str]:
    """What a reader of committed records must find in a partition, in any order among producers."""
    return [
        f"{name}/{number}/{partition}"
        for name in loops.transactional_ids
        for number in range(loops.transactions)
        if number % ABORT_EVERY
    ]


def read_committed(loops: Loops, partition: int) -> list[str]:
    """Everything a reader of committed records finds in a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": loops.bootstrap,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(loops.topic, partition, 0)])
        while True:
            message = consumer.poll(READ_TIMEOUT_S)
            assert message is not None, f"partition {partition} gave nothing for {READ_TIMEOUT_S} s"
            error = message.error()
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def check(loops: Loops, results: list[LoopResult]) -> None:
    """No producer failed, and what can be read is what was committed, each producer's records in its order."""
    assert [result.failure for result in results] == [None] * len(loops.transactional_ids), results
    assert {result.ended for result in results} == {loops.transactions}, results
    for partition in range(loops.partitions):
        values = read_committed(loops, partition)
        assert Counter(values) == Counter(expected(loops, partition)), f"partition {partition}"
        for name in loops.transactional_ids:
            numbers = [int(value.split("/")[1]) for value in values if value.startswith(f"{name}/")]
            assert numbers == sorted(numbers), f"{name} in partition {partition}"

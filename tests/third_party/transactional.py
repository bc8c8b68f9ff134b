"""Three transactional producers behind one face, and readers with an isolation level."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import aiokafka
import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

PATIENCE_S = 30.0
QUIET = {"log_level": 2, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}

FENCED_CODES = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class Fenced(Exception):
    """Another producer has the transactional id."""


class ConfluentTxn:
    """librdkafka's producer."""

    name = "confluent"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 30_000) -> None:
        self._producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 1,
            }
        )
        self._call(self._producer.init_transactions)

    def _call(self, function: Any, *args: Any) -> None:
        try:
            function(*args, PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() in FENCED_CODES or "fenced" in str(error).lower():
                raise Fenced(str(error)) from error
            raise

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        consumer = Consumer({**QUIET, "bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            wanted = [TopicPartition(topic, index, offset) for (topic, index), offset in offsets.items()]
            self._producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), PATIENCE_S)
        finally:
            consumer.close()

    bootstrap = ""

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):  # a fenced producer raises again
            self._producer.purge()
            self._producer.flush(1)


class KafkaPythonTxn:
    """kafka-python's producer."""

    name = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 30_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=20,
            max_block_ms=int(PATIENCE_S * 1000),
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        made = {
            kafka.TopicPartition(topic, index): kafka.OffsetAndMetadata(offset, "", -1)
            for (topic, index), offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(made, group)

    def commit(self) -> None:
        self._translated(self._producer.commit_transaction)

    def abort(self) -> None:
        self._translated(self._producer.abort_transaction)

    def _translated(self, function: Any) -> None:
        try:
            function()
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise Fenced(str(error)) from error
        except kafka.errors.KafkaError as error:
            if "fenced" in repr(error).lower():
                raise Fenced(str(error)) from error
            raise

    def close(self) -> None:
        self._producer.close(timeout=1)


class AioTxn:
    """aiokafka's producer, on a loop of its own."""

    name = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 30_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                retry_backoff_ms=20,
            )
            await producer.start()
            return producer

        self._producer = self._run(make())

    def _run(self, work: Any) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)
        except (aiokafka.errors.ProducerFenced, aiokafka.errors.InvalidProducerEpoch) as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._run(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def send_offsets(self, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        made = {aiokafka.TopicPartition(topic, index): offset for (topic, index), offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(made, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()


ALL = (ConfluentTxn, AioTxn, KafkaPythonTxn)


def read_all(bootstrap: str, topic: str, *, committed: bool = True, partitions: int = 1) -> list[list[bytes]]:
    """The values of every partition, as librdkafka shows them up to the end."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        at_end: set[int] = set()
        while len(at_end) < partitions:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing comes"
            if message.error() is None:
                values[message.partition()].append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    finally:
        consumer.close()
    return values


def committed_offset(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """What a group has committed, -1001 for nothing."""
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(topic, partition)], PATIENCE_S)[0].offset)
    finally:
        consumer.close()

"""aiokafka, on an event loop in a thread of its own so that it works while the test does something else."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from harness.clients.face import PATIENCE_S, Delivery, Row


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 2 * PATIENCE_S) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AioProducer:
    def __init__(self, bootstrap: str, codec: str, acks: str, idempotent: bool) -> None:
        self._loop = Loop()
        self._futures: list[Any] = []

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=5_000_000,
                linger_ms=2,
                retry_backoff_ms=20,
                request_timeout_ms=int(PATIENCE_S * 1000),
            )
            await producer.start()
            return producer

        self._producer = self._loop.run(start())

    def send(self, topic, value, *, key=None, partition=None, timestamp=None, headers=()) -> None:
        sent = self._producer.send(topic, value, key, partition, timestamp, list(headers))
        self._futures.append(self._loop.run(_caught(sent)))

    def flush(self) -> list[Delivery]:
        futures, self._futures = self._futures, []
        return self._loop.run(_fates(futures))

    def close(self) -> None:
        self._loop.run(self._producer.stop())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _caught(work: Any) -> Any:
    try:
        return await work
    except KafkaError as error:
        return error


async def _fates(futures: list[Any]) -> list[Delivery]:
    fates = []
    for future in futures:
        result = future
        if not isinstance(result, KafkaError):
            async with asyncio.timeout(PATIENCE_S):
                result = await _caught(future)
        if isinstance(result, KafkaError):
            fates.append(Delivery(-1, -1, getattr(result, "errno", -1)))
        else:
            # acks=0 has no reply, and so no metadata.
            fates.append(Delivery(-1, -1) if result is None else Delivery(result.partition, result.offset))
    return fates


class AioKafka:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = Loop()
        self._consumer, self._admin = self._loop.run(self._start())

    async def _start(self) -> tuple[AIOKafkaConsumer, AIOKafkaAdminClient]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            check_crcs=True,
        )
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await consumer.start()
        await admin.start()
        return consumer, admin

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.run(self._admin.close())
        self._loop.close()

    def producer(self, *, codec="none", acks="all", idempotent=False) -> AioProducer:
        return AioProducer(self._bootstrap, codec, acks, idempotent)

    def read(self, topic, count, *, partition=0, offset=0) -> list[Row]:
        return self._loop.run(self._read(TopicPartition(topic, partition), count, offset))

    async def _read(self, where: TopicPartition, count: int, offset: int) -> list[Row]:
        self._consumer.assign([where])
        self._consumer.seek(where, offset)
        records: list[Row] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(records) < count:
                record = await self._consumer.getone(where)
                row = Row(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                records.append(row._replace(log_append_time=record.timestamp_type == 1))
        self._consumer.unsubscribe()
        return records

    def beginning(self, topic, partition=0) -> int:
        where = TopicPartition(topic, partition)
        return self._loop.run(self._consumer.beginning_offsets([where]))[where]

    def end(self, topic, partition=0) -> int:
        where = TopicPartition(topic, partition)
        return self._loop.run(self._consumer.end_offsets([where]))[where]

    def offset_at(self, topic, timestamp, partition=0) -> int | None:
        where = TopicPartition(topic, partition)
        match = self._loop.run(self._consumer.offsets_for_times({where: timestamp}))[where]
        return None if match is None else match.offset

    def create_topic(self, topic, partitions=1, configs=None) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=configs or {})
        _check(self._loop.run(self._admin.create_topics([new])).topic_errors)

    def delete_topic(self, topic) -> None:
        _check(self._loop.run(self._admin.delete_topics([topic])).topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def add_partitions(self, topic, total) -> None:
        self._loop.run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def partition_count(self, topic) -> int:
        [description] = self._loop.run(self._admin.describe_topics([topic]))
        return len(description["partitions"])

    def topic_settings(self, topic) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        [reply] = self._loop.run(self._admin.describe_configs([resource]))
        [(code, *_, entries)] = reply.resources
        _check([(topic, code)])
        return {entry[0]: entry[1] for entry in entries}

    def set_topic_settings(self, topic, configs) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)
        replies = self._loop.run(self._admin.alter_configs([resource]))
        _check([(topic, code) for reply in replies for code, *_ in reply.resources])

    def delete_records(self, topic, before, partition=0) -> None:
        self._loop.run(self._admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)}))


def _check(answers: list[Any]) -> None:
    for name, code, *_ in answers:
        if code:
            raise for_code(code)(name)

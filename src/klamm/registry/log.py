"""The topic `_schemas`: a reader that replays it, and a writer that older writers cannot overtake.

A writer begins with InitProducerId of the registry's transactional id, which ends the transactions of the writer before
and fences it (KIP-98), and reads to the end; each write is one transaction. A write is done when this process's own
reader has replayed it, so a client that registered a schema reads it from the same registry.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.config_types import ConfigEntry
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.consumer import AsyncConsumer
from klamm.client.consumer.offsets import LATEST, list_offsets
from klamm.client.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from klamm.client.producer import AsyncProducer
from klamm.model.config_resources import ConfigResource
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.registry.store import RegistryState
from klamm.registry.store.log_records import NOOP, LogEntry, parse_key
from klamm.registry.store.refusals import RegistryRefusal
from klamm.telemetry import get_logger

_log = get_logger("registry")

_REPLICAS_MAX: Final = 3
_POLL_S: Final = 1.0
_CATCH_UP_POLL_S: Final = 0.05
_POLL_RECORDS: Final = 2000
_RETRY_S: Final = 1.0
_TOPIC_S: Final = 15.0
"""Within what time each broker is expected to know a topic that another one has created."""
_TOPIC_RETRY_S: Final = 0.1
_OVERHEAD_BYTES: Final = 4096
"""Of a batch and a record around key and value."""
_WARNINGS_MAX: Final = 20
"""Of a kind: a damaged topic must not fill the log."""


class SchemasLog:
    """Reader and writer of the topic; on one event loop."""

    def __init__(self, state: RegistryState, client: Mapping[str, Any], topic: str, transactional_id: str) -> None:
        self._state = state
        self._client = dict(client)
        self._partition = TopicPartition(topic, 0)
        self._transactional_id = transactional_id
        self._consumer: AsyncConsumer[bytes | None, bytes | None] | None = None
        self._producer: AsyncProducer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()
        self._plain_producer: AsyncProducer | None = None
        self.ends_with_marker = False
        """Whether the last offset is the marker of a transaction of ours."""
        self._max_bytes = 0
        self._skips = 0
        self._own_writes: Counter[tuple[bytes | None, bytes | None]] = Counter()
        """Records of this writer that are not replayed yet."""
        self.foreign_writes = 0
        """Records of others that appeared while this registry wrote."""
        self.position = 0
        """Everything before this offset is replayed."""
        self.end = 0
        """The end of the log when it was last read."""
        self.cluster_id = ""

    # Reading

    async def open(self) -> None:
        """Check or create the topic, and start the reader."""
        await self._prepare_topic()
        settings = self._settings(CONSUMER_CONFIGS) | {
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "max.poll.records": _POLL_RECORDS,
            "enable.auto.commit": False,
        }
        settings.pop("group.id", None)
        self._consumer = AsyncConsumer(settings)
        await self._consumer.start()
        self._consumer.assign([self._partition])
        self._reader = asyncio.create_task(self._read(), name="klamm registry reader")

    async def _prepare_topic(self) -> None:
        topic = self._partition.topic
        async with AsyncAdmin(self._settings(ADMIN_CONFIGS)) as admin:
            cluster = await admin.describe_cluster()
            self.cluster_id = cluster.cluster_id or ""
            with suppress(TopicAlreadyExistsError):
                replicas = min(_REPLICAS_MAX, len(cluster.brokers))
                if not any(listing.name == topic for listing in await admin.list_topics(internal=True)):
                    await admin.create_topic(topic, 1, replicas, configs={"cleanup.policy": "compact"})
                    _log.info("topic created", topic=topic, replication_factor=replicas)
            configs = await _read_configs(admin, topic)
            partitions = await admin.partitions_of(topic)
        if len(partitions) != 1:
            raise ConfigError(f"{topic} has {len(partitions)} partitions; a registry needs a topic with one")
        policy = configs["cleanup.policy"].value or ""
        if policy != "compact":
            # With deletion by time the broker would remove schemas that records still use.
            raise ConfigError(
                f"{topic} has cleanup.policy={policy}, which loses schemas:"
                f" klamm topic alter {topic} -c cleanup.policy=compact"
            )
        self._max_bytes = int(configs["max.message.bytes"].value or 1_000_000)

    async def _read(self) -> None:
        try:
            await self._replay_all()
        except Exception as error:
            _log.error("schemas reader ended: this registry serves no changes", error=error)
            # Those that wait for an offset get the error now.
            self._progress.set()
            raise

    async def _replay_all(self) -> None:
        assert self._consumer is not None
        timeout_s = _CATCH_UP_POLL_S
        while True:
            try:
                records = await self._consumer.poll(timeout_s)
            except (KafkaError, OSError) as error:
                _log.warning("schemas topic not read", error=error)
                await asyncio.sleep(_RETRY_S)
                continue
            for record in records:
                reason = self._state.replay(record.key, record.value, record.timestamp)
                if reason is not None:
                    self._report_skip(record.offset, reason)
                self._notice_writer(record.key, record.value, record.offset)
            before = self.position
            position = self._consumer.subscription_state.state(self._partition).position
            self.position = max(self.position, position or 0)
            if self.position != before or records:
                self._progress.set()
            # Markers of transactions move the position without a record: a short poll notices it soon.
            timeout_s = _CATCH_UP_POLL_S if self.position < self.end else _POLL_S
            if len(records) >= _POLL_RECORDS:
                await asyncio.sleep(0)  # a long replay must not keep requests waiting

    def _report_skip(self, offset: int, reason: str) -> None:
        self._skips += 1
        if self._skips <= _WARNINGS_MAX:
            _log.warning("record skipped", topic=self._partition.topic, offset=offset, reason=reason)

    def _notice_writer(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Report a record that this writer did not write: it should be the only one."""
        if self._producer is None and not self._own_writes:
            return
        if self._own_writes[key, value] > 0:
            # Entries of zero would stay, with their keys.
            self._own_writes -= Counter([(key, value)])
            return
        parsed = parse_key(key)
        if self._producer is None or parsed is None or parsed.keytype == NOOP:
            return
        self.foreign_writes += 1
        if self.foreign_writes <= _WARNINGS_MAX:
            advice = "another registry writes to this topic; run all registries of a topic with one --group"
            _log.warning("foreign write", topic=self._partition.topic, offset=offset, advice=advice)

    async def wait_position(self, offset: int, timeout_s: float) -> None:
        """Wait until everything before an offset is replayed; KafkaTimeoutError after `timeout_s`."""
        self.end = max(self.end, offset)
        try:
            async with asyncio.timeout(timeout_s):
                while self.position < offset:
                    self.check()
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise KafkaTimeoutError(
                f"{self._partition} is replayed to {self.position} of {offset} after {timeout_s:g} s"
            ) from None

    async def catch_up(self, timeout_s: float) -> None:
        """Wait until everything that is in the topic now is replayed."""
        assert self._consumer is not None
        offsets = await list_offsets(self._consumer.cluster, {self._partition: LATEST}, timeout_s, committed=True)
        await self.wait_position(offsets[self._partition].offset, timeout_s)

    # Writing

    async def begin_writing(self, timeout_s: float) -> None:
        """Become the only writer: fence the one before, and replay what it wrote."""
        await self.stop_writing()
        producer = AsyncProducer(self._producer_settings() | {"transactional.id": self._transactional_id})
        try:
            await producer.start()
            await producer.init_transactions(timeout_s)
            await self.catch_up(timeout_s)
        except BaseException:
            await producer.close(0)
            raise
        # Of a write that failed: whether it is in the topic is known by now.
        self._own_writes.clear()
        self._producer = producer
        self.ends_with_marker = True

    def _producer_settings(self) -> dict[str, Any]:
        return self._settings(PRODUCER_CONFIGS) | {
            "acks": "all",
            "linger.ms": 0,
            "compression.type": "none",
            "max.request.size": self._max_bytes + _OVERHEAD_BYTES,
        }

    async def stop_writing(self) -> None:
        """Close the producers."""
        producers = (self._producer, self._plain_producer)
        self._producer = self._plain_producer = None
        for producer in producers:
            if producer is not None:
                await producer.close(0)

    def check_sizes(self, entries: Sequence[LogEntry]) -> None:
        """Refuse records that the topic does not take, before a transaction begins."""
        for entry in entries:
            key, value = self._state.encode(entry)
            if len(key) + len(value or b"") + _OVERHEAD_BYTES > self._max_bytes:
                raise RegistryRefusal(
                    42209, f"Schema too large: max.message.bytes of {self._partition.topic} is {self._max_bytes}"
                )

    async def append(self, entries: Sequence[LogEntry], timeout_s: float) -> None:
        """Write records in one transaction, and wait until they are replayed.

        After an error the outcome is unknown, and only `begin_writing` makes it known.
        """
        producer = self._producer
        if producer is None:
            raise KafkaTimeoutError("this registry does not write")
        pairs = [self._state.encode(entry) for entry in entries]
        self._own_writes.update(pairs)
        producer.begin_transaction()
        deliveries = [await producer.send(self._partition.topic, value, key, partition=0) for key, value in pairs]
        await producer.commit_transaction(timeout_s)
        self.ends_with_marker = True
        offset = (await deliveries[-1]).offset
        await self.wait_position(offset + 1, timeout_s)

    async def append_last(self, entry: LogEntry, timeout_s: float) -> None:
        """Write a record without a transaction, so that the topic ends with a record.

        Karapace takes the last offset for that of a record: after a marker it never finds itself at the end, and does
        not lead. Without a transaction nothing fences the record, so it must be one that any leader may write: NOOP.
        """
        if self._plain_producer is None:
            self._plain_producer = AsyncProducer(self._producer_settings())
            await self._plain_producer.start()
        key, value = self._state.encode(entry)
        async with asyncio.timeout(timeout_s):
            await (await self._plain_producer.send(self._partition.topic, value, key, partition=0))
        self.ends_with_marker = False

    async def close(self) -> None:
        """Stop reading and writing."""
        await self.stop_writing()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
        if self._consumer is not None:
            await self._consumer.close()

    @property
    def is_reading(self) -> bool:
        """Whether the reader runs."""
        return self._reader is not None and not self._reader.done()

    def check(self) -> None:
        """Raise the error that ended the reader, if it has ended."""
        if self._reader is not None and self._reader.done() and not self._reader.cancelled():
            self._reader.result()

    def _settings(self, definition: Any) -> dict[str, Any]:
        """Return the client settings that one kind of client takes."""
        return {name: value for name, value in self._client.items() if name in definition}


async def _read_configs(admin: AsyncAdmin, topic: str) -> Mapping[str, ConfigEntry]:
    """Return the settings of a topic, also from a broker that does not know yet that it was created."""
    resource = ConfigResource.topic(topic)
    deadline_s = time.monotonic() + _TOPIC_S
    while True:
        try:
            return (await admin.describe_configs([resource]))[resource]
        except UnknownTopicOrPartitionError:
            if time.monotonic() >= deadline_s:
                raise
        await asyncio.sleep(_TOPIC_RETRY_S)

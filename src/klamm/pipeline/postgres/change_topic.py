"""The Kafka side of a capture: records of changes and their position, in one transaction.

Positions are records of the compacted topic `__klamm_captures`, by the name of the capture. Offsets of a group would
expire when a pipeline is stopped for a week.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from klamm.client import Admin, Consumer, Producer
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.errors import KafkaError, TopicAlreadyExistsError
from klamm.model.errors import ConfigError
from klamm.pipeline.core.connector_options import TopicSelection
from klamm.pipeline.postgres.core.capture_position import CapturePosition
from klamm.pipeline.postgres.core.change_records import ChangeRecord, is_deletion
from klamm.pipeline.topic_metadata import TopicLookup

POSITIONS: Final = "__klamm_captures"
_READ_TIMEOUT_S: Final = 60.0
_TRANSACTION_MS: Final = 900_000
"""The brokers' transaction.max.timeout.ms, by default: a snapshot is one transaction."""


class ChangeTopic:
    """The topic of one captured table."""

    def __init__(self, client: Mapping[str, str], topic: str, capture: str) -> None:
        self.topic = topic
        self._capture = capture
        self._client = client
        self._producer: Producer | None = None

    def _settings(self, definition: Any, **more: str) -> dict[str, Any]:
        settings = {name: value for name, value in self._client.items() if name in definition and name != "group.id"}
        return {**settings, **{name.replace("_", "."): value for name, value in more.items()}}

    def open(self) -> CapturePosition | None:
        """End what an earlier run has left open, and return the position; None for a new capture."""
        with Admin(self._settings(ADMIN_CONFIGS)) as admin:
            if POSITIONS not in {topic.name for topic in admin.list_topics(internal=True)}:
                with suppress(TopicAlreadyExistsError):
                    admin.create_topic(POSITIONS, 1, configs={"cleanup.policy": "compact"})
        settings = self._settings(
            PRODUCER_CONFIGS,
            transactional_id=self._capture,
            transaction_timeout_ms=self._client.get("transaction.timeout.ms", str(_TRANSACTION_MS)),
        )
        self._producer = Producer(settings)
        # Before the position is read: a transaction of an earlier run, or of one that still runs, ends here.
        self._producer.init_transactions()
        return self._read_position()

    def close(self) -> None:
        """Abort an open transaction and disconnect."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    @property
    def producer(self) -> Producer:
        """The transactional producer, once it is open."""
        assert self._producer is not None
        return self._producer

    def topic_id(self) -> str:
        """Return the topic's id: a topic that was created again has another one."""
        with self._lookup(self.topic) as lookup:
            _, ids = lookup.partitions()
        return ids.get(self.topic, "")

    def _lookup(self, topic: str) -> TopicLookup:
        return TopicLookup({**self._client, "isolation.level": "read_committed"}, TopicSelection(topics=(topic,)))

    def begin(self) -> None:
        """Begin a transaction."""
        self.producer.begin_transaction()

    def send(self, records: Iterable[ChangeRecord]) -> None:
        """Add records to the transaction."""
        for record in records:
            self.producer.send(self.topic, record.value, key=record.key)

    def commit(self, position: CapturePosition) -> None:
        """Make the records visible, and store the position beside them."""
        self.producer.send(POSITIONS, position.encode(), key=self._capture.encode(), partition=0)
        self.producer.commit_transaction()

    def abort(self) -> None:
        """Abort the transaction, if the producer still can."""
        with suppress(KafkaError):
            self.producer.abort_transaction()

    def store(self, position: CapturePosition) -> None:
        """Store a position without records."""
        self.begin()
        self.commit(position)

    def _read_position(self) -> CapturePosition | None:
        newest: bytes | None = None
        for key, value in self._read(POSITIONS):
            if key == self._capture.encode():
                newest = value
        return None if newest is None else CapturePosition.decode(newest, POSITIONS)

    def live_keys(self) -> dict[bytes, None]:
        """Return the keys whose newest committed record is no deletion."""
        keys: dict[bytes, None] = {}
        for key, value in self._read(self.topic):
            if key is None:
                continue
            if is_deletion(value):
                keys.pop(key, None)
            else:
                keys[key] = None
        return keys

    def _read(self, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield keys and values of all committed records."""
        with self._lookup(topic) as lookup:
            # Up to the last stable offset: records of this producer's open transaction come after it.
            ends = lookup.ends().offsets
        settings = self._settings(
            CONSUMER_CONFIGS,
            auto_offset_reset="earliest",
            enable_auto_commit="false",
            isolation_level="read_committed",
        )
        with Consumer(settings) as consumer:
            consumer.assign(list(ends))
            deadline = time.monotonic() + _READ_TIMEOUT_S
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                records = consumer.poll(1.0)
                for record in records:
                    yield record.key, record.value
                if records:
                    deadline = time.monotonic() + _READ_TIMEOUT_S
                elif time.monotonic() > deadline:
                    raise ConfigError(f"{topic} sent no records for {_READ_TIMEOUT_S:.0f} s")

"""Dead letters of a pipeline: reads them, and sends them to the topics they came from (redrive).

A redrive commits records and the group's offsets together, in a transaction per 500 records: a letter is sent and
marked as sent, or neither. The group is `klamm-dead-letters-<topic>`.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.client import Consumer, Producer
from klamm.client.config import CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.filter.record_view import RecordLike
from klamm.client.types import OffsetAndMetadata, Record, TopicPartition
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.dead_letter_expressions import CUT
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statements import SOURCE

_PREFIX: Final = "dead_letter."
# Small enough for a transaction to end long before transaction.timeout.ms.
_TRANSACTION_RECORDS: Final = 500
_IDLE_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A bad record, its error and its origin."""

    stream: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    error: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    cut: bool = False
    """Whether it has only the beginning of the record, which was larger than the dead-letter topic takes."""


def parse_dead_letter(record: RecordLike) -> DeadLetterRecord | None:
    """Parse a record of a dead-letter topic; None when another application wrote it."""
    headers = {name: value or b"" for name, value in record.headers if name.startswith(_PREFIX)}
    try:
        return DeadLetterRecord(
            headers["dead_letter.stream"].decode(),
            headers["dead_letter.topic"].decode(),
            int(headers["dead_letter.partition"]),
            int(headers["dead_letter.offset"]),
            int(headers["dead_letter.timestamp"]),
            headers["dead_letter.error"].decode(),
            record.key,
            record.value,
            tuple((name, value) for name, value in record.headers if not name.startswith(_PREFIX)),
            CUT in headers,
        )
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Where the dead letters of one stream or table are."""

    name: str
    """Of the stream or table."""
    topic: str
    of_files: bool = False
    """Whether it reads files, to which nothing can be sent."""
    of_rows: bool = False
    """Whether they are rows that do not fit the registry's schema, and no records of a topic."""

    @property
    def group(self) -> str:
        """The group whose offsets say which were sent again."""
        return f"klamm-dead-letters-{self.topic}"


def find_dead_letter_topic(pipeline: Pipeline, name: str) -> DeadLetterTopic:
    """Return the dead letters of a stream or table; ConfigError when it has none."""
    topics = {**pipeline.refused_rows, **pipeline.dead_letters}
    spellings = {stream.lower(): stream for stream in topics}
    if name.lower() not in spellings:
        raise ConfigError(f"{name} has no dead letters{suggest(name, topics)}")
    stream = spellings[name.lower()]
    is_source = pipeline.node(stream).kind == SOURCE
    return DeadLetterTopic(stream, topics[stream], is_source, stream in pipeline.refused_rows)


class StoredDeadLetters:
    """The dead letters of one topic and stream.

    With `origins`, a redrive refuses letters of other topics: a producer of the dead-letter topic may name any.
    """

    def __init__(
        self, place: DeadLetterTopic, client: Mapping[str, Any], origins: Container[str] | None = None
    ) -> None:
        self.name = place.name
        self.topic = place.topic
        self.group = place.group
        self._of_files = place.of_files
        self._of_rows = place.of_rows
        self._client = client
        self._origins = origins
        self.lost = 0

    def _consumer(self) -> Consumer:
        settings = {name: value for name, value in self._client.items() if name in CONSUMER_CONFIGS}
        settings |= {"group.id": self.group, "isolation.level": "read_committed", "enable.auto.commit": "false"}
        return Consumer(settings)

    def counts(self) -> dict[str, Any]:
        """Return how many there are, and how many were not sent again.

        They are read and counted: offsets also count transaction markers, and the topic may be shared.
        """
        total = waiting = 0
        with self._consumer() as consumer:
            partitions = [TopicPartition(self.topic, index) for index in consumer.partitions_for(self.topic)]
            sent = consumer.committed(partitions)
            for record in self._records(consumer, again=True):
                letter = parse_dead_letter(record)
                if letter is not None and letter.stream == self.name:
                    committed = sent.get(TopicPartition(record.topic, record.partition))
                    total += 1
                    waiting += committed is None or record.offset >= committed.offset
        return {"stream": self.name, "topic": self.topic, "records": total, "waiting": waiting}

    def read(self, limit: int, *, again: bool = False) -> list[DeadLetterRecord]:
        """Return dead letters, oldest first; with `again` also those that were sent already."""
        letters: list[DeadLetterRecord] = []
        with self._consumer() as consumer:
            for record in self._records(consumer, again=again):
                letter = parse_dead_letter(record)
                if letter is not None and letter.stream == self.name:
                    letters.append(letter)
                if len(letters) >= limit:
                    break
        return letters

    def redrive(self, limit: int | None = None) -> int:
        """Send dead letters, unchanged, to the topics they came from; return how many.

        Of a letter that was cut the record is read where it came from; `lost` counts those that are gone by now.
        """
        self.lost = 0
        if self._of_rows:
            raise ConfigError(
                f"{self.name} could not write these rows with the registry's schema: change the schema or the SELECT,"
                f" and send their source records again"
            )
        if self._of_files:
            raise ConfigError(f"{self.name} reads files: put the rows, corrected, into a new file")
        settings = {name: value for name, value in self._client.items() if name in PRODUCER_CONFIGS}
        # One id per topic: of two redrives at the same time the second fences the first.
        settings["transactional.id"] = self.group
        sent = 0
        with self._consumer() as consumer, Producer(settings) as producer:
            producer.init_transactions()
            portion: list[Record] = []
            for record in self._records(consumer, again=False):
                portion.append(record)
                if len(portion) >= _TRANSACTION_RECORDS:
                    sent += self._send(producer, portion, None if limit is None else limit - sent)
                    portion = []
                if limit is not None and sent + len(portion) >= limit:
                    break
            sent += self._send(producer, portion, None if limit is None else limit - sent)
        return sent

    def _send(self, producer: Producer, records: list[Record], limit: int | None) -> int:
        count = 0
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        if not records or limit == 0:
            return 0
        with producer.transaction():
            for record in records:
                letter = parse_dead_letter(record)
                if letter is not None and letter.stream == self.name and letter.cut:
                    letter = self._read_original(letter)
                    self.lost += letter is None
                if letter is not None and letter.stream == self.name:
                    if self._origins is not None and letter.topic not in self._origins:
                        raise ConfigError(
                            f"a letter of {self.topic} is for {letter.topic}, which {self.name} does not read"
                        )
                    producer.send(letter.topic, letter.value, key=letter.key, headers=list(letter.headers))
                    count += 1
                # Letters of other streams are passed over, and their offsets committed: the topic may be shared.
                offsets[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset + 1)
            producer.send_offsets_to_transaction(offsets, self.group)
        return count

    def _read_original(self, letter: DeadLetterRecord) -> DeadLetterRecord | None:
        """Return a letter with the bytes of its record; None when retention or compaction has removed that."""
        partition = TopicPartition(letter.topic, letter.partition)
        settings = {name: value for name, value in self._client.items() if name in CONSUMER_CONFIGS}
        settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        with Consumer({name: value for name, value in settings.items() if name != "group.id"}) as consumer:
            if letter.offset < consumer.beginning_offsets([partition])[partition]:
                return None
            consumer.assign([partition])
            consumer.seek(partition, letter.offset)
            deadline = time.monotonic() + _IDLE_TIMEOUT_S
            while time.monotonic() < deadline:
                for record in consumer.poll(0.5, 1):
                    # After compaction the next record is returned instead.
                    if record.offset != letter.offset:
                        return None
                    return replace(letter, key=record.key, value=record.value, headers=tuple(record.headers))
                if consumer.position(partition) > letter.offset:
                    return None
        raise TimeoutError(f"no record of {partition} for {_IDLE_TIMEOUT_S:.0f} s")

    def _records(self, consumer: Consumer, *, again: bool) -> Iterator[Record]:
        """Yield the topic's records up to its current end, from where the last redrive ended."""
        partitions = [TopicPartition(self.topic, index) for index in consumer.partitions_for(self.topic)]
        ends = consumer.end_offsets(partitions)
        first = consumer.beginning_offsets(partitions)
        sent = {} if again else consumer.committed(partitions)
        # assign, not subscribe: the group only stores offsets, and no rebalance delays the command.
        consumer.assign(partitions)
        positions = {}
        for partition in partitions:
            committed = sent.get(partition)
            # Retention may have removed letters that were never sent again.
            positions[partition] = max(first[partition], committed.offset if committed else 0)
            consumer.seek(partition, positions[partition])
        deadline = time.monotonic() + _IDLE_TIMEOUT_S
        while any(positions[partition] < ends[partition] for partition in partitions):
            for record in consumer.poll(0.5, _TRANSACTION_RECORDS):
                record_partition = TopicPartition(record.topic, record.partition)
                # Letters that arrive meanwhile, perhaps those just redriven and bad again, wait for the next run.
                if record.offset < ends[record_partition]:
                    yield record
                deadline = time.monotonic() + _IDLE_TIMEOUT_S
            # The position passes transaction markers, which poll never returns.
            for partition in partitions:
                positions[partition] = consumer.position(partition)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no record of {self.topic} for {_IDLE_TIMEOUT_S:.0f} s")


class DeadLetters(StoredDeadLetters):
    """The dead letters of one stream or table of a pipeline."""

    def __init__(self, pipeline: Pipeline, name: str, client: Mapping[str, Any]) -> None:
        bootstrap = pipeline.settings.get("bootstrap")
        settings = {**client, **({"bootstrap.servers": bootstrap} if bootstrap else {})}
        super().__init__(find_dead_letter_topic(pipeline, name), settings)

"""Dead letters of a pipeline: looking at them, and sending them where they came from once that makes sense.

A redrive is one transaction per portion: the letters are in their topic again and marked as sent, or neither. What is
marked lies in the group `klamm-dead-letters-<topic>`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.client import Consumer, Producer
from klamm.client.config import CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.types import OffsetAndMetadata, Record, TopicPartition
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statements import SOURCE

_PREFIX: Final = "dead_letter."
_PORTION: Final = 500
_QUIET_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A bad record and where it comes from."""

    stream: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    error: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def parse_dead_letter(record: Record) -> DeadLetterRecord | None:
    """The letter in a record; None when it is none, as others may write to the topic too."""
    told = {name: value or b"" for name, value in record.headers if name.startswith(_PREFIX)}
    try:
        return DeadLetterRecord(
            told["dead_letter.stream"].decode(),
            told["dead_letter.topic"].decode(),
            int(told["dead_letter.partition"]),
            int(told["dead_letter.offset"]),
            int(told["dead_letter.timestamp"]),
            told["dead_letter.error"].decode(),
            record.key,
            record.value,
            tuple((name, value) for name, value in record.headers if not name.startswith(_PREFIX)),
        )
    except (KeyError, ValueError):
        return None


class DeadLetters:
    """The dead letters of one stream or table."""

    def __init__(self, pipeline: Pipeline, name: str, client: Mapping[str, Any]) -> None:
        known = pipeline.dead_letters
        proper = {each.lower(): each for each in known}
        if name.lower() not in proper:
            raise ConfigError(f"{name} has no dead letters{suggest(name, known)}")
        self.name = proper[name.lower()]
        self._of_files = pipeline.node(self.name).kind == SOURCE
        self.topic = known[self.name]
        self.group = f"klamm-dead-letters-{self.topic}"
        said = pipeline.settings.get("bootstrap")
        self._client = {**client, **({"bootstrap.servers": said} if said else {})}

    def _consumer(self) -> Consumer:
        settings = {name: value for name, value in self._client.items() if name in CONSUMER_CONFIGS}
        settings |= {"group.id": self.group, "isolation.level": "read_committed", "enable.auto.commit": "false"}
        return Consumer(settings)

    def counts(self) -> dict[str, Any]:
        """How many there are, and how many were not sent again; offsets are counted, markers among them."""
        with self._consumer() as consumer:
            places = [TopicPartition(self.topic, each) for each in consumer.partitions_for(self.topic)]
            first, last = consumer.beginning_offsets(places), consumer.end_offsets(places)
            sent = consumer.committed(places)
        waiting = 0
        for place in places:
            done = sent.get(place)
            waiting += last[place] - max(first[place], done.offset if done else 0)
        total = sum(last[place] - first[place] for place in places)
        return {"stream": self.name, "topic": self.topic, "records": total, "waiting": waiting}

    def read(self, limit: int, *, again: bool = False) -> list[DeadLetterRecord]:
        """Letters, oldest first; with `again` also those that were sent already."""
        found: list[DeadLetterRecord] = []
        with self._consumer() as consumer:
            for record in self._records(consumer, again=again):
                letter = parse_dead_letter(record)
                if letter is not None and letter.stream == self.name:
                    found.append(letter)
                if len(found) >= limit:
                    break
        return found

    def redrive(self, limit: int | None = None) -> int:
        """Send letters to the topics they came from, as they were; returns how many."""
        if self._of_files:
            raise ConfigError(f"{self.name} reads files: put the rows, corrected, into a new file")
        settings = {name: value for name, value in self._client.items() if name in PRODUCER_CONFIGS}
        settings["transactional.id"] = self.group
        sent = 0
        with self._consumer() as consumer, Producer(settings) as producer:
            producer.init_transactions()
            portion: list[Record] = []
            for record in self._records(consumer, again=False):
                portion.append(record)
                if len(portion) >= _PORTION:
                    sent += self._send(producer, portion, None if limit is None else limit - sent)
                    portion = []
                if limit is not None and sent + len(portion) >= limit:
                    break
            sent += self._send(producer, portion, None if limit is None else limit - sent)
        return sent

    def _send(self, producer: Producer, records: list[Record], limit: int | None) -> int:
        count = 0
        places: dict[TopicPartition, OffsetAndMetadata] = {}
        if not records or limit == 0:
            return 0
        with producer.transaction():
            for record in records:
                letter = parse_dead_letter(record)
                if letter is not None and letter.stream == self.name:
                    producer.send(letter.topic, letter.value, key=letter.key, headers=list(letter.headers))
                    count += 1
                places[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset + 1)
            producer.send_offsets_to_transaction(places, self.group)
        return count

    def _records(self, consumer: Consumer, *, again: bool) -> Iterator[Record]:
        """What is in the topic now, from where the last redrive ended."""
        places = [TopicPartition(self.topic, each) for each in consumer.partitions_for(self.topic)]
        ends = consumer.end_offsets(places)
        first = consumer.beginning_offsets(places)
        sent = {} if again else consumer.committed(places)
        consumer.assign(places)
        at = {}
        for place in places:
            done = sent.get(place)
            at[place] = max(first[place], done.offset if done else 0)
            consumer.seek(place, at[place])
        deadline = time.monotonic() + _QUIET_S
        while any(at[place] < ends[place] for place in places):
            for record in consumer.poll(0.5, _PORTION):
                where = TopicPartition(record.topic, record.partition)
                if record.offset < ends[where]:
                    yield record
                deadline = time.monotonic() + _QUIET_S
            for place in places:
                at[place] = consumer.position(place)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.topic} says nothing for {_QUIET_S:.0f} s")

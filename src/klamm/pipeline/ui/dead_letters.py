"""Reads the newest dead letters of a pipeline's topics, without a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from klamm.client import Consumer
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql.dead_letters import parse_dead_letter

_NEWEST: Final = 20
_READ_TIMEOUT_S: Final = 5.0
_VALUE_CHARS_MAX: Final = 200


def newest_letters(connect: Callable[[], Consumer], topics: Iterable[str]) -> list[dict[str, Any]]:
    """Return the newest dead letters, the newest first."""
    letters: list[dict[str, Any]] = []
    with connect() as consumer:
        partitions = [TopicPartition(topic, index) for topic in topics for index in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        # Twice as many offsets: every transaction has a marker, which is no record.
        starts = {partition: max(end - 2 * _NEWEST, 0) for partition, end in ends.items() if end}
        consumer.assign(list(starts))
        for partition, start in starts.items():
            consumer.seek(partition, start)
        deadline = time.monotonic() + _READ_TIMEOUT_S
        pending = set(starts)
        while pending and time.monotonic() < deadline:
            for record in consumer.poll(0.2, 1000):
                letter = parse_dead_letter(record)
                if letter is not None:
                    letters.append(
                        {
                            "time_ms": record.timestamp,
                            "stream": letter.stream,
                            "origin": f"{letter.topic}-{letter.partition} offset {letter.offset}",
                            "error": letter.error,
                            "value": (letter.value or b"").decode(errors="replace")[:_VALUE_CHARS_MAX],
                        }
                    )
            pending = {partition for partition in pending if consumer.position(partition) < ends[partition]}
    return sorted(letters, key=_time, reverse=True)[:_NEWEST]


def _time(letter: dict[str, Any]) -> int:
    return int(letter["time_ms"])

"""Decides what a batch of a rebuilt query does with its rows, by how far its sources are. Pure.

    STAGE    the query has not caught up: rows are kept aside, readers see the rows of the generation before
    SWITCH   it catches up with this batch: the difference to those rows is written, as one batch
    WRITE    it has caught up: rows are written as by any query

Only positions of the checkpoint decide, so that a batch that is run again does the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from klamm.pipeline.core.batch_ledger import BatchPosition
from klamm.pipeline.sql.core.query_progress import read_offsets

SourceOffsets = Mapping[tuple[str, int], int]


def lost_offsets(starts: SourceOffsets, began: SourceOffsets) -> dict[tuple[str, int], int]:
    """Return how many offsets each partition has lost since a query began; `began` lacks those read from the first."""
    gone = {partition: start - began.get(partition, 0) for partition, start in starts.items()}
    return {partition: count for partition, count in gone.items() if count > 0}


class RebuildStep(Enum):
    """What a batch does with its rows."""

    STAGE = auto()
    SWITCH = auto()
    WRITE = auto()


@dataclass(frozen=True, slots=True)
class RebuildTarget:
    """The ends of the sources when the rebuild began; partitions without records are left out."""

    ends: SourceOffsets
    emits_later: bool = False
    """Whether rows of a batch may come with the one after it, which has the watermark of both."""

    def encode(self) -> str:
        """Return the text of the file in the checkpoint."""
        ends = [[topic, partition, end] for (topic, partition), end in sorted(self.ends.items())]
        return json.dumps({"version": 1, "ends": ends, "emits_later": self.emits_later}) + "\n"

    @classmethod
    def decode(cls, text: str) -> RebuildTarget:
        """Parse the text of the file in the checkpoint."""
        document = json.loads(text)
        ends = {(str(topic), int(partition)): int(end) for topic, partition, end in document["ends"]}
        return cls(ends, bool(document["emits_later"]))

    def is_reached(self, position: BatchPosition | None) -> bool:
        """Whether all sources are at their ends, or behind them; not before the first batch."""
        if position is None:
            return False
        sources: list[Any] = position.ends
        return not self.unread(read_offsets({"sources": [{"endOffset": end} for end in sources]}))

    def unread(self, offsets: SourceOffsets) -> int:
        """Return the number of offsets up to the ends."""
        return sum(max(end - offsets.get(partition, 0), 0) for partition, end in self.ends.items())

    def step(self, start: BatchPosition | None, end: BatchPosition | None, before: BatchPosition | None) -> RebuildStep:
        """Return what a batch from `start` to `end` does; `before` is the start of the batch before it."""
        if self.emits_later:
            # One batch later: only that one is sure to have the rows whose windows this batch closes.
            start, end = before, start
        if self.is_reached(start):
            return RebuildStep.WRITE
        return RebuildStep.SWITCH if self.is_reached(end) else RebuildStep.STAGE

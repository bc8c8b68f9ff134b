"""Reads the files of a query's checkpoint: which batches Spark has planned, from where to where, and has committed.

`offsets/N` is written before batch N runs: a version, a line of metadata with the watermark, and the end position of
each source. `commits/N` is written after it. Spark keeps the newest hundred of each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from klamm.pipeline.core.batch_ledger import parse_offsets_file


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch as it was planned: the watermark it runs with, and where each of its sources ends."""

    watermark_ms: int
    ends: tuple[Mapping[str, Any] | None, ...]
    """As JSON; None for a source that has no data yet."""


def last_batch(checkpoint: str, log: str) -> int:
    """Return the newest batch in the log `offsets` or `commits`; -1 when there is none, or it cannot be read here."""
    try:
        return max((int(name) for name in os.listdir(os.path.join(checkpoint, log)) if name.isdecimal()), default=-1)
    except OSError:
        return -1


def planned_batch(checkpoint: str, batch: int) -> PlannedBatch | None:
    """Return a planned batch; None when its file is gone or unreadable."""
    try:
        with open(os.path.join(checkpoint, "offsets", str(batch)), encoding="utf-8") as file:
            return parse_planned(file.read())
    except OSError:
        return None


def parse_planned(text: str) -> PlannedBatch | None:
    """Parse a file of the log `offsets`."""
    position = parse_offsets_file(text)
    if position is None or text.startswith("{"):  # a source of a database has no watermark
        return None
    try:
        metadata = json.loads(text.splitlines()[1])
        return PlannedBatch(int(metadata.get("batchWatermarkMs", 0)), tuple(position.ends))
    except (AttributeError, TypeError, ValueError):
        return None

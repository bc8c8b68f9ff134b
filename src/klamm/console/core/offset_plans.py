"""Resetting a group: from which offsets to which, decided before anything is committed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from klamm.model.ids import TopicPartition
from klamm.model.units import parse_time_ms


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where to: `earliest`, `latest`, `time`, `offset`, or `shift` from the committed offset."""

    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition: the committed offset and the new one."""

    topic: str
    partition: int
    before: int | None
    after: int
    records: int
    """Records that are read again (positive) or skipped (negative)."""
    clamped: bool = False
    """Whether the log does not reach to the offset that was requested."""


def parse_reset(text: str, now_ms: int) -> ResetTarget:
    """Parse `earliest`, `latest`, `@1200`, `+10`, `-10` or a time; ValueError shows how to write one."""
    words = text.strip()
    if words in ("earliest", "latest"):
        return ResetTarget(words)
    if re.fullmatch(r"[+-]\d{1,18}", words):
        return ResetTarget("shift", int(words))
    if re.fullmatch(r"@?\d{1,18}", words):
        return ResetTarget("offset", int(words.removeprefix("@")))
    try:
        return ResetTarget("time", parse_time_ms(words, now_ms))
    except ValueError:
        raise ValueError(
            f"{text!r} is no position: write earliest, latest, an offset, +N, -N, 2h ago or 2026-05-01T12:00:00Z"
        ) from None


def plan_reset(
    target: ResetTarget,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    timed: Mapping[TopicPartition, int],
) -> list[OffsetMove]:
    """Return the moves, within what each partition holds; ValueError when a partition has no leader.

    All or nothing: a group that is moved in some partitions only would read an inconsistent cut. An offset outside of
    the log would make the members reset by auto.offset.reset, which undoes the plan, so it is moved to the nearest.
    """
    moves = []
    for partition in sorted(partitions):
        if partition not in starts or partition not in ends:
            raise ValueError(f"{partition.topic}-{partition.partition} has no leader; nothing can be moved now")
        start, end = starts[partition], ends[partition]
        before = committed.get(partition)
        wanted = _choose_offset(target, before, start, end, timed.get(partition, -1))
        after = min(max(wanted, start), end)
        origin = start if before is None else min(max(before, start), end)
        moves.append(OffsetMove(partition.topic, partition.partition, before, after, origin - after, after != wanted))
    return moves


def _choose_offset(target: ResetTarget, before: int | None, start: int, end: int, timed: int) -> int:
    if target.kind == "earliest":
        return start
    if target.kind == "latest":
        return end
    if target.kind == "offset":
        return target.value
    if target.kind == "shift":
        return (start if before is None else before) + target.value
    # ListOffsets answers -1 for a time after the last record.
    return timed if timed >= 0 else end

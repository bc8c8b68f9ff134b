"""Seeking a consumer group: where its committed offsets go, within what each partition holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from klamm.cli.queries.groups import commit_offsets, committed_offsets, sibling_partitions
from klamm.cli.queries.offsets import EARLIEST, LATEST, PartitionPair, list_offsets
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.units import parse_iso_ms


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """Where to seek to: an offset, a step from the committed one, or a timestamp (EARLIEST and LATEST among them)."""

    offset: int | None = None
    step: int | None = None
    timestamp: int | None = None


def parse_target(text: str) -> SeekTarget:
    """Parse a seek target; ValueError shows how to write one."""
    if text in ("earliest", "latest"):
        return SeekTarget(timestamp=EARLIEST if text == "earliest" else LATEST)
    # A sign means a step from the committed offset, never a negative offset.
    if re.fullmatch(r"[+-]\d+", text):
        return SeekTarget(step=int(text))
    if text.isdecimal():
        return SeekTarget(offset=int(text))
    try:
        return SeekTarget(timestamp=parse_iso_ms(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is no position: write earliest, latest, an offset, +N, -N or a time such as 2026-05-01T12:00:00Z"
        ) from None


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """Parse TOPIC or TOPIC:0,1; ValueError shows how to write one."""
    name, colon, listed = text.partition(":")
    if not colon:
        return name, None
    if not re.fullmatch(r"\d+(,\d+)*", listed):
        raise ValueError(f"{text!r} names no partitions: write TOPIC:0,1,2")
    return name, [int(index) for index in listed.split(",")]


def seek_group(
    cluster: BlockingCluster,
    name: str,
    target: SeekTarget,
    topics: Sequence[tuple[str, list[int] | None]],
    *,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """Move a group's offsets, within what each partition holds; returns what was moved from where to where.

    Without `topics`, in all partitions of the topics it has offsets in. `wanted` of a row is the requested offset,
    where the partition does not hold it.
    """
    committed = committed_offsets(cluster, name)
    partitions = _partitions(cluster, topics) if topics else sorted(sibling_partitions(cluster, committed))
    earliest, latest = list_offsets(cluster, partitions, EARLIEST), list_offsets(cluster, partitions, LATEST)
    timed = {} if target.timestamp is None else list_offsets(cluster, partitions, target.timestamp)
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        topic, index = partition
        # All or nothing: a group that is moved in some partitions only reads an inconsistent cut.
        if partition not in latest:
            raise KlammError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{index} has no leader; nothing was changed")
        # A group may have no offset in a partition that was added after its last commit.
        before = next((position.offset for where, position in committed.items() if where == partition), None)
        if target.step is not None:
            # Without a commit a group would begin by auto.offset.reset, which only its members know; earliest skips
            # nothing.
            wanted = (earliest[partition] if before is None else before) + target.step
        elif target.offset is not None:
            wanted = target.offset
        else:
            # ListOffsets answers -1 for a time after the last record: the group waits at the end then.
            wanted = timed[partition] if timed.get(partition, -1) >= 0 else latest[partition]
        # An offset out of range would trigger auto.offset.reset in the members and undo the seek.
        to = min(max(wanted, earliest[partition]), latest[partition])
        row = {"topic": topic, "partition": index, "before": before, "offset": to}
        rows.append(row if to == wanted else {**row, "wanted": wanted})
    if not dry_run:
        commit_offsets(cluster, name, {(row["topic"], row["partition"]): row["offset"] for row in rows})
    return rows


def _partitions(cluster: BlockingCluster, topics: Sequence[tuple[str, list[int] | None]]) -> list[PartitionPair]:
    cluster.run(cluster.refresh([name for name, _ in topics]))
    places: set[PartitionPair] = set()
    for name, partitions in topics:
        topic = cluster.table.topics.get(name)
        if topic is None or topic.error_code:
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        count = len(topic.partitions)
        for partition in range(count) if partitions is None else partitions:
            if partition >= count:
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has {count} partitions")
            places.add((name, partition))
    return sorted(places)

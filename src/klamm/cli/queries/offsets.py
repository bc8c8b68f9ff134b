"""Positions in partitions: offsets by time or by number, and deleting records before one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from klamm.client.admin.offset_types import OffsetSpec
from klamm.client.admin.offsets import OffsetsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import SomeFailed
from klamm.client.types import TopicPartition
from klamm.model.units import parse_time_ms

PartitionPair = tuple[str, int]
"""Topic and partition; a TopicPartition is one."""
"""A topic and a partition."""

EARLIEST = OffsetSpec.EARLIEST
LATEST = OffsetSpec.LATEST
_FIRST = ("earliest", "beginning", "start")
_LAST = ("latest", "end")


class InvalidPosition(ValueError):
    """The text is no position in a partition; the message shows how to write one."""


def check_position(text: str) -> None:
    """InvalidPosition unless `resolve_position` understands the text."""
    words = text.strip()
    if words in _FIRST or words in _LAST or words.removeprefix("-").isdecimal():
        return
    try:
        parse_time_ms(words, 0)
    except ValueError:
        raise InvalidPosition(
            f"{text!r} is no position; write earliest, latest, an offset, -N (from the end)"
            " or a time such as 2h or 2026-05-01T12:00:00Z"
        ) from None


def resolve_position(
    cluster: BlockingCluster, places: Iterable[PartitionPair], text: str, *, committed: bool = False
) -> dict[PartitionPair, int]:
    """An offset for each partition from `earliest`, `latest`, a number, `-N` from the end, or a time.

    A number is brought into what the partition holds. With `committed` the end is the last stable offset.
    """
    check_position(text)
    wanted = list(places)
    first, last = list_offsets(cluster, wanted, EARLIEST), end_offsets(cluster, wanted, committed=committed)
    words = text.strip()
    if words in _FIRST:
        return first
    if words in _LAST:
        return last
    if is_offset(words):
        return {place: min(max(int(words), first[place]), last[place]) for place in last}
    if words.startswith("-") and words[1:].isdecimal():
        return {place: max(last[place] - int(words[1:]), first[place]) for place in last}
    timed = list_offsets(cluster, wanted, parse_time_ms(words, int(time.time() * 1000)))
    return {place: timed[place] if timed.get(place, -1) >= 0 else last[place] for place in last}


def is_offset(text: str) -> bool:
    """Whether a number is meant as an offset; longer ones are milliseconds since 1970."""
    return text.strip().isdecimal() and len(text.strip()) < 12


def end_offsets(
    cluster: BlockingCluster, places: Iterable[PartitionPair], *, committed: bool = False
) -> dict[PartitionPair, int]:
    """Where each partition ends for a reader: at its last stable offset when only what is committed is read."""
    return list_offsets(cluster, places, LATEST, committed=committed)


def list_offsets(
    cluster: BlockingCluster, places: Iterable[PartitionPair], timestamp: int, *, committed: bool = False
) -> dict[PartitionPair, int]:
    """The offset at a time (or EARLIEST, LATEST) of each partition; those without a leader are left out.

    With `committed` a partition ends at its last stable offset.
    """
    specs = dict.fromkeys((TopicPartition(*place) for place in places), timestamp)
    isolation = "read_committed" if committed else "read_uncommitted"
    offsets = cluster.run(OffsetsAdmin(cluster).list_available_offsets(specs, isolation=isolation))
    return {partition: position.offset for partition, position in offsets.items()}


def delete_records(cluster: BlockingCluster, before: Mapping[PartitionPair, int]) -> dict[PartitionPair, int]:
    """Delete the records before an offset of each partition; where each begins now."""
    offsets = {TopicPartition(*place): offset for place, offset in before.items()}
    try:
        starts = cluster.run(OffsetsAdmin(cluster).delete_records(offsets))
    except SomeFailed as error:
        raise next(iter(error.failures.values())) from None
    return {partition: start for partition, start in starts.items()}  # noqa: C416 - widens the key's type

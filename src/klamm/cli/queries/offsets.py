"""Places in topics: offsets by time or by number, and forgetting what lies before one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from klamm.cli.units import parse_time_ms
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.groups import EARLIEST, LATEST, Place, list_offsets
from klamm.model.errors import ErrorCode, KlammError

READ_COMMITTED = 1
_TIMEOUT_MS = 30_000
_FIRST = ("earliest", "beginning", "start")
_LAST = ("latest", "end")


class NoPlace(ValueError):
    """What was written names no place in a partition; says how to write one."""


def check_place(text: str) -> None:
    """NoPlace unless `resolve_place` understands the text."""
    words = text.strip()
    if words in _FIRST or words in _LAST or words.removeprefix("-").isdecimal():
        return
    try:
        parse_time_ms(words, 0)
    except ValueError:
        raise NoPlace(
            f"{text!r} is no place; write earliest, latest, an offset, -N (from the end)"
            " or a time such as 2h or 2026-05-01T12:00:00Z"
        ) from None


def resolve_place(
    cluster: BlockingCluster, places: Iterable[Place], text: str, *, committed: bool = False
) -> dict[Place, int]:
    """An offset for each partition from `earliest`, `latest`, a number, `-N` from the end, or a time.

    A number is brought into what the partition holds. With `committed` the end is the last stable offset.
    """
    check_place(text)
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


def end_offsets(cluster: BlockingCluster, places: Iterable[Place], *, committed: bool = False) -> dict[Place, int]:
    """Where each partition ends for a reader: at its last stable offset when only what is committed is read."""
    return list_offsets(cluster, places, LATEST, READ_COMMITTED if committed else 0)


def delete_records(cluster: BlockingCluster, goals: Mapping[Place, int]) -> dict[Place, int]:
    """Forget what lies before an offset of each partition; where each begins now."""
    from klamm.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

    found = {}
    for (topic, partition), goal in goals.items():
        asked = DeleteRecordsTopic(
            name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=goal)]
        )
        leader = cluster.leader(topic, partition)
        result = leader.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=_TIMEOUT_MS)).topics[0].partitions[0]
        if result.error_code:
            code = ErrorCode(result.error_code)
            raise KlammError(code, f"{topic}-{partition} was not trimmed: {code.text}")
        found[topic, partition] = result.low_watermark
    return found

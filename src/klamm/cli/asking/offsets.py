"""Places in topics: offsets by time or by number, and forgetting what lies before one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from klamm.cli.units import parse_time_ms
from klamm.client.groups import EARLIEST, LATEST, Place, list_offsets
from klamm.client.wire import Cluster
from klamm.model.errors import ErrorCode, KlammError

_TIMEOUT_MS = 30_000


def resolve_place(cluster: Cluster, places: Iterable[Place], text: str) -> dict[Place, int]:
    """An offset for each partition from `earliest`, `latest`, a number, `-N` from the end, or a time."""
    wanted = list(places)
    first, last = list_offsets(cluster, wanted, EARLIEST), list_offsets(cluster, wanted, LATEST)
    words = text.strip()
    if words in ("earliest", "beginning", "start"):
        return first
    if words in ("latest", "end"):
        return last
    if words.isdecimal() and len(words) < 12:
        return {place: min(max(int(words), first[place]), last[place]) for place in last}
    if words.startswith("-") and words[1:].isdecimal():
        return {place: max(last[place] - int(words[1:]), first[place]) for place in last}
    try:
        moment = parse_time_ms(words, int(time.time() * 1000))
    except ValueError as error:
        raise KlammError(ErrorCode.INVALID_REQUEST, str(error)) from None
    timed = list_offsets(cluster, wanted, moment)
    return {place: timed[place] if timed.get(place, -1) >= 0 else last[place] for place in last}


def delete_records(cluster: Cluster, goals: Mapping[Place, int]) -> dict[Place, int]:
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

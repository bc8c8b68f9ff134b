"""What client programs reported, compared with what the log holds."""

from collections import defaultdict
from typing import Any

from ecosystem.clients import Client, events
from ecosystem.cluster import Read
from ecosystem.processes import Process


def positions(reported: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
    """The number of the record at each acknowledged offset."""
    return {(event["partition"], event["offset"]): event["number"] for event in reported}


def numbers(records: list[Read]) -> dict[int, list[int]]:
    """The numbers of the records of each partition, in the order of the log."""
    in_order = defaultdict(list)
    for record in records:
        in_order[record.partition].append(int(record.text[:8]))
    return dict(in_order)


def seen(member: Process) -> list[tuple[int, int]]:
    return [(event["partition"], event["offset"]) for event in events(member.text, "record")]


def wait_for_more_records(member: Process, count: int) -> None:
    member.wait_line('"record"', times=member.text.count('"record"') + count)


def wait_for_acknowledged(producer: Process, count: int) -> None:
    producer.wait_line('"acknowledged"', times=producer.text.count('"acknowledged"') + count)


def assert_rising(member: Process) -> None:
    """A member reads each partition in order, from where its group had got to each time it is given partitions."""
    last: dict[int, int] = {}
    for event in events(member.text):
        if event["event"] == "assigned":
            last = {}
        if event["event"] == "record":
            assert event["offset"] > last.get(event["partition"], -1), event
            last[event["partition"]] = event["offset"]


def assert_kept(client: Client, records: list[Read], acknowledged: dict[tuple[int, int], int]) -> None:
    kept = {(record.partition, record.offset): int(record.text[:8]) for record in records}
    missing = {place: number for place, number in acknowledged.items() if kept.get(place) != number}
    assert not missing, f"{len(missing)} acknowledged records are not in the log, first {min(missing.items())}"
    for partition, in_order in numbers(records).items():
        expected = sorted(set(in_order)) if client.is_idempotent else sorted(in_order)
        assert in_order == expected, f"partition {partition}: records twice or out of order"

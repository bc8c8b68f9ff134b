"""The new offsets of kafka-consumer-groups --reset-offsets, in its eight scenarios."""

from __future__ import annotations

import csv
import datetime as dt
import re
import time
from typing import TYPE_CHECKING

from klamm.cli.kafka.options import Parsed, Usage, java_integer
from klamm.cli.queries.offsets import EARLIEST, LATEST, PartitionPair, list_offsets
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

_DURATION = re.compile(r"(-)?P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def new_offsets(cluster: BlockingCluster, parsed: Parsed, name: str) -> dict[PartitionPair, int] | None:
    """The new offset of each partition in scope; None, after an error was printed, when the group is active."""
    from klamm.cli.queries.groups import committed_offsets, find_group

    # As Kafka's tool, which knows no groups of other types.
    group = find_group(cluster, name, "consumer")
    if group is not None and group.state not in ("Empty", "Dead"):
        print(
            f"\nError: Assignments can only be reset if the group '{name}' is inactive, but the current state is"
            f" {group.state}."
        )
        return None
    committed: dict[PartitionPair, int] = {}
    if group is not None:
        committed.update({place: position.offset for place, position in committed_offsets(cluster, name).items()})
    if parsed.has("from-file"):
        goals = _from_file(parsed.text("from-file"), name)
        _check_exist(cluster, list(goals))
        return _clamp_offsets(cluster, goals)
    # All topics of the group, not of the cluster.
    places = sorted(committed) if parsed.has("all-topics") else partitions(cluster, parsed.all("topic"))
    _check_exist(cluster, places)
    first, last = list_offsets(cluster, places, EARLIEST), list_offsets(cluster, places, LATEST)
    if parsed.has("to-earliest"):
        return first
    if parsed.has("to-latest"):
        return last
    if parsed.has("to-current"):
        # A committed offset may have been deleted by retention since.
        return {place: min(max(committed.get(place, last[place]), first[place]), last[place]) for place in places}
    if parsed.has("to-offset"):
        goal = parsed.integer("to-offset", bits=64) or 0
        return _clamp_offsets(cluster, dict.fromkeys(places, goal))
    if parsed.has("shift-by"):
        step = parsed.integer("shift-by", bits=64) or 0
        missing = [place for place in places if place not in committed]
        if missing:
            raise KlammError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot shift offset for partition {missing[0][0]}-{missing[0][1]} since there is no current committed"
                " offset",
            )
        return _clamp_offsets(cluster, {place: committed[place] + step for place in places})
    moment = _datetime(parsed.text("to-datetime")) if parsed.has("to-datetime") else _before(parsed.text("by-duration"))
    timed = list_offsets(cluster, places, moment)
    for topic, partition in places:
        if timed.get((topic, partition), -1) < 0:
            print(f"\nWarn: Partition {partition} from topic {topic} is empty. Falling back to latest known offset.")
    return {place: timed[place] if timed.get(place, -1) >= 0 else last[place] for place in places}


def _check_exist(cluster: BlockingCluster, places: list[PartitionPair]) -> None:
    """Usage with Kafka's sentence when some of the partitions do not exist."""
    from klamm.cli.queries.topics import list_topics

    known = {(topic.name, partition.partition) for topic in list_topics(cluster) for partition in topic.partitions}
    missing = ",".join(f"{topic}-{partition}" for topic, partition in places if (topic, partition) not in known)
    if missing:
        raise Usage(f'The partitions "{missing}" do not exist', flags=False)


def _clamp_offsets(cluster: BlockingCluster, goals: dict[PartitionPair, int]) -> dict[PartitionPair, int]:
    first, last = list_offsets(cluster, goals, EARLIEST), list_offsets(cluster, goals, LATEST)
    return {place: min(max(goal, first[place]), last[place]) for place, goal in goals.items()}


def partitions(cluster: BlockingCluster, texts: list[str], *, missing_ok: bool = False) -> list[PartitionPair]:
    """`topic` or `topic:0,1` as partitions."""
    from klamm.cli.queries.topics import find_topics

    places: list[PartitionPair] = []
    for text in texts:
        name, colon, listed = text.partition(":")
        if colon:
            numbers = [java_integer(number) for number in listed.split(",")]
            if None in numbers:
                wrong = listed.split(",")[numbers.index(None)]
                raise Usage(f"Invalid partition '{wrong}' specified in topic arg '{text}''")
            places += [(name, number) for number in numbers if number is not None]
            continue
        try:
            places += [(name, p.partition) for p in find_topics(cluster, [name])[0].partitions]
        except KlammError as error:
            if not missing_ok or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # A topic that does not exist is reported in the table, as partition "Not Provided".
            places.append((name, -1))
    return sorted(set(places))


def _from_file(path: str, group: str) -> dict[PartitionPair, int]:
    goals: dict[PartitionPair, int] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row:
                continue
            # --export writes the group first when it exports several.
            if len(row) == 4:
                owner, *rest = row
                if owner != group:
                    continue
            else:
                rest = row
            goals.update([_goal(rest, path, number)])
    return goals


def _goal(row: list[str], path: str, number: int) -> tuple[PartitionPair, int]:
    numbers = [java_integer(cell, bits) for cell, bits in zip(row[1:], (32, 64), strict=False)]
    if len(row) != 3 or len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise Usage(
            f"line {number} of {path} is not topic,partition,offset or group,topic,partition,offset", flags=False
        )
    return (row[0], numbers[0]), numbers[1]


def _datetime(text: str) -> int:
    """Kafka's time: with a zone, or else as UTC."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"Error parsing timestamp {text}: write YYYY-MM-DDTHH:mm:SS.sss", flags=False) from None
    # Kafka takes a time without a zone as UTC, unlike `klamm group seek`, which takes it as local.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    # Before 1970 the number would be negative, which means an end of the log.
    return max(int(moment.timestamp() * 1000), 0)


def _before(text: str) -> int:
    match = _DURATION.fullmatch(text)
    # The pattern has only optional parts, but P and PT alone are no durations.
    if match is None or text.endswith(("P", "T")):
        raise Usage("Text cannot be parsed to a Duration", flags=False)
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups()[1:])
    length = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return int((time.time() - length.total_seconds()) * 1000)

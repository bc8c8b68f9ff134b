"""kafka-get-offsets: the first, last or timed offset of partitions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, java_integer
from klamm.cli.kafka.script import ToolFailed, connect, read_flags, run_check

if TYPE_CHECKING:
    from klamm.client.admin.topic_types import TopicDescription

TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
FLAGS: Final = Flags(
    "kafka-get-offsets",
    BOOTSTRAP,
    Flag("broker-list", "As --bootstrap-server.", "addresses"),
    COMMAND_CONFIG,
    Flag("topic", "Topics, as a regular expression; all otherwise.", "pattern"),
    Flag("partitions", "Partitions of these topics: 0,1,2", "numbers"),
    Flag("topic-partitions", "Topics and partitions: t:0,t:2-4,u", "patterns"),
    Flag("time", "latest (-1), earliest (-2), max-timestamp (-3), ... or milliseconds since 1970.", "time"),
    Flag("exclude-internal-topics", "Leave out internal topics."),
)
_PATTERN = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")


def main(args: list[str]) -> int:
    """Run kafka-get-offsets."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0

    def check() -> None:
        if not (parsed.has("bootstrap-server") or parsed.has("broker-list")):
            raise Usage('Missing required argument "[bootstrap-server]"')

    run_check(FLAGS, check)
    moment = _moment(parsed.text("time", "latest"))
    if parsed.has("topic-partitions") and (parsed.has("topic") or parsed.has("partitions")):
        raise _lookup_error("--topic-partitions cannot be used with --topic or --partitions")
    from klamm.cli.queries.offsets import list_offsets
    from klamm.cli.queries.topics import list_topics

    with connect(parsed) as cluster:
        places = _places(list_topics(cluster), parsed)
        if not places:
            raise _lookup_error("Could not match any topic-partitions with the specified filters")
        offsets = list_offsets(cluster, places, moment)
    for topic, partition in places:
        # -1 is a time after the last record; the JVM tool leaves such partitions out too.
        if offsets.get((topic, partition), -1) >= 0:
            print(f"{topic}:{partition}:{offsets[topic, partition]}")
    return 0


def _lookup_error(sentence: str) -> ToolFailed:
    return ToolFailed(f"Error occurred: {sentence}")


def _moment(text: str) -> int:
    if text in TIMES:
        return TIMES[text]
    moment = java_integer(text, 64)
    if moment is None:
        words = " / ".join(f"{number} or {name}" for name, number in TIMES.items())
        raise _lookup_error(f"Malformed time argument {text}. Please use {words}, or a specified long format timestamp")
    return moment


def _places(topics: list[TopicDescription], parsed: Parsed) -> list[tuple[str, int]]:
    if parsed.has("exclude-internal-topics"):
        topics = [topic for topic in topics if not topic.internal]
    everything = [(topic.name, p.partition) for topic in topics for p in topic.partitions]
    patterns = parsed.get("topic-partitions")
    if patterns is not None:
        tests = [_pattern(pattern) for pattern in patterns.split(",")]
        return [place for place in everything if any(_matches(test, place) for test in tests)]
    topic_test = _regex(parsed.text("topic", ".*"))
    wanted = _numbers(parsed.get("partitions"))
    return [place for place in everything if topic_test.fullmatch(place[0]) and (wanted is None or place[1] in wanted)]


def _numbers(text: str | None) -> set[int] | None:
    if text is None:
        return None
    numbers = {java_integer(number) for number in text.split(",")}
    if None in numbers:
        raise _lookup_error(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {text}"
        )
    return {number for number in numbers if number is not None}


def _regex(text: str) -> re.Pattern[str]:
    """A topic's pattern; commas part several."""
    try:
        # Kafka's include lists take commas for alternatives.
        return re.compile(text.replace(",", "|"))
    except re.error:
        raise _lookup_error(f"{text} is an invalid regex.") from None


def _pattern(text: str) -> tuple[re.Pattern[str], int, int]:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise _lookup_error(f"Invalid rule specification: {text}")
    name, one, low, high = match.groups()
    wrong = next((number for number in (one, low, high) if number and java_integer(number) is None), None)
    if wrong is not None:
        raise _lookup_error(f'For input string: "{wrong}"')
    # Partition numbers are 32-bit; an open range ends there.
    first, end = 0, 1 << 31
    if one:
        first, end = int(one), int(one) + 1
    # The upper bound is exclusive, as in the JVM tool: t:2-4 is 2 and 3.
    elif low or high:
        first, end = int(low or 0), int(high) if high else 1 << 31
    return _regex(name or ".*"), first, end


def _matches(test: tuple[re.Pattern[str], int, int], place: tuple[str, int]) -> bool:
    return bool(test[0].fullmatch(place[0])) and test[1] <= place[1] < test[2]

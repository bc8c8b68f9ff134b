"""Bodies of v2 about consumer instances."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from klamm.client.types import OffsetAndMetadata
from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition
from klamm.rest.core.fields import (
    INT64_MAX,
    flag_of,
    number_of,
    objects_of,
    partition_of,
    text_of,
)
from klamm.rest.core.media_types import V2_FORMATS, EmbeddedFormat
from klamm.rest.core.refusals import bad_request, illegal_state, invalid_consumer_config, invalid_field

_FORMATS: Final = {embedded.value: embedded for embedded in V2_FORMATS}
_RESETS: Final = ("earliest", "latest", "none")
_NAME: Final = re.compile(r"[^/\x00-\x1f]{1,249}")
_TIMEOUT_MS_MAX: Final = 300_000
_TOPICS_MAX: Final = 10_000
_PARTITIONS_MAX: Final = 100_000
_PATTERN_LENGTH_MAX: Final = 500
_REPEATS_MAX: Final = 3
_REPEAT: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(?P<group>\))?(?P<repeat>[*+{])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """The settings of a consumer instance."""

    name: str | None
    embedded: EmbeddedFormat = EmbeddedFormat.BINARY
    auto_offset_reset: str = "latest"
    auto_commit: bool = True
    min_bytes: int = -1
    """Bytes of keys and values after which a read is answered; -1 answers when its time is over."""
    request_timeout_ms: int | None = None


def parse_instance(body: dict[str, Any]) -> InstanceRequest:
    """Parse what creates an instance; 42204 for an invalid setting. Settings of other names are ignored."""
    name = text_of(body, "name", None) or text_of(body, "id", None)
    if name is not None and not _NAME.fullmatch(name):
        raise invalid_consumer_config("name has a slash or a control character, or more than 249 characters")
    embedded = _FORMATS.get(str(body.get("format") or "binary").lower())
    if embedded is None:
        raise invalid_consumer_config(f"format must be one of {', '.join(_FORMATS)}")
    reset = str(body.get("auto.offset.reset") or "latest").lower()
    if reset not in _RESETS:
        raise invalid_consumer_config(
            f"Invalid value {reset} for configuration auto.offset.reset: must be one of {', '.join(_RESETS)}"
        )
    try:
        return InstanceRequest(
            name,
            embedded,
            reset,
            flag_of(body, "auto.commit.enable", default=True),
            number_of(body, "fetch.min.bytes", -1, least=-1),
            number_of(body, "consumer.request.timeout.ms", None, most=_TIMEOUT_MS_MAX),
        )
    except HttpRefusal as refusal:
        raise invalid_consumer_config(refusal.message) from None


def parse_subscription(body: dict[str, Any]) -> list[str] | re.Pattern[str]:
    """Parse a subscription: topics by name, or a pattern."""
    topics, pattern = body.get("topics"), body.get("topic_pattern")
    if topics and pattern:
        raise illegal_state("a subscription has topics or topic_pattern, not both")
    if pattern:
        return _parse_pattern(text_of(body, "topic_pattern"))
    if not topics:
        raise invalid_field("topics or topic_pattern may not be empty")
    if not isinstance(topics, list):
        raise invalid_field("topics is not an array of strings")
    if len(topics) > _TOPICS_MAX:
        raise invalid_field(f"topics has more than {_TOPICS_MAX} elements")
    return [text_of({"topics": topic}, "topics") for topic in topics]


def _parse_pattern(text: str) -> re.Pattern[str]:
    if len(text) > _PATTERN_LENGTH_MAX:
        raise invalid_field(f"topic_pattern is longer than {_PATTERN_LENGTH_MAX} characters")
    # Patterns run on the loop of all requests, and Python's engine backtracks: repeated groups take exponential time.
    repeats = [match for match in _REPEAT.finditer(text) if match["repeat"]]
    if any(match["group"] for match in repeats) or len(repeats) > _REPEATS_MAX:
        raise invalid_field(f"topic_pattern may have {_REPEATS_MAX} repetitions, and none of a group: {text}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise invalid_field(f"topic_pattern is not a regular expression: {error}") from None


def parse_partitions(body: dict[str, Any]) -> list[TopicPartition]:
    """Parse `{"partitions": [{"topic", "partition"}]}`."""
    return [partition_of(element) for element in objects_of(body, "partitions", most=_PARTITIONS_MAX)]


def parse_commit(body: dict[str, Any]) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Parse offsets to commit; None commits everything that was read.

    An offset is that of the last record that was processed: the offset behind it is committed.
    """
    if body.get("offsets") is None:
        if body.get("partitions"):
            raise invalid_field("offsets may not be null")
        return None
    return {
        partition_of(element): OffsetAndMetadata(
            number_of(element, "offset", most=INT64_MAX - 1) + 1, text_of(element, "metadata", "")
        )
        for element in objects_of(body, "offsets", most=_PARTITIONS_MAX)
    }


def parse_seek(body: dict[str, Any]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Parse new positions: by offset, and by timestamp in milliseconds."""
    if body.get("offsets") is None and body.get("timestamps") is None:
        raise invalid_field("offsets may not be null")
    offsets = {
        partition_of(element): number_of(element, "offset", most=INT64_MAX)
        for element in (objects_of(body, "offsets", most=_PARTITIONS_MAX) if body.get("offsets") is not None else ())
    }
    timestamps = {
        partition_of(element): parse_timestamp(element.get("timestamp"))
        for element in (
            objects_of(body, "timestamps", most=_PARTITIONS_MAX) if body.get("timestamps") is not None else ()
        )
    }
    return offsets, timestamps


def parse_timestamp(value: Any) -> int:
    """Return milliseconds since the epoch of an ISO 8601 date-time, or of a number of milliseconds."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT64_MAX:
        return value
    if not isinstance(value, str):
        raise bad_request(f"timestamp={str(value)[:80]} is not a date-time")
    try:
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        milliseconds = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise bad_request(f"timestamp={value[:80]} is not a date-time") from None
    if milliseconds < 0:
        raise bad_request(f"timestamp={value[:80]} is before 1970")
    return milliseconds


def print_timestamp(milliseconds: int) -> str | None:
    """Return a date-time in ISO 8601; None for no time, or one that has no date of four digits."""
    if milliseconds < 0:
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    rest = milliseconds % 1000
    return f"{text}.{rest:03d}Z" if rest else f"{text}Z"

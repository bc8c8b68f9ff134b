"""Options of source and sink: the names of Spark's Kafka connector, so that changing a job is changing one word.

Pure. A name nobody knows is refused with the nearest right one; `kafka.` introduces a setting of the client.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.client.config import CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.model.config import ConfigDef
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

COMMITS_TOPIC: Final = "__klamm_sink_commits"
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""As long as Kafka's brokers allow without being told otherwise: a transaction must outlive its micro-batch."""

_READ: Final = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
_WRITE: Final = ("checkpointLocation", "commitsTopic", "delivery", "includeHeaders", "topic", "txnAppId", "txnVersion")
_SPARK: Final = ("path", "checkpointLocation", "queryName")
"""What Spark passes along with a user's options."""

_OURS_TO_SET: Final = {
    "auto.offset.reset": "where to begin is said by startingOffsets",
    "enable.auto.commit": "the checkpoint is the position; progress is committed to kafka.group.id by itself",
    "enable.idempotence": "the sink always writes so",
    "key.deserializer": "key is binary; cast or decode it in the query",
    "key.serializer": "key is text or binary",
    "transactional.id": "it is made of the query's id; txnAppId names a batch job",
    "value.deserializer": "value is binary; cast or decode it in the query",
    "value.serializer": "value is text or binary",
}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where a read begins or ends: alike for all partitions (`everywhere`), or each its own (`places`).

    Numbers are offsets (EARLIEST and LATEST among them), or milliseconds since 1970 with `timed`.
    """

    everywhere: int | None = None
    places: Mapping[TopicPartition, int] = field(default_factory=dict)
    timed: bool = False


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which topics: named, matching a pattern, or single partitions; one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for."""

    choice: TopicSelection
    start: ReadBound
    end: ReadBound
    client: Mapping[str, str]
    group_id: str | None = None
    late_start_is_latest: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for."""

    client: Mapping[str, str]
    topic: str | None = None
    exactly_once: bool = True
    app_id: str | None = None
    version: int | None = None
    commits_topic: str = COMMITS_TOPIC


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a read, checked."""
    named, client = _sorted(given, _READ, CONSUMER_CONFIGS, "read")
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if streaming and name in named:
            raise ConfigError(f"{name} is for batch reads; a stream has no end")
    group_id = client.pop("group.id", None)
    client.setdefault("isolation.level", "read_committed")
    strategy = named.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy={strategy}: write error or latest")
    return ReadOptions(
        choice=_choice(named),
        start=_moment(named, "starting", "latest" if streaming else "earliest"),
        end=_moment(named, "ending", "latest"),
        client=client,
        group_id=group_id,
        late_start_is_latest=strategy == "latest",
        fail_on_data_loss=_flag(named, "failOnDataLoss", default=True),
        include_headers=_flag(named, "includeHeaders", default=False),
        min_partitions=_count(named, "minPartitions"),
        max_records_per_partition=_count(named, "maxRecordsPerPartition"),
        max_offsets_per_trigger=_count(named, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_count(named, "minOffsetsPerTrigger"),
        max_trigger_delay_s=_duration(named.get("maxTriggerDelay", "15m")),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a write, checked."""
    named, client = _sorted(given, _WRITE, PRODUCER_CONFIGS, "write")
    delivery = named.get("delivery", "exactly_once")
    if delivery not in ("exactly_once", "at_least_once"):
        raise ConfigError(f"delivery={delivery}: write exactly_once or at_least_once")
    app_id, version = named.get("txnAppId"), named.get("txnVersion")
    if (app_id is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion go together: who writes, and the number of this write")
    client.setdefault("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    client.setdefault("batch.size", str(256 << 10))
    return WriteOptions(
        client=client,
        topic=named.get("topic"),
        exactly_once=delivery == "exactly_once",
        app_id=app_id,
        version=None if version is None else _number("txnVersion", version, 0),
        commits_topic=named.get("commitsTopic", COMMITS_TOPIC),
    )


def _sorted(
    given: Mapping[str, str], names: tuple[str, ...], definition: ConfigDef, what: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Options by their proper spelling, and the client's settings; Spark does not keep upper and lower case."""
    proper = {each.lower(): each for each in (*names, *_SPARK)}
    settings = {key.lower(): key for key in definition.keys}
    named: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        low = name.lower()
        if low in proper:
            named[proper[low]] = value
            continue
        setting = low.removeprefix("kafka.")
        if low.startswith("kafka.") and setting in _OURS_TO_SET:
            raise ConfigError(f"{name} cannot be set: {_OURS_TO_SET[setting]}")
        if low.startswith("kafka.") and setting in settings:
            client[settings[setting]] = value
            continue
        known = {**proper, **{f"kafka.{each}": f"kafka.{each}" for each in settings}}
        near = difflib.get_close_matches(low, known, n=1, cutoff=0.6)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise ConfigError(f"{name} is no {what} option{hint}")
    if "bootstrap.servers" not in client:
        raise ConfigError("kafka.bootstrap.servers is missing: write host:port, e.g. localhost:9092")
    return named, client


def _choice(named: Mapping[str, str]) -> TopicSelection:
    chosen = [each for each in ("subscribe", "subscribePattern", "assign") if each in named]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none"
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign says what to read, not {found}")
    text = named[chosen[0]]
    if chosen == ["subscribe"]:
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not topics:
            raise ConfigError("subscribe names no topic: write a,b,...")
        return TopicSelection(topics=topics)
    if chosen == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern={text} is no pattern: {error}") from None
        return TopicSelection(pattern=text)
    example = '{"topic":[0,1]}'
    whole = _json("assign", text, example)
    try:
        places = [TopicPartition(topic, int(part)) for topic, parts in whole.items() for part in parts]
    except (TypeError, ValueError):
        raise ConfigError(f"assign={text}: write e.g. {example}") from None
    if not places:
        raise ConfigError(f"assign names no partition: write e.g. {example}")
    return TopicSelection(partitions=tuple(sorted(set(places))))


def _moment(named: Mapping[str, str], which: str, default: str) -> ReadBound:
    """The newer name wins, as in the connector: one timestamp, timestamps by partition, offsets."""
    stamp = named.get(f"{which}Timestamp")
    if stamp is not None:
        return ReadBound(everywhere=_number(f"{which}Timestamp", stamp, 0), timed=True)
    name = f"{which}OffsetsByTimestamp"
    if name in named:
        return ReadBound(places=parse_partition_offsets(name, named[name], 0), timed=True)
    name = f"{which}Offsets"
    text = named.get(name, default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    forbidden = LATEST if (which, default) == ("starting", "earliest") else EARLIEST if which == "ending" else None
    found = words.get(text.strip().lower())
    if found is not None:
        if found == forbidden:
            raise ConfigError(f"{name}={text} would read nothing")
        return ReadBound(everywhere=found)
    places = parse_partition_offsets(name, text, EARLIEST)
    if forbidden in places.values():
        raise ConfigError(f"{name} gives {forbidden} to a partition: nothing could be read of it")
    return ReadBound(places=places)


def parse_partition_offsets(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    """Numbers by partition of `{"topic": {"0": 23}}`; `name` is the option that said it."""
    example = '{"topic":{"0":23,"1":-2}}'
    whole = _json(name, text, example)
    try:
        found = {
            TopicPartition(topic, int(index)): int(number)
            for topic, parts in whole.items()
            for index, number in parts.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{name}={text}: write e.g. {example}") from None
    for where, number in found.items():
        if number < least or where.partition < 0:
            raise ConfigError(f"{name}: {number} is nothing to give {where}")
    return found


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name}={text}: write a word, or JSON, e.g. {example}")
    return found


def _flag(named: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = named.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}={named[name]}: write true or false")
    return text == "true"


def _count(named: Mapping[str, str], name: str) -> int | None:
    return _number(name, named[name], 1) if name in named else None


def _number(name: str, text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: write a whole number") from None
    if found < least:
        raise ConfigError(f"{name}={text}: write {least} or more")
    return found


def _duration(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", text.lower())
    if match is None:
        raise ConfigError(f"maxTriggerDelay={text}: write e.g. 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2]]

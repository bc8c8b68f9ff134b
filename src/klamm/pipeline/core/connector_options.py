"""Options of source and sink, named as those of Spark's Kafka connector: a job moves by changing its format.

Pure. An unknown name is an error that suggests the nearest known one; `kafka.` introduces a setting of the client.
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
"""The default of transaction.max.timeout.ms on brokers: a transaction has to outlive its micro-batch."""

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
    "startingPosition",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
_WRITE: Final = (
    "checkpointLocation",
    "commitsTopic",
    "delivery",
    "includeHeaders",
    "topic",
    "txnAppId",
    "txnPosition",
    "txnVersion",
)
_SPARK: Final = ("path", "checkpointLocation", "queryName")
"""Options that Spark adds to those of the user."""

JAVA_SETTINGS: Final = {
    "ssl.protocol": "leave it out: TLS 1.2 and 1.3 are used",
}
"""Settings of existing Spark jobs that the Java client has and this one has not, with what to write instead."""
_RESERVED: Final = {
    "auto.offset.reset": "startingOffsets defines where a query begins",
    "enable.auto.commit": "the checkpoint is the position; progress is committed to kafka.group.id automatically",
    "enable.idempotence": "the sink's producer is always idempotent",
    "key.deserializer": "key is binary; cast or decode it in the query",
    "key.serializer": "key is text or binary",
    "transactional.id": "it is made of the query's id; txnAppId names a batch job",
    "value.deserializer": "value is binary; cast or decode it in the query",
    "value.serializer": "value is text or binary",
}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where a read begins or ends: the same for all partitions (`everywhere`), or each its own (`by_partition`).

    Numbers are offsets (EARLIEST and LATEST among them), or milliseconds since 1970 with `timed`.
    """

    everywhere: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timed: bool = False


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics of a read: by name, by pattern, or single partitions; one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def describe(self) -> str:
        """Return the selection as text, which names one of several sources of a query."""
        return self.pattern or ",".join((*self.topics, *map(str, self.partitions)))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    choice: TopicSelection
    start: ReadBound
    end: ReadBound
    client: Mapping[str, str]
    group_id: str | None = None
    late_start_is_latest: bool = False
    start_position: str = ""
    """Where a stream begins, if that was stored at its first start: a position as the offset log has it."""
    checkpoint: str | None = None
    """The folder in which a stream stores where it begins."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    client: Mapping[str, str]
    topic: str | None = None
    exactly_once: bool = True
    app_id: str | None = None
    version: int | None = None
    commits_topic: str = COMMITS_TOPIC
    checkpoint: str | None = None
    """The checkpoint of the query that writes; Spark passes it on to a stream's sink."""
    position: str = ""
    """The source position of a numbered write, where no checkpoint gives it."""


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a read; ConfigError names the first that is wrong."""
    named, client = _split_options(given, _READ, CONSUMER_CONFIGS, "read")
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if streaming and name in named:
            raise ConfigError(f"{name} is for batch reads; a stream has no end")
    # The source never joins the group: offsets are only committed to it, for lag monitors.
    group_id = client.pop("group.id", None)
    # The default of the Kafka connector is read_uncommitted; exactly once needs this one.
    client.setdefault("isolation.level", "read_committed")
    strategy = named.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy={strategy}: write error or latest")
    return ReadOptions(
        choice=_parse_selection(named),
        start=_parse_bound(named, "starting", "latest" if streaming else "earliest"),
        end=_parse_bound(named, "ending", "latest"),
        client=client,
        group_id=group_id,
        late_start_is_latest=strategy == "latest",
        start_position=named.get("startingPosition", ""),
        checkpoint=named.get("checkpointLocation"),
        fail_on_data_loss=_parse_flag(named, "failOnDataLoss", default=True),
        include_headers=_parse_flag(named, "includeHeaders", default=False),
        min_partitions=_parse_count(named, "minPartitions"),
        max_records_per_partition=_parse_count(named, "maxRecordsPerPartition"),
        max_offsets_per_trigger=_parse_count(named, "maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_parse_count(named, "minOffsetsPerTrigger"),
        # 15 minutes is the default of the Kafka connector, too.
        max_trigger_delay_s=_parse_duration(named.get("maxTriggerDelay", "15m")),
    )


def write_options(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Parse the options of a write; ConfigError names the first that is wrong."""
    named, client = _split_options(given, _WRITE, PRODUCER_CONFIGS, "write")
    delivery = named.get("delivery", "exactly_once")
    if delivery not in ("exactly_once", "at_least_once"):
        raise ConfigError(f"delivery={delivery}: write exactly_once or at_least_once")
    app_id, version = named.get("txnAppId"), named.get("txnVersion")
    # A stream's batches have Spark's numbers.
    if streaming and version is not None:
        raise ConfigError("txnVersion is for batch writes: a streaming query numbers its batches")
    if not streaming and (app_id is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion go together: the name of the writer, and the number of this write")
    client.setdefault("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    # Rows come in Arrow batches of thousands, so larger requests cost no latency.
    client.setdefault("batch.size", str(256 << 10))
    return WriteOptions(
        client=client,
        topic=named.get("topic"),
        exactly_once=delivery == "exactly_once",
        app_id=app_id,
        version=None if version is None else _parse_number("txnVersion", version, 0),
        commits_topic=named.get("commitsTopic", COMMITS_TOPIC),
        checkpoint=named.get("checkpointLocation"),
        position=named.get("txnPosition", ""),
    )


def _split_options(
    given: Mapping[str, str], names: tuple[str, ...], definition: ConfigDef, what: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options in their proper spelling, and the client's settings."""
    # Spark passes option names in lower case.
    spellings = {name.lower(): name for name in (*names, *_SPARK)}
    settings = {key.lower(): key for key in definition.keys}
    named: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered in spellings:
            named[spellings[lowered]] = value
            continue
        setting = lowered.removeprefix("kafka.")
        if lowered.startswith("kafka.") and setting in _RESERVED:
            raise ConfigError(f"{name} cannot be set: {_RESERVED[setting]}")
        if lowered.startswith("kafka.") and setting in settings:
            client[settings[setting]] = value
            continue
        if lowered.startswith("kafka.") and setting in JAVA_SETTINGS:
            raise ConfigError(f"{name} is a setting of Java's client: {JAVA_SETTINGS[setting]}")
        candidates = {**spellings, **{f"kafka.{key}": f"kafka.{key}" for key in settings}}
        near = difflib.get_close_matches(lowered, candidates, n=1, cutoff=0.6)
        hint = f"; did you mean {candidates[near[0]]}?" if near else ""
        raise ConfigError(f"{name} is not a {what} option{hint}")
    for store in ("truststore", "keystore"):
        # JKS is Java's default, so a job that names no type means it.
        kind = client.get(f"ssl.{store}.type", "JKS")
        if f"ssl.{store}.location" in client and kind.upper() != "PEM":
            raise ConfigError(
                f"kafka.ssl.{store}.location is a {kind} file, which only Java reads: convert it with keytool and"
                f" openssl, and write kafka.ssl.{store}.type=PEM"
            )
    if "bootstrap.servers" not in client:
        raise ConfigError("kafka.bootstrap.servers is missing: write host:port, e.g. localhost:9092")
    return named, client


def _parse_selection(named: Mapping[str, str]) -> TopicSelection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in named]
    if len(given) != 1:
        actual = " and ".join(given) or "none"
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign is required, not {actual}")
    text = named[given[0]]
    if given == ["subscribe"]:
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise ConfigError("subscribe names no topic: write a,b,...")
        return TopicSelection(topics=topics)
    if given == ["subscribePattern"]:
        try:
            # Python's syntax, with which the lookup matches; the Kafka connector's patterns are Java's.
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern={text} is not a valid pattern: {error}") from None
        return TopicSelection(pattern=text)
    example = '{"topic":[0,1]}'
    topics_json = _parse_json("assign", text, example)
    try:
        partitions = [TopicPartition(topic, int(part)) for topic, parts in topics_json.items() for part in parts]
    except (TypeError, ValueError):
        raise ConfigError(f"assign={text}: write e.g. {example}") from None
    if not partitions:
        raise ConfigError(f"assign names no partition: write e.g. {example}")
    return TopicSelection(partitions=tuple(sorted(set(partitions))))


def _parse_bound(named: Mapping[str, str], which: str, default: str) -> ReadBound:
    """Parse where a read begins or ends; as in the connector, timestamps win over offsets."""
    timestamp = named.get(f"{which}Timestamp")
    if timestamp is not None:
        return ReadBound(everywhere=_parse_number(f"{which}Timestamp", timestamp, 0), timed=True)
    name = f"{which}OffsetsByTimestamp"
    if name in named:
        return ReadBound(by_partition=parse_partition_offsets(name, named[name], 0), timed=True)
    name = f"{which}Offsets"
    text = named.get(name, default)
    named_offsets = {"earliest": EARLIEST, "latest": LATEST}
    # As in the connector: a batch that starts at the latest or ends at the earliest offset is empty.
    forbidden = LATEST if (which, default) == ("starting", "earliest") else EARLIEST if which == "ending" else None
    offset = named_offsets.get(text.strip().lower())
    if offset is not None:
        if offset == forbidden:
            raise ConfigError(f"{name}={text} would read nothing")
        return ReadBound(everywhere=offset)
    offsets = parse_partition_offsets(name, text, EARLIEST)
    if forbidden in offsets.values():
        raise ConfigError(f"{name} gives {forbidden} to a partition: nothing could be read of it")
    return ReadBound(by_partition=offsets)


def parse_partition_offsets(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 23}}` into numbers by partition; `name` is the option that gave it."""
    example = '{"topic":{"0":23,"1":-2}}'
    topics = _parse_json(name, text, example)
    try:
        offsets = {
            TopicPartition(topic, int(index)): int(number)
            for topic, parts in topics.items()
            for index, number in parts.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{name}={text}: write e.g. {example}") from None
    for partition, number in offsets.items():
        if number < least or partition.partition < 0:
            raise ConfigError(f"{name}: {number} is not valid for {partition}")
    return offsets


def _parse_json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{name}={text}: write a word, or JSON, e.g. {example}")
    return parsed


def _parse_flag(named: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = named.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name}={named[name]}: write true or false")
    return text == "true"


def _parse_count(named: Mapping[str, str], name: str) -> int | None:
    return _parse_number(name, named[name], 1) if name in named else None


def _parse_number(name: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: write a whole number") from None
    if number < least:
        raise ConfigError(f"{name}={text}: write {least} or more")
    return number


def _parse_duration(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d)\s*", text.lower())
    if match is None:
        raise ConfigError(f"maxTriggerDelay={text}: write e.g. 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2]]

"""Every setting a topic can carry, and the broker setting each one falls back to.

A topic setting that is not set takes the broker's value; `TOPIC_SYNONYMS` names the broker settings
it may come from, the first one first, and `topic_defaults` turns a broker's values into the defaults of all topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.model.config import MAX_LONG, ConfigDef, ConfigKey, ConfigType, Value
from klamm.model.config_rules import at_least, between, between_or, list_of, one_of, throttled_replicas
from klamm.model.errors import ConfigError

BOOLEAN, INT, LONG, DOUBLE = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
LIST, STRING = ConfigType.LIST, ConfigType.STRING

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000

CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
PACKING_CODECS: Final = ("gzip", "lz4", "snappy", "zstd")
CHECKED_CODECS: Final = "klamm.checked.codecs"
"""A setting that Kafka does not have, of topics and of brokers alike."""
CHECKED_CODECS_DOC: Final = (
    "Codecs whose batches are unpacked, and their records looked at, before they are stored; Klamm's own setting."
)

TOPIC_CONFIGS: Final = ConfigDef(
    "topic setting",
    (
        ConfigKey(
            "cleanup.policy",
            LIST,
            ("delete",),
            "What happens to old records: delete them by time or size, compact them by key, both, or (empty) keep all.",
            rule=list_of("compact", "delete"),
            served=True,
        ),
        ConfigKey(
            "compression.gzip.level",
            INT,
            -1,
            "Effort gzip spends when the broker itself compresses; -1 is the codec's own choice.",
            rule=between_or(1, 9, -1),
            served=True,
        ),
        ConfigKey(
            "compression.lz4.level",
            INT,
            9,
            "Effort lz4 spends when the broker itself compresses.",
            rule=between(1, 17),
            served=True,
        ),
        ConfigKey(
            "compression.type",
            STRING,
            "producer",
            "Codec batches are stored with; producer keeps whatever the producer chose.",
            rule=one_of(*CODECS),
            served=True,
        ),
        ConfigKey(
            "compression.zstd.level",
            INT,
            3,
            "Effort zstd spends when the broker itself compresses.",
            rule=between(-131072, 22),
            served=True,
        ),
        ConfigKey(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long a tombstone stays readable in a compacted topic before it may go.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "file.delete.delay.ms",
            LONG,
            60_000,
            "Pause between taking a segment out of the log and removing its files.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "flush.messages",
            LONG,
            MAX_LONG,
            "Records after which the log is forced to disk; 1 means before every acknowledgement.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "flush.ms",
            LONG,
            MAX_LONG,
            "Longest time an appended record may wait before the log is forced to disk.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            LIST,
            (),
            "Replicas whose copying is slowed on the side that receives.",
            rule=throttled_replicas(),
            served=True,
        ),
        ConfigKey(
            "index.interval.bytes",
            INT,
            4096,
            "Bytes of log between two entries of the offset index.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "internal.segment.bytes",
            INT,
            None,
            "A segment size without a lower limit, meant for tests.",
            internal=True,
            served=True,
        ),
        ConfigKey(
            CHECKED_CODECS,
            LIST,
            PACKING_CODECS,
            CHECKED_CODECS_DOC,
            rule=list_of(*PACKING_CODECS),
            served=True,
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            LIST,
            (),
            "Replicas whose copying is slowed on the side that sends.",
            rule=throttled_replicas(),
            served=True,
        ),
        ConfigKey(
            "local.retention.bytes",
            LONG,
            -2,
            "Size kept on the broker's own disk when older segments live elsewhere; -2 follows retention.bytes.",
            rule=at_least(-2),
        ),
        ConfigKey(
            "local.retention.ms",
            LONG,
            -2,
            "Time kept on the broker's own disk when older segments live elsewhere; -2 follows retention.ms.",
            rule=at_least(-2),
        ),
        ConfigKey(
            "max.compaction.lag.ms",
            LONG,
            MAX_LONG,
            "Longest time a record may stay out of reach of compaction.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "max.message.bytes",
            INT,
            1_048_588,
            "Largest batch the topic accepts, measured as stored.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            LONG,
            HOUR_MS,
            "How far a producer's timestamp may lie ahead of the broker's clock.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            LONG,
            MAX_LONG,
            "How far a producer's timestamp may lie behind the broker's clock.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Whose clock stamps a record: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
            rule=one_of("CreateTime", "LogAppendTime"),
            served=True,
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Share of a compacted log that must be uncompacted before the cleaner picks it.",
            rule=between(0, 1),
            served=True,
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            LONG,
            0,
            "Time a record is safe from compaction after it was written.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "min.insync.replicas",
            INT,
            1,
            "Replicas that must be in sync before a write with acks=all is accepted.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "preallocate",
            BOOLEAN,
            False,
            "Reserve the full size of a segment file when it is created.",
            served=True,
        ),
        ConfigKey(
            "remote.log.copy.disable",
            BOOLEAN,
            False,
            "Stop moving segments to remote storage and let what is there expire.",
        ),
        ConfigKey(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "Remove a topic's remote segments when remote storage is switched off for it.",
        ),
        ConfigKey(
            "remote.storage.enable",
            BOOLEAN,
            False,
            "Move old segments of the topic to remote storage.",
        ),
        ConfigKey(
            "retention.bytes",
            LONG,
            -1,
            "Size of a partition above which its oldest segments go; -1 sets no limit.",
            served=True,
        ),
        ConfigKey(
            "retention.ms",
            LONG,
            604_800_000,
            "Age above which a segment goes; -1 keeps it for ever.",
            rule=at_least(-1),
            served=True,
        ),
        ConfigKey(
            "segment.bytes",
            INT,
            1_073_741_824,
            "Size at which a new segment file is begun.",
            rule=at_least(1_048_576),
            served=True,
        ),
        ConfigKey(
            "segment.index.bytes",
            INT,
            10_485_760,
            "Largest size of an index file; a full index begins a new segment.",
            rule=at_least(4),
            served=True,
        ),
        ConfigKey(
            "segment.jitter.ms",
            LONG,
            0,
            "Random part taken off segment.ms, so that many partitions do not roll at once.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "segment.ms",
            LONG,
            604_800_000,
            "Age at which a new segment is begun even if the old one is not full.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Let a replica that is behind become leader when no other is left, losing what it lacks.",
            served=True,
        ),
    ),
)

TOPIC_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.type": ("compression.type",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": ("log.index.interval.bytes",),
    CHECKED_CODECS: (CHECKED_CODECS,),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "local.retention.ms": ("log.local.retention.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}

_UNIT_MS: Final = {"hours": HOUR_MS, "minutes": MINUTE_MS}


def validate_topic_config(name: str, value: str) -> None:
    """Refuse an unknown topic setting or a value it cannot have."""
    TOPIC_CONFIGS.parse(name, value)


def validate_topic_configs(configs: Mapping[str, str], defaults: Mapping[str, Value] | None = None) -> None:
    """Check all settings of one topic, alone and against each other.

    `defaults` are the values topics inherit (see `topic_defaults`), for the relations between settings.
    """
    values = {**(defaults or {}), **TOPIC_CONFIGS.parse_all(configs)}
    shortest = _number(values, "min.compaction.lag.ms")
    longest = _number(values, "max.compaction.lag.ms")
    if shortest > longest:
        raise ConfigError(
            f"min.compaction.lag.ms={shortest} is larger than max.compaction.lag.ms={longest};"
            f" write at most {longest} for min.compaction.lag.ms or raise max.compaction.lag.ms"
        )
    if values.get("remote.storage.enable"):
        raise ConfigError(
            "remote.storage.enable=true needs remote storage, which this cluster does not have; write false"
        )


def topic_defaults(broker: Mapping[str, Value]) -> dict[str, Value]:
    """The topic settings a broker's own settings imply; what the broker leaves open is left out.

    Of the synonyms of a topic setting the first one given wins; hours and minutes become milliseconds.
    """
    defaults: dict[str, Value] = {}
    for topic_name, synonyms in TOPIC_SYNONYMS.items():
        for synonym in synonyms:
            if synonym in broker:
                defaults[topic_name] = _in_topic_unit(synonym, broker[synonym])
                break
    return defaults


def _in_topic_unit(synonym: str, value: Value) -> Value:
    factor = _UNIT_MS.get(synonym.rpartition(".")[2])
    if factor is None or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else value  # -1 means unlimited in every unit


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values.get(name, TOPIC_CONFIGS.default(name))
    assert isinstance(value, int)
    return value

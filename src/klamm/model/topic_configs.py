"""All topic settings, and the broker settings that are their defaults.

A topic setting that is not set has the broker's value; `TOPIC_SYNONYMS` names the broker settings that it may come
from, in order of precedence, and `topic_defaults` turns a broker's values into the defaults of all topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.model.config import MAX_LONG, ConfigDef, ConfigKey, ConfigType, SettingValue
from klamm.model.config_rules import at_least, between, between_or, list_of, one_of, throttled_replicas
from klamm.model.errors import ConfigError

BOOLEAN, INT, LONG, DOUBLE = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
LIST, STRING = ConfigType.LIST, ConfigType.STRING

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000

CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
PACKING_CODECS: Final = ("gzip", "lz4", "snappy", "zstd")
# Kafka always validates. The setting exists because decompression is the most expensive part of a compressed produce.
CHECKED_CODECS: Final = "klamm.checked.codecs"
"""A setting of topics and brokers that Kafka does not have."""
CHECKED_CODECS_DOC: Final = (
    "Codecs whose batches are decompressed and validated before they are stored; a setting of Klamm."
)

TOPIC_CONFIGS: Final = ConfigDef(
    "topic setting",
    (
        ConfigKey(
            "cleanup.policy",
            LIST,
            ("delete",),
            "What happens to old records: delete by time or size, compact by key, both, or (empty) nothing.",
            rule=list_of("compact", "delete"),
            served=True,
        ),
        ConfigKey(
            "compression.gzip.level",
            INT,
            -1,
            "Level of gzip when the broker compresses; -1 is the codec's default.",
            rule=between_or(1, 9, -1),
            served=True,
        ),
        ConfigKey(
            "compression.lz4.level",
            INT,
            9,
            "Level of lz4 when the broker compresses.",
            rule=between(1, 17),
            served=True,
        ),
        ConfigKey(
            "compression.type",
            STRING,
            "producer",
            "Codec that batches are stored with; producer keeps the producer's codec.",
            rule=one_of(*CODECS),
            served=True,
        ),
        ConfigKey(
            "compression.zstd.level",
            INT,
            3,
            "Level of zstd when the broker compresses.",
            rule=between(-131072, 22),
            served=True,
        ),
        ConfigKey(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long a tombstone is kept in a compacted topic before compaction removes it.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "file.delete.delay.ms",
            LONG,
            60_000,
            "Time between the removal of a segment from the log and the deletion of its files.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "flush.messages",
            LONG,
            MAX_LONG,
            "Records after which the log is flushed to disk; 1 flushes before every acknowledgement.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "flush.ms",
            LONG,
            MAX_LONG,
            "Longest time before a record is flushed to disk.",
            rule=at_least(0),
            served=True,
        ),
        # KIP-73. The rates are settings of brokers; these lists say whom they apply to.
        ConfigKey(
            "follower.replication.throttled.replicas",
            LIST,
            (),
            "Replicas that are throttled on the follower's side.",
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
        # Hidden from DescribeConfigs unless it is set, as in Kafka.
        ConfigKey(
            "internal.segment.bytes",
            INT,
            None,
            "Segment size without lower limit, for tests.",
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
            "Replicas that are throttled on the leader's side.",
            rule=throttled_replicas(),
            served=True,
        ),
        ConfigKey(
            "local.retention.bytes",
            LONG,
            -2,
            "Size that is kept on local disk when older segments are in remote storage; -2 uses retention.bytes.",
            rule=at_least(-2),
        ),
        ConfigKey(
            "local.retention.ms",
            LONG,
            -2,
            "Time that segments are kept on local disk when older ones are in remote storage; -2 uses retention.ms.",
            rule=at_least(-2),
        ),
        # KIP-354.
        ConfigKey(
            "max.compaction.lag.ms",
            LONG,
            MAX_LONG,
            "Longest time before a record becomes eligible for compaction.",
            rule=at_least(1),
            served=True,
        ),
        # 1 MiB, and 12 bytes: the overhead of a message set in the format before batches.
        ConfigKey(
            "max.message.bytes",
            INT,
            1_048_588,
            "Largest batch the topic accepts, as stored.",
            rule=at_least(0),
            served=True,
        ),
        # An hour since KIP-1030: one record from the future would keep its segment from retention.
        ConfigKey(
            "message.timestamp.after.max.ms",
            LONG,
            HOUR_MS,
            "How far a producer's timestamp may be ahead of the broker's clock.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            LONG,
            MAX_LONG,
            "How far a producer's timestamp may be behind the broker's clock.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Clock of record timestamps: the producer's (CreateTime) or the broker's at append (LogAppendTime).",
            rule=one_of("CreateTime", "LogAppendTime"),
            served=True,
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Ratio of uncompacted bytes above which a compacted log is compacted again.",
            rule=between(0, 1),
            served=True,
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            LONG,
            0,
            "Time after a write during which a record is not compacted.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "min.insync.replicas",
            INT,
            1,
            "Replicas that must be in sync for a write with acks=all to be accepted.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "preallocate",
            BOOLEAN,
            False,
            "Allocate the full size of a segment file when it is created.",
            served=True,
        ),
        # KIP-950.
        ConfigKey(
            "remote.log.copy.disable",
            BOOLEAN,
            False,
            "Stop copying segments to remote storage and let those that are there expire.",
        ),
        ConfigKey(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "Delete a topic's remote segments when remote storage is disabled for it.",
        ),
        ConfigKey(
            "remote.storage.enable",
            BOOLEAN,
            False,
            "Move old segments of the topic to remote storage.",
        ),
        # Without a rule in Kafka: every negative number means no limit.
        ConfigKey(
            "retention.bytes",
            LONG,
            -1,
            "Size of a partition above which its oldest segments are deleted; -1 sets no limit.",
            served=True,
        ),
        ConfigKey(
            "retention.ms",
            LONG,
            604_800_000,
            "Age above which a segment is deleted; -1 keeps all.",
            rule=at_least(-1),
            served=True,
        ),
        # The minimum was 14 bytes before KIP-1030.
        ConfigKey(
            "segment.bytes",
            INT,
            1_073_741_824,
            "Size at which a segment is rolled.",
            rule=at_least(1_048_576),
            served=True,
        ),
        ConfigKey(
            "segment.index.bytes",
            INT,
            10_485_760,
            "Largest size of an index file; a full index rolls the segment.",
            rule=at_least(4),
            served=True,
        ),
        ConfigKey(
            "segment.jitter.ms",
            LONG,
            0,
            "Random time subtracted from segment.ms, so that many partitions do not roll at once.",
            rule=at_least(0),
            served=True,
        ),
        ConfigKey(
            "segment.ms",
            LONG,
            604_800_000,
            "Age at which a segment is rolled even if it is not full.",
            rule=at_least(1),
            served=True,
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Allow a replica outside of the ISR to become leader when no other is alive, losing records that it lacks.",
            served=True,
        ),
    ),
)

# Settings without an entry (throttled replicas, remote storage of the topic) have no default on the broker.
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


def validate_topic_configs(configs: Mapping[str, str], defaults: Mapping[str, SettingValue] | None = None) -> None:
    """Check all settings of one topic, alone and against each other.

    `defaults` are the values topics inherit (see `topic_defaults`), for the relations between settings.
    """
    # With the inherited values: a topic that sets only one of the two lags is compared with the broker's other.
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


def topic_defaults(broker: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """The topic settings that a broker's settings imply; those that the broker does not set are left out.

    Of the synonyms of a topic setting the first one that is set wins; hours and minutes become milliseconds.
    """
    defaults: dict[str, SettingValue] = {}
    for topic_name, synonyms in TOPIC_SYNONYMS.items():
        for synonym in synonyms:
            if synonym in broker:
                defaults[topic_name] = _in_topic_unit(synonym, broker[synonym])
                break
    return defaults


def _in_topic_unit(synonym: str, value: SettingValue) -> SettingValue:
    factor = _UNIT_MS.get(synonym.rpartition(".")[2])
    if factor is None or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else value  # -1 means unlimited in every unit


def _number(values: Mapping[str, SettingValue], name: str) -> int:
    value = values.get(name, TOPIC_CONFIGS.default(name))
    assert isinstance(value, int)
    return value

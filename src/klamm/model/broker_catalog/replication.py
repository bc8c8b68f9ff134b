"""Settings of how brokers copy from each other and choose leaders."""

from typing import Final

from klamm.model.config import MAX_LONG, ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, one_of

REPLICATION: Final = (
    ConfigKey(
        "inter.broker.listener.name",
        ConfigType.STRING,
        None,
        "Listener other brokers use to reach this one.",
        served=True,
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        "Security protocol between brokers, when no listener is named for it.",
        rule=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        served=True,
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        ConfigType.LONG,
        30_000,
        "Time behind the leader's end after which a follower leaves the in-sync set.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        ConfigType.INT,
        30_000,
        "How long a follower waits for its leader's answer.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "replica.socket.receive.buffer.bytes",
        ConfigType.INT,
        65_536,
        "Receive buffer of a follower's socket.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        ConfigType.INT,
        1_048_576,
        "Bytes a follower asks for per partition.",
        rule=at_least(0),
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        ConfigType.INT,
        500,
        "How long a follower's fetch may wait for data.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "replica.fetch.backoff.ms", ConfigType.INT, 1000, "Pause of a follower after a failed fetch.", rule=at_least(0)
    ),
    ConfigKey(
        "replica.fetch.min.bytes", ConfigType.INT, 1, "Bytes a follower's fetch waits for.", importance=Importance.HIGH
    ),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        ConfigType.INT,
        10_485_760,
        "Bytes a follower asks for over all partitions.",
        rule=at_least(0),
    ),
    ConfigKey(
        "num.replica.fetchers",
        ConfigType.INT,
        1,
        "Parallel fetches a follower runs per leader.",
        rule=at_least(1),
        importance=Importance.HIGH,
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        ConfigType.LONG,
        5000,
        "Pause between two writes of the high watermarks.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "num.replica.alter.log.dirs.threads",
        ConfigType.INT,
        None,
        "Threads that move replicas between data folders.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "fetch.purgatory.purge.interval.requests",
        ConfigType.INT,
        1000,
        "Finished fetches after which waiting ones are tidied up.",
    ),
    ConfigKey(
        "producer.purgatory.purge.interval.requests",
        ConfigType.INT,
        1000,
        "Finished produces after which waiting ones are tidied up.",
    ),
    ConfigKey(
        "delete.records.purgatory.purge.interval.requests",
        ConfigType.INT,
        1,
        "Finished record deletions after which waiting ones are tidied up.",
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether leadership is moved back to preferred replicas by itself.",
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "Pause between two looks for leadership to move back.",
        rule=at_least(1),
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Let a replica that is behind become leader when no other is left, losing what it lacks.",
        importance=Importance.HIGH,
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        ConfigType.LONG,
        300_000,
        "Pause between two looks for partitions that need such an election.",
        rule=at_least(1),
        internal=True,
    ),
    ConfigKey(
        "replica.selector.class", ConfigType.STRING, None, "Class that picks which replica a consumer should read from."
    ),
    ConfigKey(
        "follower.fetch.last.tiered.offset.enable",
        ConfigType.BOOLEAN,
        False,
        "Let a new follower begin at the end of what remote storage holds.",
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "controller.socket.timeout.ms", ConfigType.INT, 30_000, "How long a broker waits for the controller's answer."
    ),
    ConfigKey(
        "leader.replication.throttled.rate",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second leaders send to throttled replicas.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second followers take for throttled replicas.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second moved between data folders.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
)

"""Settings of replication and leader elections."""

from typing import Final

from klamm.model.config import MAX_LONG, ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, one_of

REPLICATION: Final = (
    ConfigKey(
        "inter.broker.listener.name",
        ConfigType.STRING,
        None,
        "Listener that other brokers connect to.",
        served=True,
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        "Security protocol between brokers, when inter.broker.listener.name is not set.",
        rule=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        served=True,
    ),
    # 30 s since KIP-537, 10 s before: short pauses of a follower caused ISR shrinks.
    ConfigKey(
        "replica.lag.time.max.ms",
        ConfigType.LONG,
        30_000,
        "Time behind the leader's log end after which a follower leaves the ISR.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        ConfigType.INT,
        30_000,
        "How long a follower waits for its leader's response.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "replica.socket.receive.buffer.bytes",
        ConfigType.INT,
        65_536,
        "Receive buffer of a follower's socket.",
        importance=Importance.HIGH,
        served=True,
    ),
    # Not a limit for a batch: the first batch of a fetch is returned whole (KIP-74).
    ConfigKey(
        "replica.fetch.max.bytes",
        ConfigType.INT,
        1_048_576,
        "Bytes a follower requests per partition.",
        rule=at_least(0),
        served=True,
    ),
    # Must stay below replica.lag.time.max.ms, or followers of quiet topics leave the ISR.
    ConfigKey(
        "replica.fetch.wait.max.ms",
        ConfigType.INT,
        500,
        "How long a follower's fetch may wait for data.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "replica.fetch.backoff.ms",
        ConfigType.INT,
        1000,
        "Wait of a follower after a failed fetch.",
        rule=at_least(0),
        served=True,
    ),
    ConfigKey(
        "replica.fetch.min.bytes",
        ConfigType.INT,
        1,
        "Bytes a follower's fetch waits for.",
        importance=Importance.HIGH,
        served=True,
    ),
    # KIP-74.
    ConfigKey(
        "replica.fetch.response.max.bytes",
        ConfigType.INT,
        10_485_760,
        "Bytes a follower requests over all partitions.",
        rule=at_least(0),
        served=True,
    ),
    ConfigKey(
        "num.replica.fetchers",
        ConfigType.INT,
        1,
        "Parallel fetches of a follower per leader.",
        rule=at_least(1),
        importance=Importance.HIGH,
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        ConfigType.LONG,
        5000,
        "Interval between writes of the high watermarks.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "num.replica.alter.log.dirs.threads",
        ConfigType.INT,
        None,
        "Threads that move replicas between log directories.",
        importance=Importance.HIGH,
    ),
    # Purgatories are structures of Kafka's broker; Klamm has none, and these three have no effect.
    ConfigKey(
        "fetch.purgatory.purge.interval.requests",
        ConfigType.INT,
        1000,
        "Completed fetches after which waiting ones are purged.",
    ),
    ConfigKey(
        "producer.purgatory.purge.interval.requests",
        ConfigType.INT,
        1000,
        "Completed produce requests after which waiting ones are purged.",
    ),
    ConfigKey(
        "delete.records.purgatory.purge.interval.requests",
        ConfigType.INT,
        1,
        "Completed DeleteRecords requests after which waiting ones are purged.",
    ),
    ConfigKey(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether leadership is moved back to preferred replicas automatically.",
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "Interval between checks for leadership to move back.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "Allow a replica outside of the ISR to become leader when no other is alive, losing records that it lacks.",
        importance=Importance.HIGH,
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "unclean.leader.election.interval.ms",
        ConfigType.LONG,
        300_000,
        "Interval between checks for partitions that need an unclean election.",
        rule=at_least(1),
        internal=True,
        served=True,
    ),
    # KIP-392. Two class names of Kafka are served, see model/replica_selectors.py.
    ConfigKey(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        "Class that selects the replica a consumer reads from; without one it is the leader.",
        served=True,
    ),
    ConfigKey(
        "follower.fetch.last.tiered.offset.enable",
        ConfigType.BOOLEAN,
        False,
        "Let a new follower start at the end of what remote storage has.",
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "controller.socket.timeout.ms", ConfigType.INT, 30_000, "How long a broker waits for the controller's response."
    ),
    # KIP-73. Set by kafka-reassign-partitions --throttle, never in a file (DYNAMIC_ONLY).
    ConfigKey(
        "leader.replication.throttled.rate",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second that leaders send to throttled replicas.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "follower.replication.throttled.rate",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second that followers receive for throttled replicas.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    # KIP-113.
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second that are moved between log directories.",
        rule=at_least(0),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
)

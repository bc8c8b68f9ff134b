"""Settings of remote storage, which Klamm accepts and does not have."""

from typing import Final

from klamm.model.config import MAX_LONG, ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, between, not_empty

REMOTE: Final = (
    # KIP-405. All settings of this file are accepted and without effect.
    ConfigKey(
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        False,
        "Whether segments may be moved to remote storage.",
    ),
    # broker_configs accepts names under the default prefixes without a definition: plugins have their own.
    ConfigKey(
        "remote.log.storage.manager.impl.prefix",
        ConfigType.STRING,
        "rsm.config.",
        "Prefix of settings that are passed to the remote storage plugin.",
        rule=not_empty(),
    ),
    ConfigKey(
        "remote.log.metadata.manager.impl.prefix",
        ConfigType.STRING,
        "rlmm.config.",
        "Prefix of settings that are passed to the remote metadata plugin.",
        rule=not_empty(),
    ),
    ConfigKey(
        "remote.log.storage.manager.class.name",
        ConfigType.STRING,
        None,
        "Class of the remote storage plugin.",
        rule=not_empty(),
    ),
    ConfigKey(
        "remote.log.storage.manager.class.path", ConfigType.STRING, None, "Class path of the remote storage plugin."
    ),
    ConfigKey(
        "remote.log.metadata.manager.class.name",
        ConfigType.STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        "Class of the remote metadata plugin.",
        rule=not_empty(),
    ),
    ConfigKey(
        "remote.log.metadata.manager.class.path", ConfigType.STRING, None, "Class path of the remote metadata plugin."
    ),
    ConfigKey(
        "remote.log.metadata.manager.listener.name",
        ConfigType.STRING,
        None,
        "Listener that the metadata plugin connects to.",
        rule=not_empty(),
    ),
    ConfigKey(
        "remote.log.metadata.custom.metadata.max.bytes",
        ConfigType.INT,
        128,
        "Largest custom metadata of a storage plugin per segment.",
        rule=at_least(0),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "remote.log.index.file.cache.total.size.bytes",
        ConfigType.LONG,
        1_073_741_824,
        "Disk space for indexes fetched from remote storage.",
        rule=at_least(1),
        importance=Importance.LOW,
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.index.file.cache.ttl.ms",
        ConfigType.LONG,
        900_000,
        "Idle time after which a fetched index is evicted; -1 for never.",
        rule=at_least(-1),
        importance=Importance.LOW,
        internal=True,
    ),
    ConfigKey(
        "remote.log.manager.thread.pool.size",
        ConfigType.INT,
        2,
        "Threads for scheduled tasks of remote storage.",
        rule=at_least(1),
    ),
    # KIP-950 split the pool, so that copying does not delay expiry.
    ConfigKey(
        "remote.log.manager.copier.thread.pool.size",
        ConfigType.INT,
        10,
        "Threads that copy segments to remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.manager.expiration.thread.pool.size",
        ConfigType.INT,
        10,
        "Threads that delete expired remote segments.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.manager.follower.thread.pool.size",
        ConfigType.INT,
        2,
        "Threads that update followers about remote segments.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.manager.task.interval.ms",
        ConfigType.LONG,
        30_000,
        "Interval between runs of remote storage tasks.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "remote.log.manager.task.retry.backoff.ms",
        ConfigType.LONG,
        500,
        "First wait before a failed remote task is retried.",
        rule=at_least(1),
        importance=Importance.LOW,
        internal=True,
    ),
    ConfigKey(
        "remote.log.manager.task.retry.backoff.max.ms",
        ConfigType.LONG,
        30_000,
        "Longest wait before a failed remote task is retried.",
        rule=at_least(1),
        importance=Importance.LOW,
        internal=True,
    ),
    ConfigKey(
        "remote.log.manager.task.retry.jitter",
        ConfigType.DOUBLE,
        0.2,
        "Random part of that wait.",
        rule=between(0, 0.5),
        importance=Importance.LOW,
        internal=True,
    ),
    ConfigKey(
        "remote.log.reader.threads",
        ConfigType.INT,
        10,
        "Threads that read from remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.reader.max.pending.tasks", ConfigType.INT, 100, "Remote reads that may be queued.", rule=at_least(1)
    ),
    ConfigKey(
        "log.local.retention.ms",
        ConfigType.LONG,
        -2,
        "Time that segments are kept on local disk; -2 uses the retention time.",
        rule=at_least(-2),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "log.local.retention.bytes",
        ConfigType.LONG,
        -2,
        "Size that is kept on local disk; -2 uses the retention size.",
        rule=at_least(-2),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    # KIP-956, as the fetch quota below.
    ConfigKey(
        "remote.log.manager.copy.max.bytes.per.second",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second that are copied to remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.manager.copy.quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which the copy rate is computed.",
        rule=at_least(1),
    ),
    ConfigKey(
        "remote.log.manager.copy.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of the copy rate.",
        rule=at_least(1),
    ),
    ConfigKey(
        "remote.log.manager.fetch.max.bytes.per.second",
        ConfigType.LONG,
        MAX_LONG,
        "Bytes per second read from remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "remote.log.manager.fetch.quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which the read rate is computed.",
        rule=at_least(1),
    ),
    ConfigKey(
        "remote.log.manager.fetch.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of the read rate.",
        rule=at_least(1),
    ),
    # KIP-1018.
    ConfigKey(
        "remote.fetch.max.wait.ms",
        ConfigType.INT,
        500,
        "How long a fetch may wait for remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    # KIP-1075.
    ConfigKey(
        "remote.list.offsets.request.timeout.ms",
        ConfigType.LONG,
        30_000,
        "How long an offset lookup may wait for remote storage.",
        rule=at_least(1),
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
)

"""Settings of metrics and quotas."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, list_of

OPERATIONS: Final = (
    ConfigKey(
        "metrics.num.samples",
        ConfigType.INT,
        2,
        "Samples from which a rate is computed.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "metrics.sample.window.ms",
        ConfigType.LONG,
        30_000,
        "Length of a sample.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "metric.reporters",
        ConfigType.LIST,
        ("org.apache.kafka.common.metrics.JmxReporter",),
        "Classes that report metrics.",
        rule=list_of(),
        importance=Importance.LOW,
        update_mode=UpdateMode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "metrics.recording.level",
        ConfigType.STRING,
        "INFO",
        "Level of detail of metrics.",
        importance=Importance.LOW,
    ),
    # Yammer metrics, from before Kafka had metrics of its own; metric.reporters replaces it.
    ConfigKey(
        "kafka.metrics.reporters",
        ConfigType.LIST,
        (),
        "Classes of the older interface that report metrics.",
        rule=list_of(),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "kafka.metrics.polling.interval.secs",
        ConfigType.INT,
        10,
        "Interval between reads by kafka.metrics.reporters.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    # KIP-714.
    ConfigKey(
        "telemetry.max.bytes",
        ConfigType.INT,
        1_048_576,
        "Largest push of client metrics that is accepted.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    # KIP-13. Eleven windows of one second: ten complete ones and the current one.
    ConfigKey(
        "quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which a client's rate is computed.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of client quotas.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    # KIP-73.
    ConfigKey(
        "replication.quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which the replication rate is computed.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "replication.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of the replication quota.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "alter.log.dirs.replication.quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which the rate of moves between log directories is computed.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    ConfigKey(
        "alter.log.dirs.replication.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of that rate.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
    # KIP-599.
    ConfigKey(
        "controller.quota.window.num",
        ConfigType.INT,
        11,
        "Windows from which the rate of metadata changes is computed.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "controller.quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of a window of the controller quota.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    # KIP-257.
    ConfigKey(
        "client.quota.callback.class",
        ConfigType.CLASS,
        None,
        "Class that computes quotas of clients.",
        importance=Importance.LOW,
    ),
)

"""Settings of transactions and producer ids."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least

TRANSACTIONS: Final = (
    # 2 of 3 replicas: a lost commit decision would leave a transaction half visible.
    ConfigKey(
        "transaction.state.log.min.isr",
        ConfigType.INT,
        2,
        "min.insync.replicas of __transaction_state.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "transaction.state.log.load.buffer.size",
        ConfigType.INT,
        5_242_880,
        "Bytes read at a time when a coordinator loads transactions.",
        rule=at_least(1),
        importance=Importance.HIGH,
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        3,
        "Replication factor of __transaction_state.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    # An id belongs to partition hash(transactional.id) % count.
    ConfigKey(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        50,
        "Partition count of __transaction_state; fixed once it exists.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        104_857_600,
        "Segment size of __transaction_state.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    # KIP-890: a late produce request could otherwise begin a transaction that nothing ends.
    ConfigKey(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        True,
        "Verify with the coordinator that a partition belongs to a transaction before it is written to.",
        importance=Importance.LOW,
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    # KIP-854 separated it from transactional.id.expiration.ms: idempotent producers are far more numerous.
    ConfigKey(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "Idle time after which a partition drops the state of a producer.",
        rule=at_least(1),
        importance=Importance.LOW,
        update_mode=UpdateMode.CLUSTER_WIDE,
        served=True,
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms",
        ConfigType.INT,
        600_000,
        "Interval between checks for expired producers.",
        rule=at_least(1),
        importance=Importance.LOW,
        internal=True,
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        604_800_000,
        "Idle time after which a transactional id is removed.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    # An open transaction holds back the last stable offset, and with it every read_committed consumer.
    ConfigKey(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        900_000,
        "Longest transaction.timeout.ms a producer may request.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        10_000,
        "Interval between checks for transactions that timed out.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        3_600_000,
        "Interval between checks for expired transactional ids.",
        rule=at_least(1),
        importance=Importance.LOW,
        served=True,
    ),
    # KIP-939.
    ConfigKey(
        "transaction.two.phase.commit.enable",
        ConfigType.BOOLEAN,
        False,
        "Allow transactions without timeout, which an external coordinator ends.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.max.ms",
        ConfigType.INT,
        100,
        "How long a broker retries the verification of a transaction.",
        rule=at_least(0),
        importance=Importance.HIGH,
        served=True,
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.ms",
        ConfigType.INT,
        20,
        "Wait between two attempts of the verification.",
        rule=at_least(1),
        importance=Importance.HIGH,
        served=True,
    ),
)

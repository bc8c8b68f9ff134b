"""Log lines of the active controller about brokers and partition leaders, written when a decision is replayed."""

from collections.abc import Iterable

from klamm.controller.partitions import RECOVERING
from klamm.metadata.delta import MetadataDelta
from klamm.model.ids import Uuid
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord
from klamm.telemetry.log import Level, get_logger

log = get_logger("controller")


def log_changes(delta: MetadataDelta, records: Iterable[MetadataRecord]) -> None:
    """Write a line for every broker that was fenced or unfenced, and for every leader that was elected."""
    _log_brokers(delta)
    for record in records:
        # Only an unclean election starts a recovery: the new leader may lack records that were acknowledged.
        if isinstance(record, PartitionChangeRecord) and record.leader_recovery_state == RECOVERING:
            _log_unclean_election(delta, record)
    # A broker that leaves may move thousands of leaders: those lines are written at debug only.
    if log.enabled(Level.DEBUG):
        _log_leaders(delta)


def _log_brokers(delta: MetadataDelta) -> None:
    for broker_id, broker in delta.brokers_changed.items():
        before = delta.image.cluster.get(broker_id)
        if broker is None:
            log.info("broker unregistered", broker=broker_id)
        elif before is not None and before.fenced != broker.fenced:
            log.info("broker fenced" if broker.fenced else "broker unfenced", broker=broker_id, epoch=broker.epoch)


def _log_unclean_election(delta: MetadataDelta, record: PartitionChangeRecord) -> None:
    change = delta.topics_changed.get(Uuid(record.topic_id))
    if change is not None:
        partition = f"{change.after.name}-{record.partition_id}"
        log.warning("unclean leader election", partition=partition, leader=record.leader)


def _log_leaders(delta: MetadataDelta) -> None:
    for change in delta.topics_changed.values():
        for index, partition in change.partitions.items():
            before = change.before.partitions.get(index) if change.before is not None else None
            if before is not None and before.leader != partition.leader:
                log.debug(
                    "partition leader elected",
                    partition=f"{change.after.name}-{index}",
                    leader=partition.leader,
                    epoch=partition.leader_epoch,
                )

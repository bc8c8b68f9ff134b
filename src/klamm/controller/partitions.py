"""Changes of a partition: its ISR, its leader, its eligible leader replicas (KIP-966), its replicas.

Every change goes through `change_partition`, so that leaders are elected by one set of rules.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from klamm.controller.context import ControllerContext, ControllerDecision, refuse
from klamm.metadata.delta import merge_partition
from klamm.metadata.image import NO_LEADER, PartitionImage, TopicImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages import alter_partition as ap
from klamm.protocol.messages.metadata_records import MetadataRecord, PartitionChangeRecord

UNCHANGED_LEADER = -2  # the default of PartitionChangeRecord.leader
RECOVERED, RECOVERING = 0, 1


class Election(Enum):
    """The rule by which a leader is elected."""

    ONLINE = "keep the leader if it can stay, else the first replica in sync"
    PREFERRED = "the preferred replica if it is in sync, else as ONLINE"
    UNCLEAN = "as ONLINE, else any live replica, which may lose records"


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    """The replicas of a partition, and those that a reassignment adds and removes."""

    replicas: tuple[int, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: PartitionImage) -> "ReplicaPlacement":
        """The present placement of `partition`."""
        return cls(partition.replicas, partition.removing_replicas, partition.adding_replicas)

    def complete_move(self, isr: tuple[int, ...]) -> tuple["ReplicaPlacement", tuple[int, ...]]:
        """The placement and ISR after the move, if all replicas that stay are in sync; else both unchanged."""
        if not self.removing and not self.adding:
            return self, isr
        staying = tuple(replica for replica in self.replicas if replica not in self.removing)
        in_sync = tuple(replica for replica in isr if replica not in self.removing)
        # Until all replicas that stay are in sync, the others are still needed as copies.
        if not staying or not set(staying) <= set(in_sync):
            return self, isr
        return ReplicaPlacement(staying), in_sync


def change_partition(
    context: ControllerContext,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    *,
    acceptable: Callable[[int], bool],
    isr: Collection[int] | None = None,
    election: Election | None = None,
    unclean_shutdown: int = NO_LEADER,
    leader_recovery_state: int | None = None,
    placement: ReplicaPlacement | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives the partition a new ISR and, if needed, a new leader; None when nothing changes.

    Without an `election` the topic's configuration decides between ONLINE and UNCLEAN. A `placement` moves replicas;
    the move is completed here as soon as all replicas that stay are in sync.
    """
    if election is None:
        election = Election.UNCLEAN if context.unclean_election_allowed(topic.name) else Election.ONLINE
    elr_enabled = context.elr_enabled
    target_isr = tuple(partition.isr if isr is None else isr)
    placed, target_isr = (placement or ReplicaPlacement.of(partition)).complete_move(target_isr)
    # KIP-966: below min.insync.replicas the high watermark stands still, so replicas that leave the ISR now hold every
    # committed record and stay eligible, unless they stopped uncleanly and may have lost what was not synced.
    target_elr: tuple[int, ...] = ()
    if elr_enabled and len(target_isr) < context.min_insync_replicas(topic.name, len(placed.replicas)):
        former = dict.fromkeys((*partition.elr, *partition.isr))
        candidates = [replica for replica in former if replica in placed.replicas]
        target_elr = tuple(
            replica for replica in candidates if replica not in target_isr and replica != unclean_shutdown
        )
    leader, unclean = _elect(
        partition, placed.replicas, target_isr, target_elr, acceptable, election, elr_enabled=elr_enabled
    )
    record = PartitionChangeRecord(topic_id=topic.id, partition_id=index)
    if leader != partition.leader:
        record.leader = leader
        if unclean:
            # The other replicas may have records that the unclean leader lacks: none is in sync with it.
            target_isr, target_elr = (leader,), ()
            if partition.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
        elif leader in target_elr:
            # The ISR is empty here; a replica of the ELR has every committed record.
            target_isr = (leader,)
            target_elr = tuple(replica for replica in target_elr if replica != leader)
    elif not set(partition.replicas) <= set(placed.replicas):
        # A new leader epoch fences the removed replicas, which would otherwise go on fetching.
        record.leader = leader
    # Without ELR the last replica stays in the ISR even when it is down: only it is known to hold all records.
    if target_isr != partition.isr and (target_isr or elr_enabled):
        record.isr = list(target_isr)
    if target_elr != partition.elr:
        record.eligible_leader_replicas = list(target_elr)
    if elr_enabled:
        record.last_known_elr = _last_known_leader(partition, record)
    if leader_recovery_state is not None and leader_recovery_state != partition.leader_recovery_state:
        record.leader_recovery_state = leader_recovery_state
    _place(context, partition, placed, record)
    unchanged = PartitionChangeRecord(topic_id=topic.id, partition_id=index)
    return None if record == unchanged else record


def _place(
    context: ControllerContext, partition: PartitionImage, placed: ReplicaPlacement, record: PartitionChangeRecord
) -> None:
    """Set the replicas of `record`, and the directories of new ones."""
    if placed.replicas != partition.replicas:
        record.replicas = list(placed.replicas)
        record.directories = [
            partition.directory(replica) if replica in partition.replicas else context.default_directory(replica)
            for replica in placed.replicas
        ]
    if placed.removing != partition.removing_replicas:
        record.removing_replicas = list(placed.removing)
    if placed.adding != partition.adding_replicas:
        record.adding_replicas = list(placed.adding)


def _elect(
    partition: PartitionImage,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    acceptable: Callable[[int], bool],
    election: Election,
    *,
    elr_enabled: bool,
) -> tuple[int, bool]:
    """The leader, and whether the election is unclean."""
    # KIP-966: the ELR counts only while the ISR is empty.
    eligible = isr or elr

    def valid(replica: int) -> bool:
        return replica in eligible and acceptable(replica)

    if election is Election.PREFERRED and valid(replicas[0]):
        return replicas[0], False
    if valid(partition.leader):
        return partition.leader, False
    for replica in replicas:
        if valid(replica):
            return replica, False
    if elr_enabled and not eligible and len(partition.last_known_elr) == 1:
        # Balanced recovery of KIP-966: with no eligible replica left, the last leader is the best choice.
        last_leader = partition.last_known_elr[0]
        if last_leader in replicas and acceptable(last_leader):
            return last_leader, True
    if election is Election.UNCLEAN:
        for replica in replicas:
            if acceptable(replica):
                return replica, True
    return NO_LEADER, False


def _last_known_leader(partition: PartitionImage, record: PartitionChangeRecord) -> list[int] | None:
    """The new value of `last_known_elr`: the last leader, once no replica is eligible any more; None to keep it."""
    last_known = partition.last_known_elr
    if record.isr is not None and not record.isr and partition.has_leader and last_known != (partition.leader,):
        return [partition.leader]
    leader = partition.leader if record.leader == UNCHANGED_LEADER else record.leader
    return [] if leader != NO_LEADER and last_known else None


def leader_rule(
    context: ControllerContext, partition: PartitionImage, also: int = NO_LEADER, never: int = NO_LEADER
) -> Callable[[int], bool]:
    """Return the test for replicas that can lead: broker active (or `also`, but not `never`), directory online."""
    brokers = context.image.cluster.brokers

    def acceptable(replica: int) -> bool:
        broker = brokers.get(replica)
        if broker is None or replica == never:
            return False
        return (replica == also or broker.active) and broker.has_directory(partition.directory(replica))

    return acceptable


def remove_from_isrs(
    context: ControllerContext,
    broker_id: int,
    partitions: Iterable[tuple[TopicImage, int, PartitionImage]],
    *,
    unclean: bool = False,
) -> Iterator[PartitionChangeRecord]:
    """Remove a broker from ISRs and leadership; after an unclean shutdown also from the eligible leader replicas."""
    for topic, index, partition in partitions:
        record = change_partition(
            context,
            topic,
            index,
            partition,
            acceptable=leader_rule(context, partition, never=broker_id),
            isr=[replica for replica in partition.isr if replica != broker_id],
            unclean_shutdown=broker_id if unclean else NO_LEADER,
        )
        if record is not None:
            yield record


def in_sync_partitions(
    context: ControllerContext, broker_id: int, *, eligible: bool = False
) -> list[tuple[TopicImage, int, PartitionImage]]:
    """The partitions with a broker in their ISR, or with `eligible` in their ISR or ELR."""
    return [
        (topic, index, partition)
        for topic, index, partition in context.image.topics.partitions()
        if broker_id in partition.isr or (eligible and broker_id in partition.elr)
    ]


def elect_leaderless(context: ControllerContext, broker_id: int) -> Iterator[PartitionChangeRecord]:
    """Elect leaders for leaderless partitions when a broker is unfenced."""
    for topic, index, partition in context.image.topics.partitions():
        if not partition.has_leader:
            acceptable = leader_rule(context, partition, also=broker_id)
            record = change_partition(context, topic, index, partition, acceptable=acceptable)
            if record is not None:
                yield record


def leads_any(context: ControllerContext, broker_id: int) -> bool:
    """Whether the broker leads at least one partition."""
    return any(partition.leader == broker_id for _, _, partition in context.image.topics.partitions())


# AlterPartition


def alter_partition(
    context: ControllerContext, request: ap.AlterPartitionRequest, version: int
) -> ControllerDecision[ap.AlterPartitionResponse]:
    """Change ISRs as their leaders propose; rejected when a proposal is based on an outdated state."""
    response = ap.AlterPartitionResponse()
    broker = context.image.cluster.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        response.error_code = ErrorCode.STALE_BROKER_EPOCH
        return ControllerDecision((), response)
    records: list[MetadataRecord] = []
    for topic_data in request.topics:
        topic = context.image.topics.by_id.get(Uuid(topic_data.topic_id))
        results = []
        for data in topic_data.partitions:
            try:
                if topic is None:
                    refuse(ErrorCode.UNKNOWN_TOPIC_ID)
                partition, record = _apply_proposal(context, request.broker_id, topic, data, version)
            except KlammError as error:
                results.append(ap.PartitionDataResponse(partition_index=data.partition_index, error_code=error.code))
                continue
            if record is not None:
                records.append(record)
            if partition.leader != request.broker_id:
                # The change completed a reassignment and moved leadership: the sender must refresh its metadata.
                code = ErrorCode.NEW_LEADER_ELECTED
                results.append(ap.PartitionDataResponse(partition_index=data.partition_index, error_code=code))
                continue
            results.append(
                ap.PartitionDataResponse(
                    partition_index=data.partition_index,
                    leader_id=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    isr=list(partition.isr),
                    leader_recovery_state=partition.leader_recovery_state,
                    partition_epoch=partition.partition_epoch,
                )
            )
        response.topics.append(ap.TopicDataResponse(topic_id=topic_data.topic_id, partitions=results))
    return ControllerDecision(tuple(records), response)


def _apply_proposal(
    context: ControllerContext, broker_id: int, topic: TopicImage, data: ap.PartitionData, version: int
) -> tuple[PartitionImage, PartitionChangeRecord | None]:
    """The partition after the proposed change, and the record of the change."""
    partition = topic.partitions.get(data.partition_index)
    if partition is None:
        raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # v3 has broker epochs (KIP-903): a replica that restarted meanwhile is not the one that caught up.
    if version >= 3:
        new_isr = [(state.broker_id, state.broker_epoch) for state in data.new_isr_with_epochs]
    else:
        new_isr = [(replica, -1) for replica in data.new_isr]
    _check_proposal(context, broker_id, partition, data, new_isr)
    record = change_partition(
        context,
        topic,
        data.partition_index,
        partition,
        acceptable=leader_rule(context, partition),
        isr=[replica for replica, _ in new_isr],
        leader_recovery_state=data.leader_recovery_state,
    )
    return (partition if record is None else merge_partition(partition, record)), record


def _check_proposal(
    context: ControllerContext,
    broker_id: int,
    partition: PartitionImage,
    data: ap.PartitionData,
    new_isr: list[tuple[int, int]],
) -> None:
    # A leader with a newer epoch has been elected by a newer controller.
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        raise KlammError(ErrorCode.NOT_CONTROLLER)
    if data.leader_epoch < partition.leader_epoch:
        raise KlammError(ErrorCode.FENCED_LEADER_EPOCH)
    if partition.leader != broker_id:
        raise KlammError(ErrorCode.INVALID_REQUEST)
    if data.partition_epoch < partition.partition_epoch:
        raise KlammError(ErrorCode.INVALID_UPDATE_VERSION)
    isr = [replica for replica, _ in new_isr]
    # An unclean leader recovers alone, and a recovery that has ended cannot begin again.
    recovering = data.leader_recovery_state == RECOVERING
    if (
        not set(isr) <= set(partition.replicas)
        or len(set(isr)) != len(isr)
        or partition.leader not in isr
        or (recovering and len(isr) > 1)
        or (recovering and partition.leader_recovery_state == RECOVERED)
    ):
        raise KlammError(ErrorCode.INVALID_REQUEST)
    for replica, epoch in new_isr:
        broker = context.image.cluster.get(replica)
        if broker is None or not broker.active or epoch not in (-1, broker.epoch):
            raise KlammError(ErrorCode.INELIGIBLE_REPLICA)

"""All replicas of this node: looked up by name or id, appended to during a turn, written when it ends.

Every append of a turn is staged first; `write_staged` then writes each log once and completes the replies that waited
for it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from klamm.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.model.ids import Uuid
from klamm.records.batch import BatchView
from klamm.replication.core.acknowledgements import ExpiringReply
from klamm.replication.core.throttle import Throttle
from klamm.replication.delayed_fetch import DelayedFetch
from klamm.replication.follower_sessions import FollowerSession, FollowerSessions
from klamm.replication.isr import IsrChanges, log_isr_change
from klamm.replication.replica import Replica
from klamm.replication.settings import ReplicationConfig, TopicSettings
from klamm.storage import LogManager
from klamm.storage.log_appender import is_disk_full
from klamm.storage.producer_state import GAPS_REFUSED_MS, Origin
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.records.kernels.produce import PlainHeader

log = get_logger("replication")

APPLY_SLICE = 16
"""Partitions opened before the event loop gets to other work; opening one takes some file operations."""
DISK_FULL_RETRY_MS = 500
"""Time between two attempts to create replicas whose log dir was full."""


def _do_nothing() -> None:
    pass


class ReplicaManager:
    """Owns the replicas; called from one event loop only."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        clock: Clock,
        config: ReplicationConfig | None = None,
        *,
        schedule_write: Callable[[], None] = _do_nothing,
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self.config = config or ReplicationConfig()
        self.image = EMPTY_IMAGE
        self.isr = IsrChanges(self)
        self.follower_sessions = FollowerSessions()
        self.leader_throttle = Throttle(self.config.leader_throttled_rate)
        self.follower_throttle = Throttle(self.config.follower_throttled_rate)
        self._clock = clock
        self._by_name: dict[str, dict[int, Replica]] = {}
        self._by_id: dict[bytes, dict[int, Replica]] = {}
        self._dirty: list[Replica] = []
        """Replicas with `has_staged` set, in the order of their first append: each once."""
        self._before_write: list[Callable[[], None]] = []
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._now_ms = 0
        """The wall clock at the first append of the turn."""
        self.offline: set[tuple[bytes, int]] = set()
        """(topic id, partition) of replicas this node should have, in log dirs that have failed or are full."""
        self._disk_full: dict[tuple[bytes, int], Callable[[str], TopicSettings]] = {}
        """Those of them whose log dir is full, with the function that looks up their topic's settings."""
        self._retry_disk_full_at_ms = 0
        self._expiring: dict[Replica, None] = {}
        """Replicas with replies that wait for the high watermark, checked for deadlines that have passed."""
        self.schedule_write = schedule_write
        """Arranges that `write_staged` is called when the turn ends."""
        self.on_role: list[Callable[[Replica], None]] = []
        """Called when a replica has a new leader, epoch or set of replicas, or is removed (`retired`)."""

    def find(self, topic: str, index: int) -> Replica | None:
        """Return the replica of a partition by its topic's name, or None."""
        partitions = self._by_name.get(topic)
        return partitions.get(index) if partitions is not None else None

    def find_by_id(self, topic_id: bytes, index: int) -> Replica | None:
        """Return the replica of a partition by its topic's id, or None."""
        partitions = self._by_id.get(topic_id)
        return partitions.get(index) if partitions is not None else None

    def not_leader_error(self, topic_id: bytes, index: int) -> ErrorCode:
        """The error for a partition that this node does not lead: its disk has failed, or another broker leads."""
        replica = self.find_by_id(topic_id, index)
        # KAFKA_STORAGE_ERROR, too, makes a client refresh its metadata, where it finds the next leader.
        failed = replica.log.offline if replica is not None else (topic_id, index) in self.offline
        return ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self._by_id.values():
            yield from partitions.values()

    def now_ms(self) -> int:
        """The monotonic clock, on which deadlines of replies are."""
        return self._clock.monotonic_ms()

    # Appending

    def append(
        self,
        replica: Replica,
        records: memoryview,
        acks_all: bool,
        header: "PlainHeader | None" = None,
        now_ms: int = 0,
        checked: BatchView | KlammError | None = None,
    ) -> int:
        """Stage a producer's batch on a replica that leads and return its first offset; KlammError is the refusal.

        `header` is the result of `plain_header` for the batch, `checked` that of validating its records in a thread.
        """
        # Before staging: acks=1 is accepted below min.insync.replicas, acks=all must leave nothing behind.
        if acks_all and replica.under_min_isr:
            raise KlammError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(replica.state.isr)} replicas are in sync, min.insync.replicas is {replica.min_insync_replicas}",
            )
        if not now_ms:
            # One call a turn instead of one a batch: all batches of a turn arrived before it was read.
            if not self._dirty:
                self._now_ms = self._clock.now_ms()
            now_ms = self._now_ms
        if header is not None:
            base_offset = replica.log.stage_plain(records, replica.leader_epoch, now_ms, header)
        elif checked is None:
            base_offset = replica.log.stage(records, replica.leader_epoch, now_ms)
        elif isinstance(checked, KlammError):
            raise checked
        else:
            base_offset = replica.log.stage_validated(checked, replica.leader_epoch, now_ms)
        if not replica.has_staged:
            replica.has_staged = True
            self._dirty.append(replica)
            self.schedule_write()
        return base_offset

    def stage_from_coordinator(self, replica: Replica, batch: memoryview, transaction_version: int = 0) -> int:
        """Stage a batch of a coordinator of this node: markers are allowed, sequences are not checked."""
        base_offset = replica.log.stage_from(
            batch, replica.leader_epoch, self._clock.now_ms(), Origin.COORDINATOR, transaction_version
        )
        if not replica.has_staged:
            replica.has_staged = True
            self._dirty.append(replica)
            self.schedule_write()
        return base_offset

    def acknowledge(self, replica: Replica, reply: ExpiringReply, *, acks_all: bool) -> None:
        """Complete `reply` when the log has its records, for acks=all when every replica in sync has them."""
        if not replica.has_staged:
            # A coordinator registers callbacks for records of earlier turns too.
            reached = replica.state.high_watermark if acks_all else replica.acknowledged_end_offset
            if reply.required_offset <= reached:
                reply.succeed()
                return
            # Leadership ended meanwhile, and `fail_all` has run already: a reply queued now would wait for ever.
            if not replica.leads:
                reply.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
        if acks_all:
            self.await_high_watermark(replica, reply)
        else:
            replica.acknowledgements.until_written.append(reply)

    def await_high_watermark(self, replica: Replica, reply: ExpiringReply) -> None:
        """Complete `reply` when the high watermark has passed its records; fail it when its deadline has passed."""
        replica.acknowledgements.until_committed.append(reply)
        self._expiring[replica] = None

    def before_write(self, stage: Callable[[], None]) -> None:
        """Call `stage` when the turn ends, before anything is written, to stage records of many requests at once."""
        self._before_write.append(stage)
        self.schedule_write()

    def write_staged(self) -> bool:
        """Write what the turn staged, then complete the replies that wait for it; return whether there was anything.

        A failed write fails exactly the replies whose records it contained.
        """
        # First, and the list replaced: what they stage is part of this write, what they add is for the next.
        if self._before_write:
            hooks, self._before_write = self._before_write, []
            for stage in hooks:
                stage()
        if not self._dirty:
            return False
        dirty, self._dirty = self._dirty, []
        woken: dict[DelayedFetch, None] = {}
        sessions: dict[FollowerSession, None] = {}
        for replica in dirty:
            # Before the replies: completing one may stage more, which needs another write.
            replica.has_staged = False
            acknowledgements = replica.acknowledgements
            log = replica.log
            log_state = log.state  # not the log's properties: a turn writes many logs
            before_end = log_state.log_end_offset
            try:
                log.write_staged()
            except StorageFailure as failure:
                # The other logs of the turn are on other files, maybe on other disks: they go on.
                self._on_write_failed(replica, failure)
                continue
            if replica.followed:
                if replica.state.high_watermark == before_end:
                    # Until this append no follower in sync was behind: their lag counts from here.
                    replica.state.in_sync_until_ms = self._clock.monotonic_ms()
                for followed in replica.followed:
                    session = followed.session
                    session.changed[followed] = None
                    if session.try_complete_fetch is not None:
                        # Completed after the loop: a session follows many partitions, and gets all of them at once.
                        sessions[session] = None
            # Followers above may have the records before the sync; this log counts them after it.
            if replica.awaits_sync and self._await_sync(replica):
                continue
            end = replica.acknowledged_end_offset = log_state.log_end_offset
            if acknowledgements.until_written:
                acknowledgements.on_written(end)
            if replica.commits_alone and not acknowledgements.until_committed:
                # Most appends of a partition without followers: the high watermark is the log end.
                replica.state.high_watermark = log.advance_to_end()
                if replica.delayed_fetches:
                    woken.update(replica.delayed_fetches)
                continue
            if self._maybe_advance_high_watermark(replica, end):
                woken.update(replica.delayed_fetches)
        for session in sessions:
            # It may have been completed meanwhile, by a follower's next request.
            if session.try_complete_fetch is not None:
                session.try_complete_fetch()
        # Last, and once each: a consumer that waits on many partitions of the turn gets them in one response.
        for delayed_fetch in woken:
            delayed_fetch.try_complete()
        return True

    def write_before_isr_grows(self, replica: Replica) -> None:
        """Write what is staged on a replica that is alone in its ISR and move its high watermark, before the ISR grows.

        Its replies to acks=all only wait for the write. A follower counted before that could be elected without records
        that were acknowledged. Waiting requests of followers are answered when the turn ends.
        """
        if not replica.has_staged or not replica.commits_alone or replica.awaits_sync:
            return  # with flush.messages all replies to acks=all wait for the high watermark
        try:
            replica.log.write_staged()
        except StorageFailure as failure:
            self._on_write_failed(replica, failure)
            return
        replica.acknowledged_end_offset = replica.log.log_end_offset
        # `has_staged` stays set: the replica is in `_dirty`, and `write_staged` has yet to complete the replies.
        self.update_leader_high_watermark(replica)

    def _maybe_advance_high_watermark(self, replica: Replica, end: int) -> bool:
        """Compute the high watermark, `end` being what counts of this log; return whether it has moved."""
        before = replica.state.high_watermark
        reached = replica.state.on_local_append(end)
        if reached > before:
            replica.advance_high_watermark(reached)
            return True
        replica.acknowledge_committed(reached)  # duplicates of what was committed long ago
        return False

    def _await_sync(self, replica: Replica) -> bool:
        """Begin a sync if flush.messages records are not on the device, and count them after it; False if too few."""
        # As Kafka counts: fewer unsynced records than flush.messages are acknowledged from the page cache.
        if replica.log.log_end_offset - replica.log.recovery_point < replica.log.config.flush_messages:
            return False
        self.logs.group_sync.wait(replica.log, partial(self._on_synced, replica))
        return True

    def _on_synced(self, replica: Replica, failure: StorageFailure | None) -> None:
        if failure is not None:
            # Only replies that wait for this sync: what counted before it was acknowledged under flush.messages.
            replica.acknowledgements.fail_above(
                replica.acknowledged_end_offset, ErrorCode.KAFKA_STORAGE_ERROR, failure.message
            )
            return
        # Later records may count already without a sync: fewer than flush.messages of them.
        replica.acknowledged_end_offset = max(replica.acknowledged_end_offset, replica.log.recovery_point)
        replica.acknowledgements.on_written(replica.acknowledged_end_offset)
        if self._maybe_advance_high_watermark(replica, replica.acknowledged_end_offset):
            _try_complete_fetches(replica)

    def _on_write_failed(self, replica: Replica, failure: StorageFailure) -> None:
        log.error("append failed", partition=f"{replica.topic}-{replica.index}", reason=failure.message)
        acknowledgements = replica.acknowledgements
        # Taken before any reply is completed: completing one may stage more, which has not failed.
        lost = acknowledgements.take_above(replica.log.log_end_offset)
        # Duplicates of records that are in the log need nothing of the failed write, and come first by their offsets.
        acknowledgements.on_written(replica.acknowledged_end_offset)
        replica.acknowledge_committed(replica.state.high_watermark)
        for reply in lost:
            reply.fail(ErrorCode.KAFKA_STORAGE_ERROR, failure.message)

    # The high watermark

    def update_leader_high_watermark(self, replica: Replica) -> None:
        """Compute the high watermark after a change of a follower, the ISR or a setting."""
        if self._maybe_advance_high_watermark(replica, replica.acknowledged_end_offset):
            _try_complete_fetches(replica)

    def advance_leader_high_watermark(self, replica: Replica, high_watermark: int) -> None:
        """Advance the high watermark of a partition led here and wake the consumers that wait for it."""
        replica.advance_high_watermark(high_watermark)
        _try_complete_fetches(replica)

    def advance_follower_high_watermark(self, replica: Replica, high_watermark: int) -> None:
        """Advance a follower's high watermark to the leader's, as far as its log reaches; it never goes back."""
        log_ = replica.log
        reached = min(high_watermark, log_.log_end_offset)
        if reached > log_.high_watermark:
            replica.state.high_watermark = log_.advance_high_watermark(reached)
            _try_complete_fetches(replica)

    def tick(self) -> None:
        """Expire requests whose deadline has passed, and retry replicas whose log dir was full."""
        now_ms = self._clock.monotonic_ms()
        if self._disk_full and now_ms >= self._retry_disk_full_at_ms:
            self._retry_disk_full_at_ms = now_ms + DISK_FULL_RETRY_MS
            self._retry_disk_full()
        for replica in list(self._expiring):
            if replica.acknowledgements.until_committed:
                replica.acknowledgements.expire(now_ms)
            else:
                del self._expiring[replica]

    # Following the metadata log

    async def apply(
        self,
        image: MetadataImage,
        changed: Mapping[str, TopicImage],
        deleted: Mapping[bytes, str],
        settings: Callable[[str], TopicSettings],
        partitions: Mapping[str, Mapping[int, PartitionImage]] | None = None,
    ) -> None:
        """Bring the replicas of these topics in line with the image; long lists yield to other work in between.

        `partitions` names those of a topic that changed, when that is not all of them.
        """
        self.image = image
        # Deletions first: a topic that was deleted and created again has the same folder names.
        for topic_id, name in deleted.items():
            self._drop_topic(name, topic_id)
            self.offline = {partition for partition in self.offline if partition[0] != topic_id}
            self._disk_full = {
                partition: settings_of for partition, settings_of in self._disk_full.items() if partition[0] != topic_id
            }
        count = 0
        for topic in changed.values():
            # Deleted in the same delta that changed it.
            if image.topics.by_id.get(topic.id) is None:
                continue
            config = settings(topic.name)
            for index in (partitions or {}).get(topic.name, topic.partitions):
                try:
                    self._follow(topic, index, config, settings)
                except Exception as error:  # noqa: BLE001 - a fault in one partition must not stop the others
                    log.failure("partition cannot follow the metadata", error, partition=f"{topic.name}-{index}")
                count += 1
                if count % APPLY_SLICE == 0:
                    await asyncio.sleep(0)
        # Unfenced brokers and decided proposals may let candidates join, also of partitions that did not change.
        self.isr.reconsider_candidates()

    def _follow(
        self, topic: TopicImage, index: int, settings: TopicSettings, later: Callable[[str], TopicSettings]
    ) -> None:
        if self.node_id in topic.partitions[index].replicas:
            self._ensure(topic, index, settings, later)
        else:
            self._drop(topic.name, topic.id, index)

    def _retry_disk_full(self) -> None:
        """Create as many replicas as there is space for; the first that fails ends the attempt."""
        for (topic_id, index), settings in list(self._disk_full.items())[:APPLY_SLICE]:
            topic = self.image.topics.by_id.get(Uuid(topic_id))
            partition = None if topic is None else topic.partitions.get(index)
            if topic is None or partition is None or self.node_id not in partition.replicas:
                del self._disk_full[topic_id, index]
                continue
            self._ensure(topic, index, settings(topic.name), settings)
            if (topic_id, index) in self.offline:
                return
            log.info("replica online: log directory has space again", partition=f"{topic.name}-{index}")

    def _ensure(
        self, topic: TopicImage, index: int, settings: TopicSettings, later: Callable[[str], TopicSettings]
    ) -> None:
        replica = self.find_by_id(topic.id, index)
        if replica is None:
            # Same name, another topic id: the folder has the topic's name and can serve one of them only.
            stale = self.find(topic.name, index)
            if stale is not None:
                self._drop(stale.topic, stale.topic_id, index)
            directory = topic.partitions[index].directory(self.node_id)
            try:
                opened = self.logs.create(topic.name, index, topic.id, settings.log, directory_id=directory)
            except StorageFailure as failure:
                # Its log dir has failed or is full: no replica until that ends; other partitions do not wait for it.
                if (topic.id, index) not in self.offline:
                    log.warning("replica offline", partition=f"{topic.name}-{index}", reason=failure.message)
                self.offline.add((topic.id, index))
                if is_disk_full(failure):
                    self._disk_full[topic.id, index] = later
                else:
                    self._disk_full.pop((topic.id, index), None)
                return
            self.offline.discard((topic.id, index))
            self._disk_full.pop((topic.id, index), None)
            replica = Replica(self.node_id, topic.name, topic.id, index, opened)
            replica.state.lag_ms = self.config.lag_time_max_ms
            self._by_name.setdefault(topic.name, {})[index] = replica
            self._by_id.setdefault(topic.id, {})[index] = replica
        else:
            self.write_before_isr_grows(replica)
        replica.settings = settings
        # Before the role: below min.insync.replicas the high watermark of a new leader must not move.
        replica.state.min_insync_replicas = settings.min_insync_replicas
        self._take_over(replica, topic.partitions[index])
        replica.configure(settings)
        for listener in self.on_role:
            listener(replica)

    def _take_over(self, replica: Replica, partition: PartitionImage) -> None:
        state = replica.state
        led, epoch, isr = state.is_leader, state.leader_epoch, state.isr
        if replica.has_staged and partition.leader_epoch > epoch:
            self.write_staged()  # what was staged belongs to the epoch that ends, and is acknowledged under it
        state.apply(partition, replica.log.log_end_offset, self._clock.monotonic_ms())
        # After `apply`: the responses name the leader and epoch of this state.
        if state.leader_epoch != epoch or not state.is_leader:
            for followed in list(replica.followed):
                followed.touch()  # a fetch that waits here is answered with the new epoch or leader
        replica.refresh()
        if state.is_leader:
            change = log_isr_change(replica, isr)
            self.isr_expands += change > 0
            self.isr_shrinks += change < 0
            if not led:
                if state.leader_epoch > 0 and len(partition.replicas) > 1:
                    # Batches that the previous leader refused are sent here now, in any order: a later one must not
                    # be stored before an earlier one of its producer.
                    replica.log.producers.gaps_refused_until_ms = self._clock.now_ms() + GAPS_REFUSED_MS
                # A follower's high watermark lags behind the leader's. All that was committed is in its log, and
                # becomes visible again once the ISR has fetched up to it from here.
                state.high_watermark = replica.log.high_watermark
                # With flush.messages a record counts once it is on this device, also one copied as a follower.
                replica.acknowledged_end_offset = replica.log.durable_offset
                if replica.acknowledged_end_offset < replica.log.log_end_offset:
                    self.logs.group_sync.wait(replica.log, partial(self._on_synced, replica))
            self.update_leader_high_watermark(replica)
            if state.under_min_isr:
                # The high watermark stands still now: Kafka's error for records that are stored but not replicated.
                replica.acknowledgements.fail_uncommitted(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        elif led:
            # The new leader may lack what was not committed: its producer has to send it again.
            replica.acknowledgements.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if state.leader_epoch != epoch:
            self._wake(replica)

    def _wake(self, replica: Replica) -> None:
        for followed in list(replica.followed):
            if followed.session.try_complete_fetch is not None:
                followed.session.try_complete_fetch()
        _try_complete_fetches(replica)

    def reconfigure(self, topic: str, settings: TopicSettings) -> None:
        """Apply a topic's new settings to its replicas."""
        for replica in self._by_name.get(topic, {}).values():
            # Before: a raised min.insync.replicas stops the high watermark, also for what is acknowledged already.
            self.write_before_isr_grows(replica)
            replica.configure(settings)
            if replica.leads:
                self.update_leader_high_watermark(replica)

    def _drop_topic(self, name: str, topic_id: bytes) -> None:
        for index in list(self._by_id.get(topic_id, {})):
            self._drop(name, topic_id, index)

    def _drop(self, name: str, topic_id: bytes, index: int) -> None:
        self.offline.discard((topic_id, index))
        self._disk_full.pop((topic_id, index), None)
        replica = self._by_id.get(topic_id, {}).pop(index, None)
        if replica is None:
            return
        if not self._by_id[topic_id]:
            del self._by_id[topic_id]
        named = self._by_name.get(name, {})
        # The name may belong to a newer topic already.
        if named.get(index) is replica:
            del named[index]
            if not named:
                del self._by_name[name]
        # Or the end of the turn would write to files that are closed and renamed below.
        if replica.has_staged:
            self.write_staged()
        replica.retire()
        for listener in self.on_role:
            listener(replica)
        for followed in list(replica.followed):
            followed.touch()  # their fetches are answered with UNKNOWN_TOPIC_ID or NOT_LEADER_OR_FOLLOWER
        self._wake(replica)
        for followed in list(replica.followed):
            followed.attach(None)
        self.logs.delete(replica.topic, replica.index)


def _try_complete_fetches(replica: Replica) -> None:
    """Let the consumers that wait for more of a partition read again."""
    if replica.delayed_fetches:
        for delayed_fetch in list(replica.delayed_fetches):
            delayed_fetch.try_complete()

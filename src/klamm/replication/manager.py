"""All replicas of this node: found by name or id, staged into during a turn, committed when it ends."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from klamm.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, StorageFailure
from klamm.model.ids import Uuid
from klamm.records.batch import BatchView
from klamm.replication.followers import FollowerSession, FollowerSessions
from klamm.replication.isr import IsrChanges
from klamm.replication.replica import Replica
from klamm.replication.settings import ReplicationConfig, TopicSettings
from klamm.replication.throttle import Throttle
from klamm.replication.waiters import FetchWaiter, PendingAppend
from klamm.storage import LogManager
from klamm.storage.log_appender import found_no_room
from klamm.storage.producer_state import SETTLING_MS, Origin
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.records.kernels.produce import PlainHeader

log = get_logger("replication")

APPLY_SLICE = 16
"""Partitions opened before other work of the loop gets its chance."""
ROOM_MS = 500
"""Time between two looks whether a full disk has room again for replicas that could not be made."""


class ReplicaManager:
    """Owns the replicas; one event loop calls it."""

    def __init__(self, node_id: int, logs: LogManager, clock: Clock, config: ReplicationConfig | None = None) -> None:
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
        self._gathering: list[Callable[[], None]] = []
        self._now_ms = 0
        self.offline: set[tuple[bytes, int]] = set()
        """(topic id, partition) of replicas this node should have, in log dirs that have failed or are full."""
        self._no_room: dict[tuple[bytes, int], Callable[[str], TopicSettings]] = {}
        """Those of them that a full disk did not let us make, and who knows their settings."""
        self._look_at_ms = 0
        self.acking: dict[Replica, None] = {}
        """Replicas with quick replies that wait for the high watermark."""
        self.schedule_commit: Callable[[], None] = lambda: None
        """Asks for `commit` to be called when the turn ends; set by whoever owns the turn."""
        self.on_role: list[Callable[[Replica], None]] = []
        """Told when a replica has a new leader, epoch or set of replicas, or is let go (`retired`)."""

    def find(self, topic: str, index: int) -> Replica | None:
        """The replica of a partition by its topic's name."""
        partitions = self._by_name.get(topic)
        return partitions.get(index) if partitions is not None else None

    def find_by_id(self, topic_id: bytes, index: int) -> Replica | None:
        """The replica of a partition by its topic's id."""
        partitions = self._by_id.get(topic_id)
        return partitions.get(index) if partitions is not None else None

    def absence(self, topic_id: bytes, index: int) -> ErrorCode:
        """What to say of a partition that should be here and is not led here: its disk has failed, or others know."""
        replica = self.find_by_id(topic_id, index)
        failed = replica.log.offline if replica is not None else (topic_id, index) in self.offline
        return ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self._by_id.values():
            yield from partitions.values()

    def now_ms(self) -> int:
        """The forward clock."""
        return self._clock.monotonic_ms()

    # Appending

    def stage(self, replica: Replica, batches: memoryview, now_ms: int = 0, header: "PlainHeader | None" = None) -> int:
        """Stage a producer's batches on a replica that leads; what `Log.stage` raises is the refusal.

        `header` is what `plain_header` told of a batch that somebody has looked at already.
        """
        if not now_ms:
            # One look at the clock a turn is enough: nothing of a turn is older than its beginning.
            if not self._dirty:
                self._now_ms = self._clock.now_ms()
            now_ms = self._now_ms
        if header is None:
            base_offset = replica.log.stage(batches, replica.leader_epoch, now_ms)
        else:
            base_offset = replica.log.stage_plain(batches, replica.leader_epoch, now_ms, header)
        if not replica.dirty:
            replica.dirty = True
            self._dirty.append(replica)
            self.schedule_commit()
        return base_offset

    def stage_validated(self, replica: Replica, batch: BatchView, now_ms: int) -> int:
        """As `stage`, for a batch whose records were looked at already."""
        base_offset = replica.log.stage_validated(batch, replica.leader_epoch, now_ms)
        self._mark_dirty(replica)
        return base_offset

    def stage_own(self, replica: Replica, batch: memoryview, transaction_version: int = 0) -> int:
        """Stage a batch that a coordinator of this node made: markers are allowed, sequences are not looked at."""
        base_offset = replica.log.stage_from(
            batch, replica.leader_epoch, self._clock.now_ms(), Origin.COORDINATOR, transaction_version
        )
        self._mark_dirty(replica)
        return base_offset

    def _mark_dirty(self, replica: Replica) -> None:
        if not replica.dirty:
            replica.dirty = True
            self._dirty.append(replica)
            self.schedule_commit()

    def before_commit(self, stage: Callable[[], None]) -> None:
        """Have `stage` called when the turn ends, before anything is written: it stages what has gathered meanwhile."""
        self._gathering.append(stage)
        self.schedule_commit()

    def commit(self) -> None:
        """Write what the turn staged, then tell those who wait. A failed write fails exactly what it carried."""
        if self._gathering:
            gathering, self._gathering = self._gathering, []
            for stage in gathering:
                stage()
        if not self._dirty:
            return
        dirty, self._dirty = self._dirty, []
        woken: dict[FetchWaiter, None] = {}
        sessions: dict[FollowerSession, None] = {}
        for replica in dirty:
            replica.dirty = False
            before_end = replica.log.log_end_offset
            try:
                replica.log.commit()
            except StorageFailure as failure:
                self._fail(replica, failure)
                continue
            if replica.quick_replies:
                replica.quick_replies.clear()
            if replica.followed:
                if replica.state.high_watermark == before_end:
                    replica.state.settled_ms = self._clock.monotonic_ms()
                for followed in replica.followed:
                    session = followed.session
                    session.changed[followed] = None
                    if session.parked is not None:
                        sessions[session] = None
            if replica.awaits_sync and self._await_sync(replica):
                continue
            replica.counted_end = replica.log.log_end_offset
            if replica.commits_alone and not (replica.appends or replica.ack_waiters or replica.quick_acks):
                # Most appends: nobody else is in sync, nobody waits for an acknowledgement.
                replica.state.high_watermark = replica.log.advance_to_end()
                if replica.fetch_waiters:
                    woken.update(replica.fetch_waiters)
                continue
            before = replica.state.high_watermark
            reached = replica.state.on_local_append(replica.counted_end)
            if replica.appends:
                self._settle_appends(replica, reached)
            if reached > before:
                replica.advance(reached)
                if replica.fetch_waiters:
                    woken.update(replica.fetch_waiters)
        for session in sessions:
            if session.parked is not None:
                session.parked(False)
        for waiter in woken:
            waiter.look_again()

    def _await_sync(self, replica: Replica) -> bool:
        """Let nothing count before it is on the device, once flush.messages have gathered; False when they have not."""
        if replica.log.log_end_offset - replica.log.recovery_point < replica.log.config.flush_messages:
            return False
        replica.unsynced += replica.appends
        replica.appends = []
        self.logs.group_sync.wait(replica.log, lambda failure: self._on_synced(replica, failure))
        return True

    def _on_synced(self, replica: Replica, failure: StorageFailure | None) -> None:
        if failure is not None:
            waiting, replica.unsynced = replica.unsynced, []
            for pending in waiting:
                pending.settle(ErrorCode.KAFKA_STORAGE_ERROR, failure.message)
            return
        durable = replica.log.recovery_point
        replica.counted_end = max(replica.counted_end, durable)
        before = replica.state.high_watermark
        reached = replica.state.on_local_append(durable)
        waiting, replica.unsynced = replica.unsynced, []
        for pending in waiting:
            if pending.required_offset > durable:
                replica.unsynced.append(pending)
            elif not pending.waiter.acks_all or pending.required_offset <= reached:
                pending.settle()
            else:
                replica.ack_waiters[pending] = None
        if reached > before:
            replica.advance(reached)
            for waiter in list(replica.fetch_waiters):
                waiter.look_again()

    def _settle_appends(self, replica: Replica, high_watermark: int) -> None:
        appends, replica.appends = replica.appends, []
        for pending in appends:
            if not pending.waiter.acks_all or pending.required_offset <= high_watermark:
                pending.settle()
            else:
                replica.ack_waiters[pending] = None

    def _fail(self, replica: Replica, failure: StorageFailure) -> None:
        log.error("append failed", partition=f"{replica.topic}-{replica.index}", reason=failure.message)
        appends, replica.appends = replica.appends, []
        for pending in appends:
            pending.settle(ErrorCode.KAFKA_STORAGE_ERROR, failure.message)
        end = replica.log.log_end_offset
        while replica.quick_acks and replica.quick_acks[-1].required_offset > end:
            replica.quick_acks.pop().fail(ErrorCode.KAFKA_STORAGE_ERROR)
        replies, replica.quick_replies = replica.quick_replies, []
        for reply, error_at, channel in replies:
            if reply is None:
                channel.close("a write failed and acks=0 has no other way to say so")  # type: ignore[attr-defined]
            else:
                reply[error_at : error_at + 2] = int(ErrorCode.KAFKA_STORAGE_ERROR).to_bytes(2, "big")
                reply[error_at + 2 : error_at + 10] = b"\xff" * 8

    def track(self, pending: PendingAppend) -> None:
        """Tell `pending` when what it staged is written or has failed."""
        if pending.replica.dirty:
            pending.replica.appends.append(pending)
        elif pending.replica.unsynced and pending.required_offset > pending.replica.log.recovery_point:
            pending.replica.unsynced.append(pending)  # a duplicate of what is not on the device yet
        elif not pending.waiter.acks_all or pending.required_offset <= pending.replica.state.high_watermark:
            pending.settle()
        elif not pending.replica.leads:
            pending.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            pending.replica.ack_waiters[pending] = None

    # The high watermark

    def advance(self, replica: Replica) -> None:
        """Something the high watermark depends on has changed: a follower, the in-sync replicas, a setting."""
        before = replica.state.high_watermark
        reached = replica.state.on_local_append(replica.counted_end)
        if reached > before:
            self.moved(replica, reached)

    def moved(self, replica: Replica, high_watermark: int) -> None:
        """The high watermark of a partition led here has moved."""
        replica.advance(high_watermark)
        if replica.fetch_waiters:
            for waiter in list(replica.fetch_waiters):
                waiter.look_again()

    def advance_follower(self, replica: Replica, high_watermark: int) -> None:
        """The leader says how far the log is committed; a follower may have less than that, and never goes back."""
        log_ = replica.log
        reached = min(high_watermark, log_.log_end_offset)
        if reached > log_.high_watermark:
            replica.state.high_watermark = log_.advance_high_watermark(reached)
            if replica.fetch_waiters:
                for waiter in list(replica.fetch_waiters):
                    waiter.look_again()

    def tick(self) -> None:
        """Now and then: requests whose time is up, and replicas that waited for room."""
        now_ms = self._clock.monotonic_ms()
        if self._no_room and now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + ROOM_MS
            self._make_what_found_no_room()
        for replica in list(self.acking):
            if replica.quick_acks:
                replica.expire_quick_acks(now_ms)
            else:
                del self.acking[replica]

    # Following the metadata log

    async def apply(
        self,
        image: MetadataImage,
        changed: Mapping[str, TopicImage],
        deleted: Mapping[bytes, str],
        settings: Callable[[str], TopicSettings],
        partitions: Mapping[str, Mapping[int, PartitionImage]] | None = None,
    ) -> None:
        """Make the replicas what the image says of these topics; long lists yield to other work in between.

        `partitions` names those of a topic that changed, when that is not all of them.
        """
        self.image = image
        for topic_id, name in deleted.items():
            self._drop_topic(name, topic_id)
            self.offline = {each for each in self.offline if each[0] != topic_id}
            self._no_room = {each: who for each, who in self._no_room.items() if each[0] != topic_id}
        count = 0
        for topic in changed.values():
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
        self.isr.look_again()

    def _follow(
        self, topic: TopicImage, index: int, settings: TopicSettings, later: Callable[[str], TopicSettings]
    ) -> None:
        if self.node_id in topic.partitions[index].replicas:
            self._ensure(topic, index, settings, later)
        else:
            self._drop(topic.name, topic.id, index)

    def _make_what_found_no_room(self) -> None:
        """As many as there is room for now; the first that finds none ends it."""
        for (topic_id, index), settings in list(self._no_room.items())[:APPLY_SLICE]:
            topic = self.image.topics.by_id.get(Uuid(topic_id))
            partition = None if topic is None else topic.partitions.get(index)
            if topic is None or partition is None or self.node_id not in partition.replicas:
                del self._no_room[topic_id, index]
                continue
            self._ensure(topic, index, settings(topic.name), settings)
            if (topic_id, index) in self.offline:
                return
            log.info("there is room again: a replica is back", partition=f"{topic.name}-{index}")

    def _ensure(
        self, topic: TopicImage, index: int, settings: TopicSettings, later: Callable[[str], TopicSettings]
    ) -> None:
        replica = self.find_by_id(topic.id, index)
        if replica is None:
            stale = self.find(topic.name, index)
            if stale is not None:
                self._drop(stale.topic, stale.topic_id, index)
            directory = topic.partitions[index].directory(self.node_id)
            try:
                opened = self.logs.create(topic.name, index, topic.id, settings.log, directory_id=directory)
            except StorageFailure as failure:
                # Its log dir has failed or is full: there is no replica until that is over, and the others do not wait.
                if (topic.id, index) not in self.offline:
                    log.warning("a replica is offline", partition=f"{topic.name}-{index}", reason=failure.message)
                self.offline.add((topic.id, index))
                if found_no_room(failure):
                    self._no_room[topic.id, index] = later
                else:
                    self._no_room.pop((topic.id, index), None)
                return
            self.offline.discard((topic.id, index))
            self._no_room.pop((topic.id, index), None)
            replica = Replica(self.node_id, topic.name, topic.id, index, opened)
            replica.state.lag_ms = self.config.lag_time_max_ms
            self._by_name.setdefault(topic.name, {})[index] = replica
            self._by_id.setdefault(topic.id, {})[index] = replica
        replica.settings = settings
        replica.state.min_insync_replicas = settings.min_insync_replicas
        self._take_over(replica, topic.partitions[index])
        replica.configure(settings)
        for told in self.on_role:
            told(replica)

    def _take_over(self, replica: Replica, partition: PartitionImage) -> None:
        state = replica.state
        led, epoch = state.is_leader, state.leader_epoch
        if replica.dirty and partition.leader_epoch > epoch:
            self.commit()  # what was staged belongs to the epoch that ends
        state.apply(partition, replica.log.log_end_offset, self._clock.monotonic_ms())
        if state.leader_epoch != epoch or not state.is_leader:
            for followed in list(replica.followed):
                followed.touch()  # a fetch that waits here is told at once that the world has changed
        replica.refresh()
        if state.is_leader:
            if not led:
                if state.leader_epoch > 0 and len(partition.replicas) > 1:
                    replica.log.producers.settled_at_ms = self._clock.now_ms() + SETTLING_MS
                state.high_watermark = replica.log.high_watermark
                replica.counted_end = replica.log.durable_offset
                if replica.counted_end < replica.log.log_end_offset:
                    self.logs.group_sync.wait(replica.log, lambda failure: self._on_synced(replica, failure))
            self.advance(replica)
            if state.under_min_isr:
                replica.fail_acks(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            replica.release(state.high_watermark)
        elif led:
            replica.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if state.leader_epoch != epoch:
            self._wake(replica)

    def _wake(self, replica: Replica) -> None:
        for followed in list(replica.followed):
            if followed.session.parked is not None:
                followed.session.parked(False)
        for waiter in list(replica.fetch_waiters):
            waiter.look_again()

    def reconfigure(self, topic: str, settings: TopicSettings) -> None:
        """A topic's settings have changed."""
        for replica in self._by_name.get(topic, {}).values():
            replica.configure(settings)
            if replica.leads:
                self.advance(replica)

    def _drop_topic(self, name: str, topic_id: bytes) -> None:
        for index in list(self._by_id.get(topic_id, {})):
            self._drop(name, topic_id, index)

    def _drop(self, name: str, topic_id: bytes, index: int) -> None:
        self.offline.discard((topic_id, index))
        self._no_room.pop((topic_id, index), None)
        replica = self._by_id.get(topic_id, {}).pop(index, None)
        if replica is None:
            return
        if not self._by_id[topic_id]:
            del self._by_id[topic_id]
        named = self._by_name.get(name, {})
        if named.get(index) is replica:
            del named[index]
            if not named:
                del self._by_name[name]
        if replica.dirty:
            self.commit()
        replica.retire()
        for told in self.on_role:
            told(replica)
        for followed in list(replica.followed):
            followed.touch()
        self._wake(replica)
        for followed in list(replica.followed):
            followed.follow(None)
        self.logs.delete(replica.topic, replica.index)

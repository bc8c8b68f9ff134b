"""All replicas of this node: found by name or id, staged into during a turn, committed when it ends."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from klamm.metadata.image import MetadataImage, TopicImage
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, StorageFailure
from klamm.replication.replica import Replica
from klamm.replication.settings import TopicSettings
from klamm.replication.waiters import FetchWaiter, PendingAppend
from klamm.storage import LogManager
from klamm.storage.producers import Origin
from klamm.telemetry.log import get_logger

log = get_logger("replication")

APPLY_SLICE = 16
"""Partitions opened before other work of the loop gets its chance."""


class ReplicaManager:
    """Owns the replicas; one event loop calls it."""

    def __init__(self, node_id: int, logs: LogManager, clock: Clock) -> None:
        self.node_id = node_id
        self.logs = logs
        self._clock = clock
        self._by_name: dict[str, dict[int, Replica]] = {}
        self._by_id: dict[bytes, dict[int, Replica]] = {}
        self._dirty: list[Replica] = []
        self._gathering: list[Callable[[], None]] = []
        self._now_ms = 0
        self.schedule_commit: Callable[[], None] = lambda: None
        """Asks for `commit` to be called when the turn ends; set by whoever owns the turn."""

    def find(self, topic: str, index: int) -> Replica | None:
        """The replica of a partition by its topic's name."""
        partitions = self._by_name.get(topic)
        return partitions.get(index) if partitions is not None else None

    def find_by_id(self, topic_id: bytes, index: int) -> Replica | None:
        """The replica of a partition by its topic's id."""
        partitions = self._by_id.get(topic_id)
        return partitions.get(index) if partitions is not None else None

    def __iter__(self) -> Iterator[Replica]:
        for partitions in self._by_id.values():
            yield from partitions.values()

    # Appending

    def stage(self, replica: Replica, batches: memoryview, now_ms: int = 0) -> int:
        """Stage a producer's batches on a replica that leads; what `Log.stage` raises is the refusal."""
        if not now_ms:
            # One look at the clock a turn is enough: nothing of a turn is older than its beginning.
            if not self._dirty:
                self._now_ms = self._clock.now_ms()
            now_ms = self._now_ms
        base_offset = replica.log.stage(batches, replica.leader_epoch, now_ms)
        if not replica.dirty:
            replica.dirty = True
            self._dirty.append(replica)
            self.schedule_commit()
        return base_offset

    def stage_own(self, replica: Replica, batch: memoryview, transaction_version: int = 0) -> int:
        """Stage a batch that a coordinator of this node made: markers are allowed, sequences are not looked at."""
        base_offset = replica.log.stage_from(
            batch, replica.leader_epoch, self._clock.now_ms(), Origin.COORDINATOR, transaction_version
        )
        if not replica.dirty:
            replica.dirty = True
            self._dirty.append(replica)
            self.schedule_commit()
        return base_offset

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
        for replica in dirty:
            replica.dirty = False
            try:
                replica.log.commit()
            except StorageFailure as failure:
                self._fail(replica, failure)
                continue
            if replica.quick_replies:
                replica.quick_replies.clear()
            if replica.awaits_sync and self._await_sync(replica):
                continue
            if replica.commits_alone and not replica.appends and not replica.ack_waiters:
                # Most appends: nobody else is in sync, nobody waits for an acknowledgement.
                replica.state.high_watermark = replica.log.advance_to_end()
                if replica.fetch_waiters:
                    woken.update(replica.fetch_waiters)
                continue
            before = replica.state.high_watermark
            reached = replica.state.on_local_append(replica.log.log_end_offset)
            if replica.appends:
                self._settle_appends(replica, reached)
            if reached > before:
                replica.advance(reached)
                if replica.fetch_waiters:
                    woken.update(replica.fetch_waiters)
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
        else:
            pending.replica.ack_waiters[pending] = None

    # Following the metadata log

    async def apply(
        self,
        image: MetadataImage,
        changed: Mapping[str, TopicImage],
        deleted: Mapping[bytes, str],
        settings: Callable[[str], TopicSettings],
    ) -> None:
        """Make the replicas what the image says of these topics; long lists yield to other work in between."""
        for topic_id, name in deleted.items():
            self._drop_topic(name, topic_id)
        count = 0
        for topic in changed.values():
            if image.topics.by_id.get(topic.id) is None:
                continue
            config = settings(topic.name)
            for index, partition in topic.partitions.items():
                if self.node_id in partition.replicas:
                    self._ensure(topic, index, config)
                    count += 1
                    if count % APPLY_SLICE == 0:
                        await asyncio.sleep(0)
                else:
                    self._drop(topic.name, topic.id, index)

    def _ensure(self, topic: TopicImage, index: int, settings: TopicSettings) -> None:
        replica = self.find_by_id(topic.id, index)
        if replica is None:
            stale = self.find(topic.name, index)
            if stale is not None:
                self._drop(stale.topic, stale.topic_id, index)
            opened = self.logs.create(topic.name, index, topic.id, settings.log)
            replica = Replica(self.node_id, topic.name, topic.id, index, opened)
            self._by_name.setdefault(topic.name, {})[index] = replica
            self._by_id.setdefault(topic.id, {})[index] = replica
        self._take_over(replica, topic)
        replica.configure(settings)

    def _take_over(self, replica: Replica, topic: TopicImage) -> None:
        state = replica.state
        led = state.is_leader
        state.apply(topic.partitions[replica.index])
        if state.is_leader:
            replica.advance(state.on_local_append(replica.log.log_end_offset))
        elif led:
            replica.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def reconfigure(self, topic: str, settings: TopicSettings) -> None:
        """A topic's settings have changed."""
        for replica in self._by_name.get(topic, {}).values():
            replica.configure(settings)

    def _drop_topic(self, name: str, topic_id: bytes) -> None:
        for index in list(self._by_id.get(topic_id, {})):
            self._drop(name, topic_id, index)

    def _drop(self, name: str, topic_id: bytes, index: int) -> None:
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
        self.logs.delete(replica.topic, replica.index)

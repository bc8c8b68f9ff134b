"""Runs shards: one for every partition of an internal topic that this node leads.

    led here ──▶ loading ──replayed──▶ active ──led elsewhere──▶ gone
                    ▲                    │
                    └──a write failed────┘

Everything happens in turns of one event loop. A decision is replayed when it is made and appended before the turn ends,
with all others of the turn; the log reports when it is committed, and only then do its replies leave, in the order of
the decisions. When a write fails, the shard's state differs from the log: waiting requests are answered with an error
and the shard is loaded again. While no write succeeds, as on a full disk, the pauses before loading grow, and from the
second time on enough replicas must be in sync first: loading costs CPU that a lagging node needs to catch up.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from klamm.coordinator.core.java_hash import non_negative_hash
from klamm.coordinator.core.shard import Decision, Now, ReplyTo, Shard
from klamm.coordinator.runtime.active_shard import ActiveShard
from klamm.coordinator.runtime.loading import load_shard
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError
from klamm.telemetry.log import get_logger

log = get_logger("coordinator")

S = TypeVar("S", bound=Shard)

RETRY_LOAD_S = 5.0
"""The pause after a failed load; clients repeat FindCoordinator meanwhile."""
RELOAD_S = 0.05
"""The pause before a shard is loaded again after the second failed write of a run; it doubles from then on."""
RELOAD_MAX_S = 1.0
"""The longest such pause, unless loading itself takes longer: free disk space is noticed within it."""
IN_SYNC_S = 0.1
"""How often the size of the ISR is checked before a load."""
FAILURE_RUN_MS = 60_000
"""Failures further apart than this belong to separate runs."""


@dataclass(slots=True)
class _FailedWrites:
    """A run of failed writes, none of which has moved the log."""

    end_offset: int
    failures: int = 0
    last_ms: int = 0


class PartitionLog(Protocol):
    """The log behind a shard, as the node that leads it offers it."""

    @property
    def leader_epoch(self) -> int:
        """The epoch under which this node leads."""

    @property
    def end_offset(self) -> int:
        """The offset after everything appended."""

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch it takes."""

    @property
    def under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for it to take anything."""

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        """Queue a batch for writing and return its first offset; raises KlammError when nothing was queued."""

    def append_at_turn_end(self, append: Callable[[], None]) -> int:
        """Have `append` called before this turn's writes, to append one batch; returns the offset it will begin at.

        Raises KlammError when nothing can be appended now; `append` is not called then.
        """

    def when_committed(self, end_offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call `callback` once: with NONE when everything before `end_offset` is committed, else with what failed."""

    def read(self, offset: int) -> bytes | memoryview:
        """Whole batches from the one that holds `offset` on, a few megabytes at most; empty at the end."""


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this node."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[int, int], S],
        open_log: Callable[[int], PartitionLog | None],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        write_timeout_ms: int = 5000,
        codec: int = 0,
    ) -> None:
        """`make_shard` and `open_log` take a partition; a shard also takes the leader epoch. `codec` packs batches."""
        self.topic = topic
        self.partitions = 0
        """How many partitions the topic has; 0 while it does not exist."""
        self.image = EMPTY_IMAGE
        self._make_shard = make_shard
        self._open_log = open_log
        self._loop = loop
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._codec = codec
        self._active: dict[int, ActiveShard[S]] = {}
        self._loading: dict[int, tuple[int, asyncio.Task[None]]] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._failed_writes: dict[int, _FailedWrites] = {}

    # Lookup

    def partition_for(self, key: str) -> int:
        """The partition that keeps what belongs to `key`, as every Kafka broker computes it."""
        if not self.partitions:
            raise KlammError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return non_negative_hash(key) % self.partitions

    def serving(self, key: str) -> ActiveShard[S] | None:
        """The shard at work that keeps what belongs to `key`; None when it is not served here, or not yet."""
        return self._active.get(non_negative_hash(key) % self.partitions) if self.partitions else None

    @property
    def active(self) -> tuple[int, ...]:
        """The partitions that are served here."""
        return tuple(self._active)

    @property
    def loading(self) -> bool:
        """Whether a partition that is led here cannot be served yet."""
        return bool(self._loading)

    def shard(self, partition: int) -> S:
        """The shard of a partition, for questions that need no reply held back; raises when it is not served here."""
        return self._find(partition).shard

    def _find(self, partition: int) -> ActiveShard[S]:
        active = self._active.get(partition)
        if active is None:
            if partition in self._loading:
                raise KlammError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is being loaded")
            raise KlammError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{partition} is not served here")
        return active

    # Requests

    def submit(self, partition: int, decide: Callable[[S, Now, ReplyTo], Decision], reply_to: ReplyTo) -> None:
        """Let a shard decide; `reply_to` is called with a response or a KlammError, now or much later."""
        active = self._active.get(partition)
        if active is None:
            try:
                active = self._find(partition)
            except KlammError as error:
                reply_to(error)
                return

        def decide_now(shard: S, now: Now) -> Decision:
            return decide(shard, now, reply_to)

        active.run(decide_now, reply_to)

    async def submit_and_wait(self, partition: int, decide: Callable[[S, Now, ReplyTo], Decision]) -> Any:
        """`submit` for callers that can wait: returns the response, raises the KlammError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(partition, decide, _reply_into(future))
        return await future

    def end_transaction(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        reply_to: ReplyTo,
        transaction_version: int = 0,
    ) -> None:
        """Write the marker that ends a producer's transaction in a partition; `reply_to` gets None or a KlammError."""
        try:
            active = self._find(partition)
        except KlammError as error:
            reply_to(error)
            return
        active.end_transaction(producer_id, producer_epoch, committed, coordinator_epoch, transaction_version, reply_to)

    # Leadership and metadata

    def load(self, partition: int, epoch: int) -> None:
        """Load the shard of a partition that this node leads from `epoch` on."""
        known = self._active.get(partition)
        # Metadata updates repeat leaders; a shard is loaded again only under a newer leader epoch.
        if known is not None and known.epoch >= epoch:
            return
        loading = self._loading.get(partition)
        if loading is not None and loading[0] >= epoch:
            return
        self.unload(partition)
        self._start_loading(partition, epoch)

    def unload(self, partition: int) -> None:
        """Drop the shard of a partition this node no longer leads; answer waiting requests with NOT_COORDINATOR."""
        loading = self._loading.pop(partition, None)
        if loading is not None:
            loading[1].cancel()
        self._failed_writes.pop(partition, None)
        retry = self._retries.pop(partition, None)
        if retry is not None:
            retry.cancel()
        active = self._active.pop(partition, None)
        if active is not None:
            active.close(KlammError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{partition} is no longer served here"))
            log.info("coordinator unloaded", partition=f"{self.topic}-{partition}", epoch=active.epoch)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Let every shard decide about a change of the cluster metadata."""
        self.image = image

        def decide(shard: S, now: Now) -> Decision:
            return shard.on_metadata(delta, image, now)

        # A copy: a failed append removes its shard from the dictionary.
        for active in list(self._active.values()):
            active.run(decide)

    def stop(self) -> None:
        """Serve nothing more."""
        for partition in {*self._loading, *self._active, *self._retries}:
            self.unload(partition)

    def _start_loading(self, partition: int, epoch: int, pause_s: float = 0.0) -> None:
        task = self._loop.create_task(self._load(partition, epoch, pause_s), name=f"load {self.topic}-{partition}")
        self._loading[partition] = (epoch, task)

    async def _load(self, partition: int, epoch: int, pause_s: float) -> None:
        name = f"{self.topic}-{partition}"
        if pause_s:
            await asyncio.sleep(pause_s)
        partition_log = self._open_log(partition)
        if partition_log is None:
            self._loading.pop(partition, None)
            # A leader that resigns fails the writes that wait, and those start a load before the unload: usual at a
            # controlled shutdown, and after a pause of the process.
            if self._is_led_since(partition, epoch):
                log.error("coordinator not loaded: partition log not found", partition=name)
            else:
                log.info("coordinator not loaded: leader changed", partition=name, epoch=epoch)
            return
        while pause_s and partition_log.under_min_isr:  # noqa: ASYNC110 - there is no event for a grown ISR
            await asyncio.sleep(IN_SYNC_S)
        shard = self._make_shard(partition, epoch)
        started_ms = self._clock.monotonic_ms()
        try:
            count = await load_shard(shard, partition_log, name)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one partition, the others are served
            self._loading.pop(partition, None)
            log.failure("coordinator not loaded", error, partition=name, retry_in_s=RETRY_LOAD_S)
            self._retries[partition] = self._loop.call_later(RETRY_LOAD_S, self.load, partition, epoch)
            return
        del self._loading[partition]
        took_ms = self._clock.monotonic_ms() - started_ms
        active = self._active[partition] = ActiveShard(
            name,
            shard,
            partition_log,
            epoch,
            self._loop,
            self._clock,
            self._write_timeout_ms,
            self._reload(partition, partition_log, took_ms),
            self._codec,
        )
        failed = self._failed_writes.get(partition)
        if count and (failed is None or failed.failures <= 1):
            log.info("coordinator loaded", partition=name, epoch=epoch, records=count, took_ms=took_ms)
        # Before the first decision: its replies must not precede the commit of what was loaded.
        active.begin()
        active.run(self._decide_loaded)

    def _is_led_since(self, partition: int, epoch: int) -> bool:
        """Return whether no newer leader than that of `epoch` is known; the image is newer than the replicas."""
        current = self.image.topics.partition(self.topic, partition)
        return current is not None and current.leader_epoch <= epoch

    def _decide_loaded(self, shard: S, now: Now) -> Decision:
        return shard.on_loaded(self.image, now)

    def _reload(self, partition: int, partition_log: PartitionLog, took_ms: int) -> Callable[[ErrorCode], None]:
        def reload(error: ErrorCode) -> None:
            active = self._active.pop(partition, None)
            # All writes of a turn fail together; the first failure has unloaded the shard.
            if active is None:
                return
            pause_s = self._pause_s(partition, partition_log.end_offset, took_ms, error)
            # NOT_COORDINATOR sends clients to the new leader; while this node leads, they should retry here.
            code = ErrorCode.NOT_COORDINATOR
            if error not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            active.close(KlammError(code, f"a write to {self.topic}-{partition} failed"))
            self._start_loading(partition, active.epoch, pause_s)

        return reload

    def _pause_s(self, partition: int, end_offset: int, took_ms: int, error: ErrorCode) -> float:
        """Return the pause before a shard is loaded again; only the first failure of a run is logged."""
        now_ms = self._clock.monotonic_ms()
        failed = self._failed_writes.get(partition)
        if failed is None or end_offset != failed.end_offset or now_ms - failed.last_ms > FAILURE_RUN_MS:
            failed = self._failed_writes[partition] = _FailedWrites(end_offset)
            log.warning("coordinator reloading: write failed", partition=f"{self.topic}-{partition}", reason=error)
        failed.failures += 1
        failed.last_ms = now_ms
        if failed.failures == 1:
            return 0.0
        pause_s = RELOAD_S * float(2 ** min(failed.failures - 2, 10))
        # Not shorter than the load took: at least half of the time is left for other work.
        return max(min(pause_s, RELOAD_MAX_S), took_ms / 1000)


def _reply_into(future: "asyncio.Future[Any]") -> ReplyTo:
    def complete(response: Any) -> None:
        if future.done():
            return
        if isinstance(response, KlammError):
            future.set_exception(response)
        else:
            future.set_result(response)

    return complete

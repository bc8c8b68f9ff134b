"""Runs shards: one for every partition of an internal topic that this node leads. The only impure file of the room.

    led here ──▶ loading ──replayed──▶ active ──led elsewhere──▶ gone
                    ▲                    │
                    └──a write failed────┘

Everything happens in turns of one event loop. A decision is replayed when it is made and appended before the turn ends,
with all others of the turn; the log tells when it is committed, and only then do its replies leave, in the order of the
decisions. When a write fails, what the shard believes is no longer what the log says: everybody who waits is told, and
the shard is loaded again; after longer and longer pauses while no write succeeds, as on a disk that is full, and from
the second time on not before enough replicas are in sync: loading is work, and would keep a busy node from catching up.
"""

import asyncio
from collections.abc import Callable, Iterable
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
"""How long a partition that could not be loaded is left alone; clients look for their coordinator again meanwhile."""
RELOAD_S = 0.05
"""The pause before a shard whose writes go on failing is loaded again; it doubles, the first time there is none."""
RELOAD_MAX_S = 1.0
"""The longest such pause, unless loading itself takes longer: how long a disk may have room again unnoticed."""
IN_SYNC_S = 0.1
"""How often to look whether enough replicas are in sync again."""
TROUBLE_MS = 60_000
"""Failures further apart than this have nothing to do with each other."""


@dataclass(slots=True)
class _Trouble:
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
        """Queue a batch for writing and return its first offset; KlammError says that nothing was queued."""

    def gather(self, append: Callable[[], None]) -> int:
        """Have `append` called before this turn's writes, to append one batch; returns the offset it will begin at.

        KlammError says that nothing could be appended now, and `append` is not called.
        """

    def when_committed(self, end_offset: int, settled: Callable[[ErrorCode], None]) -> None:
        """Call `settled` once: with NONE when everything before `end_offset` is committed, else with what failed."""

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
        """`make_shard` and `open_log` take a partition; a shard also learns the leader epoch. `codec` packs batches."""
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
        self._troubles: dict[int, _Trouble] = {}

    # Where things are

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
        found = self._active.get(partition)
        if found is None:
            if partition in self._loading:
                raise KlammError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is being loaded")
            raise KlammError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{partition} is not served here")
        return found

    # Requests

    def submit(self, partition: int, decide: Callable[[S, Now, ReplyTo], Decision], reply_to: ReplyTo) -> None:
        """Let a shard decide; `reply_to` hears a response or a KlammError, now or much later."""
        found = self._active.get(partition)
        if found is None:
            try:
                found = self._find(partition)
            except KlammError as error:
                reply_to(error)
                return
        found.run(lambda shard, now: decide(shard, now, reply_to), reply_to)

    async def ask(self, partition: int, decide: Callable[[S, Now, ReplyTo], Decision]) -> Any:
        """`submit` for callers that can wait: returns the response, raises the KlammError."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.submit(partition, decide, _into(answer))
        return await answer

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
        """Write the marker that ends a producer's transaction in a partition; `reply_to` hears None or a KlammError."""
        try:
            found = self._find(partition)
        except KlammError as error:
            reply_to(error)
            return
        found.end_transaction(producer_id, producer_epoch, committed, coordinator_epoch, transaction_version, reply_to)

    # Leadership and metadata

    def load(self, partition: int, epoch: int) -> None:
        """This node leads a partition from `epoch` on: bring its shard to life."""
        known = self._active.get(partition)
        if known is not None and known.epoch >= epoch:
            return
        loading = self._loading.get(partition)
        if loading is not None and loading[0] >= epoch:
            return
        self.unload(partition)
        self._start_loading(partition, epoch)

    def unload(self, partition: int) -> None:
        """This node leads a partition no longer: whoever waits is sent away."""
        loading = self._loading.pop(partition, None)
        if loading is not None:
            loading[1].cancel()
        self._troubles.pop(partition, None)
        retry = self._retries.pop(partition, None)
        if retry is not None:
            retry.cancel()
        found = self._active.pop(partition, None)
        if found is not None:
            found.close(KlammError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{partition} is no longer served here"))
            log.info("shard unloaded", partition=f"{self.topic}-{partition}", epoch=found.epoch)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The cluster has changed; every shard may have something to decide about it."""
        self.image = image
        for found in list(self._active.values()):
            found.run(lambda shard, now: shard.on_metadata(delta, image, now))

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
            log.error("shard not loaded: its log is not here", partition=name)
            return
        while pause_s and partition_log.under_min_isr:  # noqa: ASYNC110 - nobody tells when the set has grown
            await asyncio.sleep(IN_SYNC_S)
        shard = self._make_shard(partition, epoch)
        started_ms = self._clock.monotonic_ms()
        try:
            count = await load_shard(shard, partition_log, name)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one partition, the others are served
            self._loading.pop(partition, None)
            log.failure("shard not loaded", error, partition=name, retry_in_s=RETRY_LOAD_S)
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
        trouble = self._troubles.get(partition)
        if count and (trouble is None or trouble.failures <= 1):
            log.info("shard loaded", partition=name, epoch=epoch, records=count, took_ms=took_ms)
        active.begin()
        active.run(lambda loaded, now: loaded.on_loaded(self.image, now))

    def _reload(self, partition: int, partition_log: PartitionLog, took_ms: int) -> Callable[[ErrorCode], None]:
        def reload(error: ErrorCode) -> None:
            found = self._active.pop(partition, None)
            if found is None:
                return
            pause_s = self._pause_s(partition, partition_log.end_offset, took_ms, error)
            code = ErrorCode.NOT_COORDINATOR
            if error not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            found.close(KlammError(code, f"a write to {self.topic}-{partition} failed"))
            self._start_loading(partition, found.epoch, pause_s)

        return reload

    def _pause_s(self, partition: int, end_offset: int, took_ms: int, error: ErrorCode) -> float:
        """How long to leave a shard alone whose write failed; the first failure of a run is the one that is told."""
        now_ms = self._clock.monotonic_ms()
        trouble = self._troubles.get(partition)
        if trouble is None or end_offset != trouble.end_offset or now_ms - trouble.last_ms > TROUBLE_MS:
            trouble = self._troubles[partition] = _Trouble(end_offset)
            log.warning("shard is loaded again: a write failed", partition=f"{self.topic}-{partition}", reason=error)
        trouble.failures += 1
        trouble.last_ms = now_ms
        if trouble.failures == 1:
            return 0.0
        pause_s = RELOAD_S * float(2 ** min(trouble.failures - 2, 10))
        return max(min(pause_s, RELOAD_MAX_S), took_ms / 1000)


def _into(answer: "asyncio.Future[Any]") -> ReplyTo:
    def settle(response: Any) -> None:
        if answer.done():
            return
        if isinstance(response, KlammError):
            answer.set_exception(response)
        else:
            answer.set_result(response)

    return settle


def keys_by_partition(runtime: "CoordinatorRuntime[Any]", keys: Iterable[str]) -> dict[int, list[str]]:
    """Sort keys by the partition that keeps them."""
    found: dict[int, list[str]] = {}
    for key in keys:
        found.setdefault(runtime.partition_for(key), []).append(key)
    return found

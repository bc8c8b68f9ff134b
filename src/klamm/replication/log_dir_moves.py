"""Moves replicas between the log dirs of this broker while they are in use.

A copy is made beside the replica (`storage/future_logs`): pieces of the log are read and appended to it in threads, as
fast as `replica.alter.log.dirs.io.max.bytes.per.second` allows. Once it has everything and is durable, the controller
assigns the replica to the other log dir (KIP-858), what was written meanwhile follows, and on the loop, between two
appends, the copy takes over.

    copying ──has all──▶ durable ──▶ assigned ──has all again──▶ taken over

A move survives a restart at any point: the copy is recovered like any log, truncated to what the replica has, and the
move continues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.model.ids import Uuid
from klamm.records.batch import HEADER_SIZE, BatchView
from klamm.replication.core.throttle import Throttle
from klamm.replication.manager import ReplicaManager
from klamm.replication.replica import Replica
from klamm.storage import Log
from klamm.storage.disk import FileSlice
from klamm.storage.log_dir import LogDir
from klamm.telemetry.log import get_logger

log = get_logger("replication")

PIECE_BYTES = 256 * 1024
"""Copied at a time; the largest piece that is copied on the loop when the copy takes over."""
ROUNDS_MAX = 32
"""After so many attempts to catch up with a busy producer, a larger last piece is copied on the loop."""
RETRY_S = 1.0
THROTTLED_S = 0.1

AssignDirectory = Callable[[Replica, Uuid], Awaitable[None]]
"""Assigns a replica to a log dir in the metadata (AssignReplicasToDirs); KlammError when the controller refuses."""


class _MoveCancelled(Exception):
    """Raised when a move is over: cancelled, or its replica or log dir is gone."""


@dataclass(slots=True, eq=False)
class LogDirMove:
    """A replica that is being copied to another log dir of this broker."""

    replica: Replica
    source: Log
    future: Log
    log_dir: LogDir
    cuts: int
    """How often the replica had been truncated when the copy last agreed with it."""
    assigned: bool = False
    cancelled: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def lag(self) -> int:
        """Offsets the copy lacks."""
        return max(self.replica.log.log_end_offset - self.future.log_end_offset, 0)


class LogDirMoves:
    """All moves of this broker, at most `count` of them copying at a time. Lives on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replicas: ReplicaManager,
        clock: Clock,
        assign: AssignDirectory,
        threads: Executor,
        count: int,
    ) -> None:
        self._loop = loop
        self._replicas = replicas
        self._logs = replicas.logs
        self._clock = clock
        self._assign = assign
        self._threads = threads
        self._slots = asyncio.Semaphore(count)
        self._moves: dict[Replica, LogDirMove] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.throttle = Throttle()
        replicas.on_role.append(self._on_role)

    def of(self, replica: Replica) -> LogDirMove | None:
        """The move a replica is on."""
        return self._moves.get(replica)

    # --- beginning and ending ----------------------------------------------------------------------------------------

    def start(self, topic: str, index: int, path: str) -> None:
        """Begin to move a replica to the log dir with a path; KlammError says why not."""
        log_dir = self._logs.log_dir_at(path)
        replica = self._replicas.find(topic, index)
        if replica is None:
            # As Kafka: the error says that nothing moves, and a replica created later goes to this log dir.
            self._logs.prefer(topic, index, path)
            raise KlammError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic}-{index} has no replica here")
        current = self._logs.log_dir_of(replica.log)
        if current.failure is not None:
            raise StorageFailure(f"Partition {topic}-{index} is offline")
        move = self._moves.get(replica)
        if move is not None:
            if move.log_dir is log_dir:
                return
            self._cancel(move)
        if current is log_dir:
            return
        if any(other.failure is not None for other in self._logs.dirs):
            raise StorageFailure("no replica is moved while a log dir is offline: its copy may lie there already")
        # From the batch boundary, not from the log start: a copy consists of whole batches.
        future = self._logs.create_future(replica.log, log_dir, _first_offset(replica.log))
        log.info("replica move between log dirs started", partition=replica.log.name, folder=path)
        self._begin(LogDirMove(replica, replica.log, future, log_dir, replica.log.truncations))

    def resume(self) -> None:
        """Go on with the moves a restart has interrupted; the replicas are in place."""
        for future in self._logs.futures:
            replica = self._replicas.find(future.topic, future.partition)
            log_dir = self._logs.log_dir_of(future)
            if replica is None or replica.log.failed or replica in self._moves:
                continue
            if self._logs.log_dir_of(replica.log) is log_dir or replica.topic_id != future.topic_id:
                self._logs.drop_future(future)
                continue
            log.info("replica move between log dirs resumed", partition=replica.log.name, folder=log_dir.path)
            # Compaction could remove a tombstone before it is copied: the copy would keep the value it deletes.
            self._logs.cleaner.pause(replica.log)
            # -1 differs from every count: the copy is compared with the replica before anything is appended.
            self._begin(LogDirMove(replica, replica.log, future, log_dir, -1))

    async def stop(self) -> None:
        """Stop all moves; the next start resumes them."""
        for move in list(self._moves.values()):
            move.cancelled = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
        self._moves.clear()

    def _begin(self, move: LogDirMove) -> None:
        self._moves[move.replica] = move
        move.task = self._loop.create_task(self._run(move), name=f"move {move.source.name}")
        self._tasks.add(move.task)
        move.task.add_done_callback(self._tasks.discard)

    def _cancel(self, move: LogDirMove) -> None:
        """Cancel a move; the files of its copy are removed when no thread writes to them any more."""
        move.cancelled = True
        self._logs.futures.release(move.future)
        self._moves.pop(move.replica, None)

    def _on_role(self, replica: Replica) -> None:
        move = self._moves.get(replica)
        if move is not None and replica.retired:
            self._cancel(move)

    # --- a move ------------------------------------------------------------------------------------------------------

    async def _run(self, move: LogDirMove) -> None:
        name, folder = move.source.name, move.log_dir.path
        try:
            async with self._slots:
                while not await self._step(move):
                    pass
            log.info("replica move between log dirs finished", partition=name, folder=folder)
        except _MoveCancelled:
            log.info("replica move between log dirs cancelled", partition=name, folder=folder)
        except Exception as error:  # noqa: BLE001 - a move that fails must not go unnoticed
            log.failure("replica move between log dirs failed", error, partition=name, folder=folder)
        finally:
            if self._moves.get(move.replica) is move:
                del self._moves[move.replica]
        if move.cancelled:
            self._logs.drop_future(move.future)

    async def _step(self, move: LogDirMove) -> bool:
        """Take the next step of a move; True when the copy has taken over."""
        self._check(move)
        source, future = move.source, move.future
        try:
            # First: after a truncation the copy may hold records that the replica has replaced.
            if move.cuts != source.truncations:
                await self._agree(move)
            # Retention has deleted what the copy needs next: it begins again where the replica does now.
            elif future.log_end_offset < (start := _first_offset(source)):
                await self._in_thread(partial(future.truncate_fully_and_start_at, start))
                self._logs.checkpoint()
            elif future.log_end_offset < source.log_end_offset:
                await self._copy(move)
            elif not move.assigned:
                # An empty copy too: its only file's name says where it begins.
                await self._in_thread(future.flusher.sync_all)
                self._check(move)
                # Before the assignment: a crash after it makes this log dir the replica's, with its log start and high
                # watermark from the checkpoints there.
                await self._in_thread(self._logs.checkpoint_writer(move.log_dir))
                self._check(move)
                await self._assign_dir(move)
            else:
                await self._catch_up(move)
                return True
        except (OSError, StorageFailure) as failure:
            await self._on_failure(move, failure)
        return False

    def _check(self, move: LogDirMove) -> None:
        if move.cancelled or move.replica.retired or move.log_dir.failure is not None:
            raise _MoveCancelled
        if move.source.failed or move.source.retired:
            raise _MoveCancelled

    async def _agree(self, move: LogDirMove) -> None:
        """Truncate the copy to what the replica has."""
        source, future, cuts = move.source, move.future, move.source.truncations
        # Epoch by epoch, as a follower does: equal offsets may hold different records.
        while future.log_end_offset > future.log_start_offset:
            latest = future.leader_epochs.latest
            _, end = source.end_offset_for_epoch(latest)
            target = min(end if end >= 0 else future.log_start_offset, source.log_end_offset)
            if target >= future.log_end_offset:
                break
            await self._in_thread(partial(future.truncate_to, target))
            if future.leader_epochs.latest == latest and future.log_end_offset > target:
                break  # `target` lies inside a batch that both have
        self._logs.checkpoint()  # the recovery point on disk may be beyond the end of the copy now
        # The count from before the first await: a truncation meanwhile is found by the next step.
        move.cuts = cuts

    async def _copy(self, move: LogDirMove) -> None:
        while self.throttle.exceeded(self._clock.monotonic_ms()):
            await asyncio.sleep(THROTTLED_S)
            self._check(move)
        piece = _next_piece(move)
        assert piece is not None, "the copy lacks nothing and does not reach the end"
        await self._in_thread(partial(_append, move.future, piece))
        self.throttle.record(piece.length, self._clock.monotonic_ms())

    async def _assign_dir(self, move: LogDirMove) -> None:
        try:
            await self._assign(move.replica, self._logs.directory_ids[move.log_dir.path])
            move.assigned = True
        except KlammError as error:
            log.warning("AssignReplicasToDirs refused, will retry", partition=move.source.name, reason=error)
            await asyncio.sleep(RETRY_S)

    async def _catch_up(self, move: LogDirMove) -> None:
        """Copy what was written since, and take over when nothing is missing."""
        allowed = PIECE_BYTES
        for attempt in range(1 << 30):
            self._check(move)
            # What is staged has offsets in the old log: it is written there, and copied with the rest.
            if move.replica.has_staged:
                self._replicas.write_staged()
            if move.cuts != move.source.truncations:
                await self._agree(move)
                continue
            piece = _next_piece(move)
            if piece is None or (piece.length <= allowed and piece.next_offset >= move.source.log_end_offset):
                # No await from here to the switch: an append in between would be in the old log only.
                if piece is not None:
                    _append(move.future, piece)
                self._take_over(move)
                return
            if attempt >= ROUNDS_MAX:
                allowed *= 2
            await self._in_thread(partial(_append, move.future, piece))

    def _take_over(self, move: LogDirMove) -> None:
        replica, source, future = move.replica, move.source, move.future
        if source.recovery_point > future.recovery_point:
            future.flush()  # what was acknowledged as durable (flush.messages) must stay so
        future.config = source.config
        self._logs.take_over(future)
        replica.log = future
        replica.refresh()
        # Callbacks that wait for a sync of the old log are served by one of the new.
        self._logs.group_sync.move(source, future)

    async def _on_failure(self, move: LogDirMove, failure: OSError | StorageFailure) -> None:
        """Fail the log dir of a copy that cannot be written, or wait if its disk is full."""
        self._check(move)
        # A full disk leaves the log online, any other failed write does not.
        if move.future.failed:
            reason = failure if isinstance(failure, StorageFailure) else StorageFailure(str(failure))
            self._logs.fail_dir(move.log_dir, reason)
            raise _MoveCancelled
        log.warning("replica move between log dirs waits", partition=move.source.name, reason=failure)
        await asyncio.sleep(RETRY_S)

    async def _in_thread(self, work: Callable[[], object]) -> None:
        job = asyncio.wrap_future(self._threads.submit(work), loop=self._loop)
        try:
            # Shielded: cancelling the future of a thread that runs does not stop the thread.
            await asyncio.shield(job)
        except asyncio.CancelledError:
            # The thread goes on: the copy must not be touched before it is done.
            await asyncio.gather(job, return_exceptions=True)
            raise


def _next_piece(move: LogDirMove) -> FileSlice | None:
    """Where the bytes lie that the copy needs next; None when it has everything."""
    source, offset = move.source, move.future.log_end_offset
    if offset >= source.log_end_offset:
        return None
    return source.segments.read(offset, PIECE_BYTES, source.log_end_offset, source.log_end_offset, True)


def _append(future: Log, piece: FileSlice) -> None:
    future.append_as_follower(memoryview(bytearray(piece.read())))


def _first_offset(source: Log) -> int:
    """Where a copy begins: with the batch that holds the replica's first record."""
    start = source.log_start_offset
    piece = source.segments.read(start, 1, source.log_end_offset, source.log_end_offset, True)
    if piece is None:
        return start
    return min(start, BatchView(piece.file.pread(HEADER_SIZE, piece.position)).base_offset)

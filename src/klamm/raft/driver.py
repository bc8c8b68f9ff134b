"""Runs a quorum member: does what the core decides, in the order persist, send, apply.

One event loop owns it. Appends go to the page cache at once; one thread syncs, and all batches that arrive while a
sync runs share the next one. A write or sync that failed is never retried: what the disk holds then is unknown (after
a failed fsync the kernel may drop dirty pages), so the driver stops and calls `on_fatal`.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.raft.codec.batches import encode_entry, read_batches, read_entries
from klamm.raft.config import RaftConfig
from klamm.raft.core.events import (
    AppendEntry,
    Event,
    Leadership,
    LogOperation,
    PeerUnreachable,
    Persisted,
    Ready,
    Received,
    Resign,
    SnapshotTaken,
    StoreSnapshotChunk,
    Truncate,
)
from klamm.raft.core.messages import Entry, OffsetAndEpoch, RaftFetchResponse, RaftFetchSnapshotResponse, RaftMessage
from klamm.raft.core.quorum import ReplicaKey, Voter
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.report import QuorumReport, report_quorum
from klamm.raft.core.roles import Leader, Resigned
from klamm.raft.interfaces import RaftListener, Transport
from klamm.raft.proposals import Proposals
from klamm.raft.recovery import RaftStorage, open_storage
from klamm.storage.disk import Disk
from klamm.storage.thread_pools import Threads, real_threads
from klamm.telemetry.histogram import Histogram
from klamm.telemetry.log import get_logger

log = get_logger("raft")

HAND_OVER_SECONDS = 0.5
"""How long a stopping leader waits for the voters to acknowledge EndQuorumEpoch."""
READ_BYTES = 1024 * 1024
"""How much of the log one read of a replay takes."""


class RaftDriver:
    """A running replica of the metadata log.

    Only the leader accepts `append`. `start` of a sole voter returns once it leads and has applied its log.
    """

    def __init__(
        self,
        config: RaftConfig,
        clock: Clock,
        random: Random,
        listener: RaftListener,
        transport: Transport | None = None,
        *,
        on_fatal: Callable[[BaseException], None] | None = None,
        disk: Disk | None = None,
        threads: Threads = real_threads,
    ) -> None:
        self.config = config
        self.core: RaftCore
        self._clock = clock
        self._random = random
        self._listener = listener
        self._transport = transport
        self._on_fatal = on_fatal
        self._disk = disk or Disk()
        self._storage: RaftStorage
        self._is_open = False
        """Whether `_storage` is there: a driver may be stopped before it has started, or after its start has failed."""
        self._loop: asyncio.AbstractEventLoop
        self._sync_thread = threads(1, "raft-sync")
        self._running = False
        self._pumping = False
        self._failure: BaseException | None = None
        self._vote_write: asyncio.Future[None] | None = None
        self._log_sync: asyncio.Future[None] | None = None
        self._truncations = 0
        self._timer: asyncio.TimerHandle | None = None
        self._proposals = Proposals()
        self._applied_offset = 0
        self._applied_time_ms = 0
        self._leadership = Leadership(None, 0)
        self._pending_leadership: Leadership | None = None
        self._sole_leadership: asyncio.Future[None] | None = None
        """Resolves when a sole voter leads; `start` awaits it."""
        self._leader_waiters: list[asyncio.Future[int]] = []
        self.on_leader_change: list[Callable[[int | None, int], None]] = []
        """Called with leader and epoch after the listener."""

    # state

    @property
    def leader(self) -> tuple[int | None, int]:
        """(leader id or None, epoch), as last passed to the listener."""
        return self._leadership.leader_id, self._leadership.epoch

    @property
    def commit_times(self) -> Histogram:
        """How long the batches of this leader took from their proposal until they were applied."""
        return self._proposals.commit_times

    @property
    def running(self) -> bool:
        """Whether this member has started and has not failed."""
        return self._running and self._failure is None

    @property
    def is_leader(self) -> bool:
        """Whether `append` is accepted here."""
        return self._running and self.core.is_leader

    @property
    def kraft_version(self) -> int:
        """The kraft.version according to this member's log: 0 for static voters, 1 for dynamic ones."""
        return self.core.voter_history.latest.kraft_version

    @property
    def high_watermark(self) -> int:
        """Every offset below it is committed."""
        return self.core.high_watermark

    @property
    def applied_offset(self) -> int:
        """Every offset below it has been delivered to the listener."""
        return self._applied_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset still in the log."""
        return self.core.log.start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will have."""
        return self.core.log.end_offset

    def describe_quorum(self) -> QuorumReport:
        """The state of the quorum for DescribeQuorum; only the leader has the positions of replicas."""
        return report_quorum(self.core, self._clock.now_ms(), self._clock.monotonic_ms())

    async def wait_for_leader(self) -> int:
        """Wait until this member has a leader, and return its id."""
        if self._leadership.leader_id is not None:
            return self._leadership.leader_id
        future: asyncio.Future[int] = self._loop.create_future()
        self._leader_waiters.append(future)
        return await future

    # lifecycle

    async def start(self) -> None:
        """Recover from disk, deliver the snapshot to the listener, join the quorum."""
        self._loop = asyncio.get_running_loop()
        work = functools.partial(open_storage, self.config, self._disk, self._clock.now_ms())
        storage = self._storage = await self._loop.run_in_executor(self._sync_thread, work)
        self._is_open = True
        if storage.snapshot is not None:
            snapshot_id, values = storage.snapshot
            self._applied_offset = snapshot_id.offset
            self._listener.on_snapshot(snapshot_id.offset, snapshot_id.epoch, values)
            storage.snapshot = None  # its values may be large, and are not needed again
        self._running = True
        self.core = RaftCore(
            self.config.local,
            self.config.voter_set,
            storage.positions,
            election=storage.election,
            random=self._random,
            now_ms=self._clock.monotonic_ms(),
            timeouts=self.config.timeouts,
            voter_history=storage.voter_history,
            bootstrap=self.config.bootstrap,
        )
        if self.core.voters.is_only_voter(self.config.local):
            self._sole_leadership = self._loop.create_future()
        self._pump()
        if self._sole_leadership is not None:
            await self._sole_leadership

    def resign(self) -> None:
        """Give up leadership and do not campaign again: the first step of stopping."""
        if self._running and self._failure is None:
            self._step(Resign())

    async def stop(self) -> None:
        """Hand over leadership, wait for running syncs, close the log."""
        self.resign()
        await self.hand_over()
        if self._timer is not None:
            self._timer.cancel()
        # A loop, because a written vote may lead to the next sync, and a sync to the next vote.
        while self._log_sync is not None or self._vote_write is not None:
            await asyncio.wait([future for future in (self._log_sync, self._vote_write) if future is not None])
        self._running = False
        self._proposals.fail(KlammError(ErrorCode.NOT_CONTROLLER, "this controller is stopping"))
        if self._is_open and self._failure is None:
            await self._loop.run_in_executor(self._sync_thread, self._storage.log.close)
        self._sync_thread.shutdown(wait=False)

    async def hand_over(self) -> None:
        """Wait briefly until all voters that run have acknowledged the end of this leader's epoch."""
        deadline = self._loop.time() + HAND_OVER_SECONDS if self._running else 0.0
        while self._running and self._failure is None and self._transport is not None:
            state = self.core.state
            if not isinstance(state, Resigned) or not state.unacknowledged or self._loop.time() >= deadline:
                return
            # Polled: an acknowledgement changes the core without an event for callers.
            await asyncio.sleep(0.005)

    def append(self, values: Sequence[bytes]) -> "asyncio.Future[int]":
        """Propose record values as one atomic batch.

        The future resolves with the offset of the last record once the batch is committed and applied.
        KlammError NOT_CONTROLLER is raised on a member that does not lead; the future fails with it when leadership is
        lost, and the batch may or may not survive.
        """
        self._check_append(values)
        payload = tuple(values)
        entry = self.core.propose(payload, self._clock.monotonic_ms(), self._clock.now_ms())
        return self._track(entry, list(payload))

    def _track(self, entry: Entry, values: list[bytes] | None) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = self._loop.create_future()
        self._proposals.add(entry, values, future)
        self._pump()
        return future

    def add_voter(self, voter: Voter) -> "asyncio.Future[int]":
        """Make a voter of an observer; resolves once that is committed, KlammError when it is not possible now."""
        return self._track(self.core.add_voter(voter, self._clock.monotonic_ms()), None)

    def remove_voter(self, key: ReplicaKey) -> "asyncio.Future[int]":
        """Make an observer of a voter; resolves once that is committed."""
        return self._track(self.core.remove_voter(key, self._clock.monotonic_ms()), None)

    def update_voter(self, voter: Voter) -> "asyncio.Future[int] | None":
        """Record a voter's directory, address and versions; None when nothing has to be written."""
        entry = self.core.update_voter(voter, self._clock.monotonic_ms())
        return None if entry is None else self._track(entry, None)

    def raise_kraft_version(
        self, level: int, own: Voter, *, validate_only: bool = False
    ) -> "asyncio.Future[int] | None":
        """Make static voters dynamic; None when nothing has to be written. `own` is the entry of this voter."""
        now_ms = self._clock.monotonic_ms()
        entry = self.core.raise_kraft_version(level, own, now_ms, validate_only=validate_only)
        return None if entry is None else self._track(entry, None)

    def receive(self, message: RaftMessage) -> None:
        """Handle a message of another member."""
        if self._running:
            self._step(Received(message))

    def report_lost(self, message: RaftMessage, *, refused: bool = False) -> None:
        """Report that a request, or its response, was lost; `refused` when the peer's process does not run."""
        if self._running:
            self._step(PeerUnreachable(message.destination, message.correlation_id, refused))

    async def write_snapshot(
        self, offset: int, epoch: int, values: Iterable[bytes], *, last_contained_log_timestamp: int | None = None
    ) -> None:
        """Write the state after all records below `offset` as a snapshot, then delete older logs and snapshots.

        `epoch` is that of the record before `offset`; `values` are iterated in a thread. The timestamp defaults to
        that of the last batch delivered. The newest two snapshots are kept, and the log from the older one on, so that
        a single damaged snapshot loses nothing.
        """
        snapshot_id = OffsetAndEpoch(offset, epoch)
        if offset > self._applied_offset or (offset > 0 and self.core.log.epoch_at(offset - 1) != epoch):
            raise ValueError(f"no snapshot of {snapshot_id}: committed up to {self._applied_offset}")
        if self.core.log.snapshot_id is not None and snapshot_id <= self.core.log.snapshot_id:
            return
        timestamp = self._applied_time_ms if last_contained_log_timestamp is None else last_contained_log_timestamp
        write = functools.partial(
            self._storage.snapshots.write,
            snapshot_id,
            values,
            now_ms=self._clock.now_ms(),
            last_contained_log_timestamp=timestamp,
            configuration=self.core.voter_history.at(offset),
        )
        try:
            # Not in the sync thread: commits of the quorum wait for that one.
            await self._loop.run_in_executor(None, write)
        except StorageFailure as error:
            self._fail(error)
            raise
        if self._running:
            self._clean_log(snapshot_id)

    # the pump

    def _step(self, event: Event) -> None:
        try:
            self.core.step(event, self._clock.monotonic_ms())
        except Exception as error:  # noqa: BLE001 - a broken invariant must stop this member, not the caller
            self._fail(error)
        self._pump()

    def _pump(self, durable: Ready | None = None) -> None:
        """Do what the core has decided, until something has to be on disk first.

        `durable` is a Ready whose vote has been written. A listener may call `append` from within; the outer call then
        picks that up.
        """
        # While a vote is written, decisions stay in the core: none of them may overtake it.
        if self._failure is not None or self._vote_write is not None or self._pumping:
            return
        self._pumping = True
        try:
            if durable is not None:
                self._act(durable)
            while not self._must_wait_for_sync() and (ready := self.core.ready()) is not None:
                if ready.election is not None:
                    self._vote_write = self._in_sync_thread(
                        functools.partial(
                            self._storage.quorum_state.write, ready.election, self.core.voter_history.latest
                        ),
                        functools.partial(self._on_vote_written, ready),
                    )
                    break
                self._act(ready)
        except Exception as error:  # noqa: BLE001 - storage or listener failed: this member must not go on
            self._fail(error)
        finally:
            self._pumping = False
        self._schedule_tick()

    def _must_wait_for_sync(self) -> bool:
        """Whether a truncation must wait for a running sync, which would otherwise vouch for bytes written after it."""
        return self._log_sync is not None and self._truncations != self.core.log.truncations

    def _on_vote_written(self, ready: Ready) -> None:
        self._vote_write = None
        self._log_vote(ready)
        self._pump(ready)

    def _act(self, ready: Ready) -> None:
        for operation in ready.log:
            self._change_log(operation)
        if ready.leadership is not None:
            self._pending_leadership = ready.leadership
            if ready.leadership.leader_id != self.config.node_id:
                first = self._proposals.first
                if first is not None and first.entry.epoch == ready.leadership.epoch:
                    # Committed before it resigned: report success, not the loss of leadership.
                    self._apply(ready.high_watermark)
                text = f"the leader is now {ready.leadership.leader_id}"
                self._proposals.fail(KlammError(ErrorCode.NOT_CONTROLLER, text))
        # Messages may leave before the sync ends: what they acknowledge was decided by `Persisted`.
        self._sync_log()
        for message in ready.messages:
            self._send(message)
        self._apply(ready.high_watermark)
        self._announce()

    def _change_log(self, operation: LogOperation) -> None:
        storage = self._storage
        match operation:
            case AppendEntry(entry):
                storage.log.append(encode_entry(entry, self._clock.now_ms()))
                if entry.voter_change is not None:
                    self._log_voter_change(entry)
            case Truncate(end_offset):
                self._truncations += 1
                storage.log.truncate_to(end_offset)
                log.info("metadata log truncated", offset=end_offset, epoch=self.core.epoch)
            case StoreSnapshotChunk(snapshot_id, position, chunk, complete):
                if complete:
                    # At a restart everything below the newest snapshot counts as durable, and the old log may still be
                    # there if the process dies before it is reset.
                    storage.log.flush()
                storage.snapshots.write_chunk(snapshot_id, position, chunk, complete=complete)
                if complete:
                    self._install(snapshot_id)

    def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        """Replace log and state by a snapshot that was fetched completely."""
        values = self._storage.snapshots.read(snapshot_id)
        named, initial = self._storage.snapshots.read_voter_change(snapshot_id), self.config.initial_voters
        self.core.install_snapshot(snapshot_id, initial if named is None else named.apply_to(initial))
        self._truncations += 1
        self._storage.log.start_at(snapshot_id.offset)
        self._storage.snapshots.delete_before(snapshot_id)
        self._applied_offset = snapshot_id.offset
        log.info("metadata snapshot installed", offset=snapshot_id.offset, epoch=snapshot_id.epoch)
        self._listener.on_snapshot(snapshot_id.offset, snapshot_id.epoch, values)

    # sync

    def _in_sync_thread(self, work: Callable[[], None], then: Callable[[], None]) -> "asyncio.Future[None]":
        future = self._loop.run_in_executor(self._sync_thread, work)

        def on_done(finished: "asyncio.Future[None]") -> None:
            error = finished.exception()
            if error is None:
                then()
            else:
                self._vote_write = self._log_sync = None
                self._fail(error)

        future.add_done_callback(on_done)
        return future

    def _sync_log(self) -> None:
        """Start a sync unless one is running; what is appended meanwhile shares the next one."""
        end_offset = self._storage.log.end_offset
        if self._log_sync is None and self._failure is None and self.core.log.persisted_offset < end_offset:
            then = functools.partial(self._on_synced, end_offset)
            self._log_sync = self._in_sync_thread(self._storage.log.flush, then)

    def _on_synced(self, end_offset: int) -> None:
        self._log_sync = None
        # The core has truncated meanwhile and waits to act on it: this sync proves nothing about the new log.
        if self._truncations == self.core.log.truncations:
            self._step(Persisted(end_offset))
        else:
            self._pump()
        if self._failure is None:
            self._sync_log()

    # apply

    def _apply(self, high_watermark: int) -> None:
        while self._applied_offset < high_watermark:
            first = self._proposals.first
            # A leader applies its own proposals from memory; everything else is read back from the log.
            if first is not None and first.entry.base_offset == self._applied_offset:
                entry = first.entry
                self._applied_offset, self._applied_time_ms = entry.end_offset, entry.append_time_ms
                if first.values is not None:
                    self._listener.on_commit(entry.base_offset, entry.epoch, first.values, entry.append_time_ms)
                self._proposals.complete(first)
            else:
                limit = first.entry.base_offset if first is not None else high_watermark
                self._replay(min(limit, high_watermark))

    def _replay(self, end_offset: int) -> None:
        """Deliver batches below `end_offset` from one read of the log."""
        data = self._storage.log.read(self._applied_offset, READ_BYTES)
        if not data:
            raise StorageFailure(f"offset {self._applied_offset} of the metadata log is committed but missing")
        for batch in read_batches(data):
            if batch.base_offset >= end_offset:
                return
            if batch.end_offset <= self._applied_offset:
                continue
            self._applied_offset, self._applied_time_ms = batch.end_offset, batch.append_time_ms
            if not batch.control:
                self._listener.on_commit(batch.base_offset, batch.epoch, batch.values, batch.append_time_ms)

    def _announce(self) -> None:
        """Announce the leader; a new leader itself only after it has applied all records before its epoch.

        The listener decides on top of that state (it becomes the active controller), so the state must be complete.
        """
        leadership, state = self._pending_leadership, self.core.state
        if leadership is None:
            return
        if leadership.leader_id == self.config.node_id:
            if not isinstance(state, Leader) or self._applied_offset <= state.epoch_start_offset:
                return
            if self._sole_leadership is not None and not self._sole_leadership.done():
                self._sole_leadership.set_result(None)
            log.info("quorum leadership gained", epoch=leadership.epoch, offset=self._applied_offset)
        elif self._leadership.leader_id == self.config.node_id:
            log.info("quorum leadership lost", epoch=leadership.epoch, leader=leadership.leader_id)
        self._pending_leadership = None
        self._leadership = leadership
        self._listener.on_leader_change(leadership.leader_id, leadership.epoch)
        for callback in self.on_leader_change:
            callback(leadership.leader_id, leadership.epoch)
        if leadership.leader_id is not None:
            waiters, self._leader_waiters = self._leader_waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(leadership.leader_id)

    # peers and timers

    def _send(self, message: RaftMessage) -> None:
        if self._transport is None:
            return
        body = message.body
        match body:
            case RaftFetchResponse(read_from=int(offset)):
                data = self._storage.log.read(offset, self.config.fetch_max_bytes)
                body = replace(body, read_from=None, entries=read_entries(data))
            case RaftFetchSnapshotResponse(error=ErrorCode.NONE, snapshot_id=OffsetAndEpoch() as snapshot_id):
                try:
                    size, chunk = self._storage.snapshots.read_chunk(snapshot_id, body.position, body.max_bytes)
                    body = replace(body, size=size, chunk=chunk)
                except FileNotFoundError:
                    body = replace(body, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        self._transport.send(replace(message, body=body))

    def _schedule_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and self._failure is None and not self.core.idle:
            # At least a millisecond, so that a deadline that has passed cannot spin the loop.
            delay_ms = max(self.core.deadline_ms - self._clock.monotonic_ms(), 1)
            self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        try:
            self.core.tick(self._clock.monotonic_ms())
        except Exception as error:  # noqa: BLE001 - as in _step
            self._fail(error)
        self._pump()

    def _clean_log(self, snapshot_id: OffsetAndEpoch) -> None:
        previous = self.core.log.snapshot_id
        base = previous if previous is not None else self.core.log.base
        # The core first: from then on no fetch is answered from what is deleted below.
        self._step(SnapshotTaken(snapshot_id, base))
        try:
            self._storage.log.delete_before(base.offset)
            self._storage.snapshots.delete_before(base)
        except (OSError, StorageFailure) as error:
            self._fail(error)

    # log lines

    def _log_vote(self, ready: Ready) -> None:
        election = ready.election
        if election is None or election.voted is None or election.leader_id is not None:
            return
        if election.voted.id == self.config.node_id:
            log.info("became candidate", epoch=election.epoch)
        else:
            log.info("vote granted", candidate=election.voted.id, epoch=election.epoch)

    def _log_voter_change(self, entry: Entry) -> None:
        assert entry.voter_change is not None
        before = self.core.voter_history.at(entry.base_offset)
        after = entry.voter_change.apply_to(before)
        for voter in after.voters:
            if before.voters.get(voter.id) is None:
                log.info("voter added", voter=voter.key, offset=entry.base_offset)
        for voter in before.voters:
            if after.voters.get(voter.id) is None:
                log.info("voter removed", voter=voter.key, offset=entry.base_offset)
        if after.kraft_version != before.kraft_version:
            log.info("kraft.version raised", level=after.kraft_version, offset=entry.base_offset)

    # failure

    def _check_append(self, values: Sequence[bytes]) -> None:
        if self._failure is not None:
            raise StorageFailure(f"the metadata log failed: {self._failure}")
        if not self._running:
            raise KlammError(ErrorCode.NOT_CONTROLLER, "this controller is not running")
        if not values:
            raise ValueError("a batch needs at least one record")
        size = sum(map(len, values))
        if size > self.config.batch_bytes_max:
            limit = self.config.batch_bytes_max
            raise KlammError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit into one batch of {limit}")

    def _fail(self, error: BaseException) -> None:
        """Stop permanently: the content of the disk is unknown."""
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        self._proposals.fail(StorageFailure(f"the metadata log failed: {error}"))
        if self._sole_leadership is not None and not self._sole_leadership.done():
            self._sole_leadership.set_exception(error)
        if self._on_fatal is not None:
            self._on_fatal(error)

"""Runs a quorum member: persists, sends, applies, in that order; the only file of this room that touches the world.

One event loop owns it. Appends go to the page cache at once; one thread syncs, and every batch that arrived while a
sync was running shares the next one. Nothing counts before it is synced, and a write or sync that failed is never
tried again: what the disk then holds is unknown, so the driver stops and tells `on_fatal`.
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
    Append,
    Event,
    Leadership,
    LogOperation,
    Persisted,
    Ready,
    Received,
    Resign,
    SnapshotTaken,
    StoreSnapshotChunk,
    Truncate,
    Unreachable,
)
from klamm.raft.core.messages import Entry, FetchResponse, FetchSnapshotResponse, Message, OffsetAndEpoch
from klamm.raft.core.quorum import ReplicaKey, Voter
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.report import QuorumReport, report_quorum
from klamm.raft.core.roles import Leader, Resigned
from klamm.raft.interfaces import Listener, Transport
from klamm.raft.proposals import Proposals
from klamm.raft.recovery import Storage, open_storage
from klamm.storage.disk import Disk
from klamm.storage.thread_pools import Threads, real_threads

HAND_OVER_SECONDS = 0.5
"""How long a stopping leader tries to tell the others; without its word they wait for a timeout."""
READ_BYTES = 1024 * 1024
"""How much of the log is read at a time for replay."""


class RaftDriver:
    """One replica of the metadata log, running.

    `append` works where `leader` is this node. `start` of a sole voter returns once it leads and has applied its log.
    """

    def __init__(
        self,
        config: RaftConfig,
        clock: Clock,
        random: Random,
        listener: Listener,
        transport: Transport | None = None,
        *,
        on_fatal: Callable[[BaseException], None] | None = None,
        disk: Disk | None = None,
        threads: Threads = real_threads,
        storage: Callable[[RaftConfig, Disk, int], Storage] = open_storage,
    ) -> None:
        self.config = config
        self.core: RaftCore
        self._clock = clock
        self._random = random
        self._listener = listener
        self._transport = transport
        self._on_fatal = on_fatal
        self._disk = disk or Disk()
        self._open_storage = storage
        self._storage: Storage
        self._loop: asyncio.AbstractEventLoop
        self._sync_thread = threads(1, "raft-sync")
        self._running = False
        self._pumping = False
        self._failure: BaseException | None = None
        self._electing: asyncio.Future[None] | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._cuts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._proposals = Proposals()
        self._applied_offset = 0
        self._applied_time_ms = 0
        self._leadership = Leadership(None, 0)
        self._unannounced: Leadership | None = None
        self._led: asyncio.Future[None] | None = None
        """Resolves when a sole voter leads; `start` waits for it."""
        self._awaiting_leader: list[asyncio.Future[int]] = []
        self.on_leader_change: list[Callable[[int | None, int], None]] = []
        """Called with leader and epoch after the listener has heard of them."""

    # facts

    @property
    def leader(self) -> tuple[int | None, int]:
        """(leader id or None, epoch), as last told to the listener."""
        return self._leadership.leader_id, self._leadership.epoch

    @property
    def running(self) -> bool:
        """Whether this member takes part."""
        return self._running and self._failure is None

    @property
    def is_leader(self) -> bool:
        """Whether `append` is taken here."""
        return self._running and self.core.is_leader

    @property
    def kraft_version(self) -> int:
        """Whether voters may change, as far as this member's log goes: 0 fixed, 1 part of the log."""
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
        """What DescribeQuorum tells; replica positions are known to the leader only."""
        return report_quorum(self.core, self._clock.now_ms(), self._clock.monotonic_ms())

    async def wait_for_leader(self) -> int:
        """The quorum's leader, as soon as there is one that this member knows."""
        if self._leadership.leader_id is not None:
            return self._leadership.leader_id
        future: asyncio.Future[int] = self._loop.create_future()
        self._awaiting_leader.append(future)
        return await future

    # life

    async def start(self) -> None:
        """Recover from disk, deliver the snapshot, join the quorum."""
        self._loop = asyncio.get_running_loop()
        opening = functools.partial(self._open_storage, self.config, self._disk, self._clock.now_ms())
        opened = await self._loop.run_in_executor(self._sync_thread, opening)
        self._storage = opened
        if opened.snapshot is not None:
            snapshot_id, values = opened.snapshot
            self._applied_offset = snapshot_id.offset
            self._listener.on_snapshot(snapshot_id.offset, snapshot_id.epoch, values)
            opened.snapshot = None
        self._running = True
        self.core = RaftCore(
            self.config.local,
            self.config.voter_set,
            opened.positions,
            election=opened.election,
            random=self._random,
            now_ms=self._clock.monotonic_ms(),
            timeouts=self.config.timeouts,
            voter_history=opened.voter_history,
            bootstrap=self.config.bootstrap,
        )
        if self.core.voters.is_only_voter(self.config.local):
            self._led = self._loop.create_future()
        self._pump()
        if self._led is not None:
            await self._led

    def resign(self) -> None:
        """Lead no more and stand no more: the first step of stopping; others hear of it at once."""
        if self._running and self._failure is None:
            self._step(Resign())

    async def stop(self) -> None:
        """Hand over leadership, let syncs finish, close the log."""
        self.resign()
        await self.hand_over()
        if self._timer is not None:
            self._timer.cancel()
        while self._syncing is not None or self._electing is not None:
            await asyncio.wait([future for future in (self._syncing, self._electing) if future is not None])
        self._running = False
        self._proposals.fail(KlammError(ErrorCode.NOT_CONTROLLER, "this controller is stopping"))
        if hasattr(self, "_storage") and self._failure is None:
            await self._loop.run_in_executor(self._sync_thread, self._storage.log.close)
        self._sync_thread.shutdown(wait=False)

    async def hand_over(self) -> None:
        """Wait a moment until the others know that this leader is gone; those that are dead are not waited for."""
        deadline = self._loop.time() + HAND_OVER_SECONDS if self._running else 0.0
        while self._running and self._failure is None and self._transport is not None:
            state = self.core.state
            if not isinstance(state, Resigned) or not state.unacknowledged or self._loop.time() >= deadline:
                return
            await asyncio.sleep(0.005)

    def append(self, values: Sequence[bytes]) -> "asyncio.Future[int]":
        """Propose record values as one atomic batch.

        The future resolves with the offset of the last one once the batch is committed and delivered to the listener.
        KlammError NOT_CONTROLLER, raised or from the future: not the leader, or leadership was lost and the batch may
        or may not survive.
        """
        self._refuse_append(values)
        payload = tuple(values)
        entry = self.core.propose(payload, self._clock.monotonic_ms(), self._clock.now_ms())
        return self._follow(entry, list(payload))

    def _follow(self, entry: Entry, values: list[bytes] | None) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = self._loop.create_future()
        self._proposals.add(entry, values, future)
        self._pump()
        return future

    def add_voter(self, voter: Voter) -> "asyncio.Future[int]":
        """Let an observer vote; resolves once that is committed. KlammError says why it cannot be now."""
        return self._follow(self.core.add_voter(voter, self._clock.monotonic_ms()), None)

    def remove_voter(self, key: ReplicaKey) -> "asyncio.Future[int]":
        """Let a voter vote no more; resolves once that is committed."""
        return self._follow(self.core.remove_voter(key, self._clock.monotonic_ms()), None)

    def update_voter(self, voter: Voter) -> "asyncio.Future[int] | None":
        """Write down a voter's new address; None when it is known."""
        entry = self.core.update_voter(voter, self._clock.monotonic_ms())
        return None if entry is None else self._follow(entry, None)

    def raise_kraft_version(
        self, level: int, own: Voter, *, validate_only: bool = False
    ) -> "asyncio.Future[int] | None":
        """Let voters change from now on; None when nothing has to be written. `own` is this voter as it is now."""
        now_ms = self._clock.monotonic_ms()
        entry = self.core.raise_kraft_version(level, own, now_ms, validate_only=validate_only)
        return None if entry is None else self._follow(entry, None)

    def receive(self, message: Message) -> None:
        """A message of another member arrived."""
        if self._running:
            self._step(Received(message))

    def lost(self, message: Message, *, refused: bool = False) -> None:
        """A request of ours did not arrive, or its answer will not; `refused` when the peer's process is dead."""
        if self._running:
            self._step(Unreachable(message.destination, message.correlation_id, refused))

    async def write_snapshot(
        self, offset: int, epoch: int, values: Iterable[bytes], *, last_contained_log_timestamp: int | None = None
    ) -> None:
        """Write the state after all records below `offset` as a snapshot, then drop what it makes superfluous.

        `epoch` is that of the record before `offset`; `values` are iterated in a thread. The timestamp is that of the
        last batch delivered, unless told. The newest two snapshots are kept, and the log from the older of the two on,
        so that one damaged snapshot loses nothing.
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

    def _pump(self, elected: Ready | None = None) -> None:
        """Act on everything the core has decided, up to the next thing that must be on disk first.

        `elected` is a decision whose vote is on disk now. A listener may call `append` from inside: the outer pump
        then goes on with it.
        """
        if self._failure is not None or self._electing is not None or self._pumping:
            return
        self._pumping = True
        try:
            if elected is not None:
                self._act(elected)
            while not self._must_wait_for_sync() and (ready := self.core.ready()) is not None:
                if ready.election is not None:
                    self._electing = self._in_sync_thread(
                        functools.partial(
                            self._storage.quorum_state.write, ready.election, self.core.voter_history.latest
                        ),
                        functools.partial(self._on_elected, ready),
                    )
                    break
                self._act(ready)
        except Exception as error:  # noqa: BLE001 - storage or listener failed: this member must not go on
            self._fail(error)
        finally:
            self._pumping = False
        self._schedule_tick()

    def _must_wait_for_sync(self) -> bool:
        """The log is never cut while it is being synced: the sync would vouch for bytes written after the cut."""
        return self._syncing is not None and self._cuts != self.core.log.cuts

    def _on_elected(self, ready: Ready) -> None:
        self._electing = None
        self._pump(ready)

    def _act(self, ready: Ready) -> None:
        for operation in ready.log:
            self._change_log(operation)
        if ready.leadership is not None:
            self._unannounced = ready.leadership
            if ready.leadership.leader_id != self.config.node_id:
                first = self._proposals.first
                if first is not None and first.entry.epoch == ready.leadership.epoch:
                    self._apply(ready.high_watermark)  # what a leader committed and then resigned is committed
                leader = ready.leadership.leader_id
                self._proposals.fail(KlammError(ErrorCode.NOT_CONTROLLER, f"the leader is now {leader}"))
        self._sync_log()
        for message in ready.messages:
            self._send(message)
        self._apply(ready.high_watermark)
        self._announce()

    def _change_log(self, operation: LogOperation) -> None:
        storage = self._storage
        match operation:
            case Append(entry):
                storage.log.append(encode_entry(entry, self._clock.now_ms()))
            case Truncate(end_offset):
                self._cuts += 1
                storage.log.truncate_to(end_offset)
            case StoreSnapshotChunk(snapshot_id, position, chunk, complete):
                if complete:
                    # A start takes what lies below a snapshot for durable: a crash may come before it goes.
                    storage.log.flush()
                storage.snapshots.write_chunk(snapshot_id, position, chunk, complete=complete)
                if complete:
                    self._install(snapshot_id)

    def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        """A snapshot of the leader is whole: it replaces our log and the listener's state."""
        values = self._storage.snapshots.read(snapshot_id)
        named, given = self._storage.snapshots.configuration(snapshot_id), self.config.configuration
        self.core.install_snapshot(snapshot_id, given if named is None else named.apply_to(given))
        self._cuts += 1
        self._storage.log.start_at(snapshot_id.offset)
        self._storage.snapshots.delete_before(snapshot_id)
        self._applied_offset = snapshot_id.offset
        self._listener.on_snapshot(snapshot_id.offset, snapshot_id.epoch, values)

    # sync

    def _in_sync_thread(self, work: Callable[[], None], then: Callable[[], None]) -> "asyncio.Future[None]":
        future = self._loop.run_in_executor(self._sync_thread, work)

        def done(finished: "asyncio.Future[None]") -> None:
            error = finished.exception()
            if error is None:
                then()
            else:
                self._electing = self._syncing = None
                self._fail(error)

        future.add_done_callback(done)
        return future

    def _sync_log(self) -> None:
        """Sync unless a sync runs already: then what is appended meanwhile shares the next one."""
        end_offset = self._storage.log.end_offset
        if self._syncing is None and self._failure is None and self.core.log.persisted_offset < end_offset:
            then = functools.partial(self._on_synced, end_offset)
            self._syncing = self._in_sync_thread(self._storage.log.flush, then)

    def _on_synced(self, end_offset: int) -> None:
        self._syncing = None
        if self._cuts == self.core.log.cuts:
            self._step(Persisted(end_offset))
        else:
            self._pump()
        if self._failure is None:
            self._sync_log()

    # apply

    def _apply(self, high_watermark: int) -> None:
        while self._applied_offset < high_watermark:
            first = self._proposals.first
            if first is not None and first.entry.base_offset == self._applied_offset:
                entry = first.entry
                self._applied_offset, self._applied_time_ms = entry.end_offset, entry.append_time_ms
                if first.values is not None:
                    self._listener.on_commit(entry.base_offset, entry.epoch, first.values, entry.append_time_ms)
                self._proposals.applied(first)
            else:
                limit = first.entry.base_offset if first is not None else high_watermark
                self._replay(min(limit, high_watermark))

    def _replay(self, end_offset: int) -> None:
        """Deliver one read of the log, not beyond `end_offset`."""
        data = self._storage.log.read(self._applied_offset, READ_BYTES)
        if not data:
            raise StorageFailure(f"offset {self._applied_offset} of the metadata log is committed but not there")
        for batch in read_batches(data):
            if batch.base_offset >= end_offset:
                return
            if batch.end_offset <= self._applied_offset:
                continue
            self._applied_offset, self._applied_time_ms = batch.end_offset, batch.append_time_ms
            if not batch.control:
                self._listener.on_commit(batch.base_offset, batch.epoch, batch.values, batch.append_time_ms)

    def _announce(self) -> None:
        """Tell who leads; a leader tells itself only when it has applied everything before its epoch."""
        leadership, state = self._unannounced, self.core.state
        if leadership is None:
            return
        if leadership.leader_id == self.config.node_id:
            if not isinstance(state, Leader) or self._applied_offset <= state.epoch_start_offset:
                return
            if self._led is not None and not self._led.done():
                self._led.set_result(None)
        self._unannounced = None
        self._leadership = leadership
        self._listener.on_leader_change(leadership.leader_id, leadership.epoch)
        for tell in self.on_leader_change:
            tell(leadership.leader_id, leadership.epoch)
        if leadership.leader_id is not None:
            waiting, self._awaiting_leader = self._awaiting_leader, []
            for future in waiting:
                if not future.done():
                    future.set_result(leadership.leader_id)

    # others

    def _send(self, message: Message) -> None:
        if self._transport is None:
            return
        body = message.body
        match body:
            case FetchResponse(read_from=int(offset)):
                data = self._storage.log.read(offset, self.config.fetch_max_bytes)
                body = replace(body, read_from=None, entries=read_entries(data))
            case FetchSnapshotResponse(error=ErrorCode.NONE, snapshot_id=OffsetAndEpoch() as snapshot_id):
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
        self._step(SnapshotTaken(snapshot_id, base))
        try:
            self._storage.log.delete_before(base.offset)
            self._storage.snapshots.delete_before(base)
        except (OSError, StorageFailure) as error:
            self._fail(error)

    # refusal and failure

    def _refuse_append(self, values: Sequence[bytes]) -> None:
        if self._failure is not None:
            raise StorageFailure(f"the metadata log failed: {self._failure}")
        if not self._running:
            raise KlammError(ErrorCode.NOT_CONTROLLER, "this controller is not running")
        if not values:
            raise ValueError("a batch has at least one record")
        size = sum(map(len, values))
        if size > self.config.batch_bytes_max:
            limit = self.config.batch_bytes_max
            raise KlammError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit into one batch of {limit}")

    def _fail(self, error: BaseException) -> None:
        """Stop for good: what the disk holds is no longer known."""
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        self._proposals.fail(StorageFailure(f"the metadata log failed: {error}"))
        if self._led is not None and not self._led.done():
            self._led.set_exception(error)
        if self._on_fatal is not None:
            self._on_fatal(error)

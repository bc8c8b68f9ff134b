"""Runs the controller: decides requests one at a time, appends the records to the metadata log, then answers.

A decision is replayed as soon as its records are appended, so that the next one builds on it and many share one fsync.
The response waits until the records are committed. A controller that loses leadership drops what was not committed;
one that wins it starts from the committed image and gives every broker a session before it fences any.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from klamm.controller import Controller, ControllerDecision, QuotaClient
from klamm.controller.features import build_response, requested_kraft_version
from klamm.metadata.loader import MetadataLoader
from klamm.metadata.records import encode_record
from klamm.model.clock import Clock
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.metadata_records import ConfigRecord
from klamm.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from klamm.raft import RaftDriver
from klamm.telemetry.log import get_logger

log = get_logger("controller")

R = TypeVar("R")

TICK_MS = 1_000
"""The longest interval between checks of broker sessions."""
LATE_MS = 500
"""A tick later than this means that the process was paused: stopped, swapped out or starved."""
UNCLEAN_ELECTION = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class CommittedResponse:
    """A response that may be sent, and the offset of the last record it depends on; -1 when nothing was written."""

    response: Any
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Duties:
    """The periodic work of an active controller."""

    balance_leaders: bool = True
    """auto.leader.rebalance.enable"""
    balance_interval_ms: int = 300_000
    """leader.imbalance.check.interval.seconds"""
    unclean_interval_ms: int = 300_000
    """unclean.leader.election.interval.ms"""
    token_interval_ms: int = 3_600_000
    """delegation.token.expiry.check.interval.ms"""


class RaiseKraftVersion(Protocol):
    """Raises the quorum's own feature level, or with `validate_only` checks that it could be raised."""

    async def __call__(self, level: int, timeout_ms: int, *, validate_only: bool) -> None:
        """Return once the level is committed; KlammError says why it was refused."""


class ControllerRuntime:
    """The controller of this node; unless it is the active one, every request is refused with NOT_CONTROLLER."""

    def __init__(
        self,
        make_controller: Callable[[], Controller],
        raft: RaftDriver,
        metadata: MetadataLoader,
        clock: Clock,
        duties: Duties | None = None,
        raise_kraft_version: RaiseKraftVersion | None = None,
    ) -> None:
        self._make_controller = make_controller
        self._raft = raft
        self._metadata = metadata
        self._clock = clock
        self._duties = duties or Duties()
        self._pending: asyncio.Future[int] | None = None
        """The last append that may not be committed; responses that read its state wait for it."""
        self._controller: Controller | None = None
        self._epoch = -1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._next_balance_ms = 0
        self._next_unclean_ms = 0
        self._next_tokens_ms = 0
        self._raise_kraft_version = raise_kraft_version
        self._activation_watchers: list[Callable[[Controller], None]] = []

    # Life

    def add_activation_watcher(self, watcher: Callable[[Controller], None]) -> None:
        """Call `watcher` whenever this node becomes the active controller."""
        self._activation_watchers.append(watcher)

    async def start(self) -> None:
        """Begin to serve as the active controller whenever this node leads the quorum."""
        self._ticker = asyncio.get_running_loop().create_task(self._keep_ticking(), name="controller tick")
        self.on_leader_change()

    async def stop(self) -> None:
        """Stop the periodic work and refuse all requests."""
        tasks = [task for task in (self._ticker, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._controller, self._epoch = None, -1

    @property
    def active(self) -> Controller | None:
        """The controller, when this node is the active one."""
        leader, epoch = self._raft.leader
        if leader != self._raft.config.node_id or self._ticker is None:
            self._controller = None
        elif epoch != self._epoch or self._controller is None:
            self._take_over(epoch)
        return self._controller

    def on_leader_change(self) -> None:
        """Activate or deactivate the controller."""
        previous = self._controller
        if self.active is None and previous is not None:
            log.info("no longer the active controller", epoch=self._epoch)

    def _take_over(self, epoch: int) -> None:
        controller = self._make_controller()
        now_ms = self._clock.monotonic_ms()
        # The watchers of the leader run once all records before its epoch are applied, so the image is complete.
        first = controller.take_over(self._metadata.image, now_ms)
        self._controller, self._epoch = controller, epoch
        self._next_balance_ms = now_ms + self._duties.balance_interval_ms
        # Due at once: a partition may have lost its last replica together with the previous controller.
        self._next_unclean_ms = now_ms
        self._next_tokens_ms = now_ms + self._duties.token_interval_ms
        log.info("became active controller", epoch=epoch, offset=self._metadata.image.provenance.offset)
        if first.records:
            self.spawn(self._wait_committed(controller, self._append(controller, first)), "first records")
        # After the records of the takeover: a watcher may submit decisions that build on them.
        for watcher in self._activation_watchers:
            watcher(controller)

    def spawn(self, work: Any, name: str) -> None:
        """Run a task that is cancelled when the controller stops."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("controller task failed", task=task.get_name(), reason=error)

    # Deciding

    async def ask(self, request: Any, version: int, client: QuotaClient | None = None) -> CommittedResponse:
        """Decide a request; KlammError NOT_CONTROLLER when this node is not active, or not until the commit.

        `client` is the one whose quota of changes the request is charged to.
        """
        if isinstance(request, UpdateFeaturesRequest):
            return await self._update_features(request, version)

        def decide(controller: Controller) -> ControllerDecision[Any]:
            return controller.decide(
                request,
                version,
                next_offset=self._raft.log_end_offset,
                now_ms=self._clock.monotonic_ms(),
                client=client,
                wall_ms=self._clock.now_ms(),
            )

        return await self.submit(decide)

    async def submit(self, decide: Callable[[Controller], ControllerDecision[Any]]) -> CommittedResponse:
        """Take a decision, append its records and return once they are committed."""
        controller = self.active
        if controller is None:
            raise KlammError(ErrorCode.NOT_CONTROLLER, f"the active controller is {self._raft.leader[0]}")
        decision = decide(controller)
        if not decision.records:
            # The state it was read from may contain records that are not committed yet, and may never be.
            if self._pending is not None and not self._pending.done():
                await self._wait_committed(controller, self._pending)
            return CommittedResponse(decision.response)
        if any(isinstance(record, ConfigRecord) and record.name == UNCLEAN_ELECTION for record in decision.records):
            # A partition without a leader may elect one by the new value: at the next tick, not after the interval.
            self._next_unclean_ms = 0
        appended = self._append(controller, decision)
        return CommittedResponse(decision.response, await self._wait_committed(controller, appended))

    async def _update_features(self, request: UpdateFeaturesRequest, version: int) -> CommittedResponse:
        """Decide feature levels; kraft.version is raised in the quorum first, if the other changes are valid."""

        def decide(controller: Controller) -> ControllerDecision[UpdateFeaturesResponse]:
            return controller.update_features(request, version, self._raft.kraft_version)

        level = requested_kraft_version(request)
        controller = self.active
        if level is None or self._raise_kraft_version is None or controller is None:
            return await self.submit(decide)
        # Validated first: kraft.version cannot be lowered again if another feature of the request is refused.
        if decide(controller).response.error_code == ErrorCode.NONE:
            try:
                await self._raise_kraft_version(level, request.timeout_ms, validate_only=request.validate_only)
            except KlammError as error:
                if error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER):
                    # So that the broker sends the request to the next controller.
                    raise KlammError(ErrorCode.NOT_CONTROLLER, str(error)) from error
                return CommittedResponse(build_response(request, version, error))
        return await self.submit(decide)

    def _append(self, controller: Controller, decision: ControllerDecision[Any]) -> "asyncio.Future[int]":
        """Append a decision's records; the future is that of the last batch, which is committed after all others."""
        values = [encode_record(record) for record in decision.records]
        # Records that must take effect together go into one batch, which is atomic, however large.
        limit = self._raft.config.batch_bytes_max if decision.divisible else 0
        for batch in _split_batches(values, limit):
            future = self._raft.append(batch)
        # Before the commit: the next decision builds on it. A lost leadership discards the whole state.
        controller.replay(decision.records)
        self._pending = future
        future.add_done_callback(_retrieve_exception)
        return future

    async def _wait_committed(self, controller: Controller, future: "asyncio.Future[int]") -> int:
        try:
            # A caller that is cancelled does not take the append back: it may still be committed.
            return await asyncio.shield(future)
        except KlammError:
            if self._controller is controller:
                # It has replayed records that were not committed: the next use takes over from the image again.
                self._controller, self._epoch = None, -1
            raise

    # Periodic work

    async def _keep_ticking(self) -> None:
        while True:
            started_ms, pause_ms = self._clock.monotonic_ms(), self._pause_ms()
            await asyncio.sleep(pause_ms / 1000)
            late_ms = self._clock.monotonic_ms() - started_ms - pause_ms
            if late_ms > LATE_MS and self._controller is not None:
                # Heartbeats that arrived meanwhile are still unread: a process that stood still must not fence the
                # brokers whose heartbeats it did not read, its own among them.
                log.warning("controller was paused, broker sessions extended", pause_ms=late_ms)
                self._controller.extend_sessions(late_ms)
            try:
                if self.active is not None:
                    await self._tick()
            except KlammError as error:
                log.debug("controller tick skipped", reason=error)

    def _pause_ms(self) -> int:
        due = self._controller.next_tick_ms() if self._controller is not None else None
        # Not more often than every 10 ms, however close the next session timeout is.
        return TICK_MS if due is None else min(max(due - self._clock.monotonic_ms(), 10), TICK_MS)

    def _tick_controller(self, controller: Controller) -> ControllerDecision[Any]:
        return controller.tick(self._clock.monotonic_ms())

    def _remove_expired_tokens(self, controller: Controller) -> ControllerDecision[bool]:
        return controller.remove_expired_tokens(self._clock.now_ms())

    async def _tick(self) -> None:
        # A step changes a bounded number of partitions; its response is true when there are more.
        while (await self.submit(self._tick_controller)).response:
            pass
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_unclean_ms:
            self._next_unclean_ms = now_ms + self._duties.unclean_interval_ms
            while (await self.submit(Controller.elect_unclean_leaders)).response:
                pass
        if now_ms >= self._next_tokens_ms:
            self._next_tokens_ms = now_ms + self._duties.token_interval_ms
            while (await self.submit(self._remove_expired_tokens)).response:
                pass
        if self._duties.balance_leaders and now_ms >= self._next_balance_ms:
            self._next_balance_ms = now_ms + self._duties.balance_interval_ms
            while (await self.submit(Controller.balance_leaders)).response:
                pass


def _split_batches(values: list[bytes], bytes_max: int) -> Iterator[list[bytes]]:
    """Split values into batches of at most `bytes_max` bytes; 0 means one batch."""
    batch: list[bytes] = []
    size = 0
    for value in values:
        if bytes_max and batch and size + len(value) > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    yield batch


def _retrieve_exception(future: "asyncio.Future[int]") -> None:
    """Keep asyncio from logging the exception of an append that no caller waits for any more."""
    if not future.cancelled():
        future.exception()

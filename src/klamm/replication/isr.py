"""ISR changes of the partitions led here: which are proposed to the controller, and what it decided.

A follower that has everything committed is proposed to join, one that has been behind for replica.lag.time.max.ms to
leave. All proposals of a moment are sent in one AlterPartition. The decision of the controller comes through the
metadata log; until then a proposal holds the high watermark back, so a lost response does no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_partition as ap
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.replication.manager import ReplicaManager
    from klamm.replication.replica import Replica

log = get_logger("replication")

AlterPartition = Callable[[ap.AlterPartitionRequest], Awaitable[ap.AlterPartitionResponse]]
"""Sends a request to the active controller; KlammError or OSError when it cannot be reached."""

PARTITIONS_PER_REQUEST_MAX = 5000
"""Bounds the time the controller needs for one request; the rest of the queue follows in the next."""
BACKOFF_MS = 50
"""Kafka's delay before an AlterPartition is sent again; doubled here for every failure in a row."""
BACKOFF_MAX_MS = 1000

_REFUSED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller decided against it, and nothing has changed."""


class IsrChanges:
    """The proposals of all leaders of a node; one request at a time."""

    def __init__(self, replicas: "ReplicaManager") -> None:
        self._replicas = replicas
        self._alter_partition: AlterPartition | None = None
        self._broker_epoch: Callable[[], int] = _no_epoch
        self._queue: dict[Replica, tuple[int, int]] = {}
        """(leader epoch, partition epoch) under which a change was proposed."""
        self._candidates: dict[tuple[Replica, int], None] = {}
        """Followers that have everything but could not join yet."""
        self._task: asyncio.Task[None] | None = None

    def start(self, alter_partition: AlterPartition, broker_epoch: Callable[[], int]) -> None:
        """Send proposals from now on; earlier ones only hold the high watermark back.

        Not constructor arguments: the link to the controller waits for metadata that is applied to the replicas, so it
        is made after them.
        """
        self._alter_partition = alter_partition
        self._broker_epoch = broker_epoch

    # Decisions

    def eligible(self, follower: int, broker_epoch: int) -> bool:
        """Whether the controller would let a broker join, by the newest metadata here."""
        broker = self._replicas.image.cluster.get(follower)
        # KIP-903: a broker that restarted without its data has a new epoch, and what it fetched before proves nothing.
        # -1 is a Fetch before v15, which has no epoch.
        return broker is not None and broker.active and broker_epoch in (-1, broker.epoch)

    def consider(self, replica: "Replica", follower: int) -> None:
        """Propose that a follower joins the ISR if it has caught up; keep it as a candidate if it cannot join yet."""
        state = replica.state
        if follower in state.isr or replica.retired:
            self._candidates.pop((replica, follower), None)
            return
        # Before the offsets are compared: a follower that joins must have what acks=all has acknowledged so far.
        self._replicas.write_before_isr_grows(replica)
        progress = state.followers.get(follower)
        # Behind what is committed: its next fetch brings it here again, so it is no candidate meanwhile.
        if progress is None or progress.log_end_offset < max(state.high_watermark, state.epoch_start_offset):
            self._candidates.pop((replica, follower), None)
            return
        if state.may_join(follower) and self.eligible(follower, progress.broker_epoch):
            self._candidates.pop((replica, follower), None)
            self._propose(replica, (*state.isr, follower), "replica caught up")
        else:
            self._candidates[replica, follower] = None

    def reconsider_candidates(self) -> None:
        """Consider the candidates again: a broker changed, or another proposal was decided."""
        for replica, follower in list(self._candidates):
            self.consider(replica, follower)

    def check_lag(self, now_ms: int) -> None:
        """Propose to remove followers that have been behind for replica.lag.time.max.ms."""
        for replica in self._replicas:
            if not replica.leads or len(replica.state.replicas) == 1:
                continue
            # Retention moves the log start without an append; without this a quiet partition would never send it.
            for followed in replica.followed:
                if followed.sent_log_start_offset != replica.log.log_start_offset:
                    followed.touch()
            state = replica.state
            end = replica.log.log_end_offset
            # First those that were only about to join: they hold the high watermark back without being in the ISR.
            if state.reconsider(end, now_ms, self.eligible):
                replica.refresh()
                self._replicas.update_leader_high_watermark(replica)
            behind = state.laggards(end, now_ms)
            if behind:
                self._propose(replica, (r for r in state.isr if r not in behind), "replica lags")
            if len(state.isr) < len(state.replicas):
                # A fetch session names only partitions that moved: a follower that has everything of a quiet one
                # names it in no request, so no fetch would bring it into the ISR.
                for followed in list(replica.followed):
                    if followed.session.follower not in state.isr:
                        self.consider(replica, followed.session.follower)

    def _propose(self, replica: "Replica", isr: Iterable[int], why: str) -> None:
        state = replica.state
        proposed = tuple(isr)
        log.debug(
            "ISR change proposed",
            partition=f"{replica.topic}-{replica.index}", before=list(state.isr), after=list(proposed), reason=why,
        )  # fmt: skip
        # Before the request is sent: the controller may decide before its response arrives, and a record committed
        # meanwhile must be on the new member too.
        state.propose(proposed)
        replica.refresh()
        self._queue[replica] = (state.leader_epoch, state.partition_epoch)
        if self._task is None and self._alter_partition is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="alter partition")

    # Requests to the controller

    async def _run(self) -> None:
        pause_ms = BACKOFF_MS
        try:
            while self._queue:
                request, proposed = self._request()
                if not proposed:
                    return
                try:
                    assert self._alter_partition is not None
                    response = await self._alter_partition(request)
                    if response.error_code:
                        raise KlammError(ErrorCode(response.error_code))
                except (KlammError, OSError) as error:
                    log.warning("AlterPartition failed, will retry", reason=error)
                else:
                    if self._apply_response(response, proposed):
                        pause_ms = BACKOFF_MS
                        continue
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, BACKOFF_MAX_MS)
        finally:
            self._task = None

    def _request(self) -> tuple[ap.AlterPartitionRequest, dict[tuple[bytes, int], "Replica"]]:
        proposed: dict[tuple[bytes, int], Replica] = {}
        topics: dict[bytes, ap.TopicData] = {}
        own_epoch = self._broker_epoch()
        for replica, epochs in list(self._queue.items()):
            state = replica.state
            # The metadata log has decided it, or has made it pointless: a newer partition epoch would be refused.
            if state.proposed is None or epochs != (state.leader_epoch, state.partition_epoch) or not replica.leads:
                del self._queue[replica]
                continue
            if len(proposed) == PARTITIONS_PER_REQUEST_MAX:
                break
            proposed[replica.topic_id, replica.index] = replica
            members = [
                ap.BrokerState(
                    broker_id=member,
                    broker_epoch=own_epoch if member == state.node_id else state.followers[member].broker_epoch,
                )
                for member in state.proposed
                if member == state.node_id or member in state.followers
            ]
            data = ap.PartitionData(
                partition_index=replica.index,
                leader_epoch=state.leader_epoch,
                new_isr=[member.broker_id for member in members],
                new_isr_with_epochs=members,
                leader_recovery_state=0,
                partition_epoch=state.partition_epoch,
            )
            topic = topics.setdefault(replica.topic_id, ap.TopicData(topic_id=replica.topic_id, partitions=[]))
            topic.partitions.append(data)
        request = ap.AlterPartitionRequest(
            broker_id=self._replicas.node_id, broker_epoch=own_epoch, topics=list(topics.values())
        )
        return request, proposed

    def _apply_response(
        self, response: ap.AlterPartitionResponse, proposed: dict[tuple[bytes, int], "Replica"]
    ) -> bool:
        """Apply the controller's response; False when a proposal must be sent again after a pause."""
        all_decided = True
        for topic in response.topics:
            for result in topic.partitions:
                replica = proposed.get((topic.topic_id, result.partition_index))
                if replica is None:
                    continue
                code = ErrorCode(result.error_code)
                if code and code not in _REFUSED:
                    # Undecided, or it refers to a newer state that is not committed and may be lost with this
                    # controller: repeat the proposal until the metadata log settles it.
                    all_decided = False
                    continue
                epochs = self._queue.pop(replica, None)
                state = replica.state
                if epochs != (state.leader_epoch, state.partition_epoch):
                    continue  # the metadata log was faster
                # Success without a newer partition epoch: the ISR was that already, and no record will follow.
                if code in _REFUSED or (not code and result.partition_epoch <= state.partition_epoch):
                    self._withdraw(replica, code)
        return all_decided

    def _withdraw(self, replica: "Replica", code: ErrorCode) -> None:
        state = replica.state
        proposed = state.proposed or ()
        state.withdraw()
        replica.refresh()
        self._replicas.update_leader_high_watermark(replica)
        for follower in proposed:
            if follower not in state.isr:
                self._candidates[replica, follower] = None
        if code:
            log.info("ISR change refused", partition=f"{replica.topic}-{replica.index}", reason=code.name)

    def stop(self) -> None:
        """Send no more proposals."""
        self._alter_partition = None
        if self._task is not None:
            self._task.cancel()


def log_isr_change(replica: "Replica", before: tuple[int, ...]) -> int:
    """Log the ISR of a partition led here if the metadata has changed it; `before` is empty for a new replica.

    Returns 1 if it has expanded, -1 if it has shrunk, 0 if it is the same.
    """
    after = replica.state.isr
    if not before or set(after) == set(before):
        return 0
    # Both in one record, when a replica is replaced: the loss is what an operator has to see.
    expanded = set(before) < set(after)
    event = "ISR expanded" if expanded else "ISR shrunk"
    log.info(event, partition=f"{replica.topic}-{replica.index}", before=list(before), after=list(after))
    return 1 if expanded else -1


def _no_epoch() -> int:
    """The broker epoch before registration."""
    return -1

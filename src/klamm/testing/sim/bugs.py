"""Bugs that are planted into the real code to see whether the simulation finds them: a test of the test.

Each takes away one rule that the cluster lives by. `planted` puts it in for a while; `hunt` looks for a seed that
catches it.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from klamm.controller import brokers, partitions
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.transactions.state import TransactionMetadata
from klamm.raft import elections
from klamm.raft.disk_log import DiskRaftLog
from klamm.raft.positions import LogPositions
from klamm.raft.quorum_state import QuorumStateFile
from klamm.raft.state import Leader
from klamm.records.control import build_end_txn_marker
from klamm.replication import fetcher
from klamm.replication.isr import IsrChanges
from klamm.replication.manager import ReplicaManager
from klamm.replication.partition import PartitionState
from klamm.server import transaction_markers
from klamm.server.handlers import fetch_follower
from klamm.storage.group_sync import GroupSync
from klamm.storage.log import Log
from klamm.storage.producers import Origin, ProducerStates
from klamm.testing.sim.run import Outcome, draw_plan, run_seed

Patches = list[tuple[Any, str, Any]]
BUGS: dict[str, Callable[[], Patches]] = {}


def _bug(name: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    def register(make: Callable[[], Patches]) -> Callable[[], Patches]:
        BUGS[name] = make
        return make

    return register


# --- replication -----------------------------------------------------------------------------------------------------


@_bug("acknowledge before the others in sync have it")
def _ack_before_isr() -> Patches:
    def on_local_append(self: PartitionState, log_end_offset: int) -> int:
        if self.is_leader:
            self.high_watermark = max(self.high_watermark, log_end_offset)
        return self.high_watermark

    return [(PartitionState, "on_local_append", on_local_append)]


@_bug("truncate to the high watermark")
def _truncate_to_high_watermark() -> Patches:
    add = fetcher.Fetcher.add

    def truncating(self: Any, replica: Any) -> None:
        if replica.log.high_watermark < replica.log.log_end_offset:
            replica.log.truncate_to(replica.log.high_watermark)
        add(self, replica)

    return [(fetcher.Fetcher, "add", truncating)]


@_bug("never compare histories")
def _never_diverge() -> Patches:
    return [(fetch_follower, "_divergence", lambda *_: None)]


@_bug("join before catching up")
def _join_early() -> Patches:
    def consider(self: Any, replica: Any, follower: int) -> None:
        state = replica.state
        progress = state.followers.get(follower)
        if follower not in state.isr and state.proposed is None and progress is not None and not replica.retired:
            progress.log_end_offset = max(progress.log_end_offset, replica.log.log_end_offset)
            if self.eligible(follower, progress.broker_epoch):
                self._propose(replica, (*state.isr, follower), "planted")

    return [(IsrChanges, "consider", consider)]


@_bug("ignore min.insync.replicas")
def _ignore_min_isr() -> Patches:
    return [(PartitionState, "required_in_sync", property(lambda _: 1))]


@_bug("a new leader takes all it has for committed")
def _commit_on_election() -> Patches:
    take_over = ReplicaManager._take_over

    def eager(self: Any, replica: Any, partition: Any) -> None:
        led = replica.state.is_leader
        take_over(self, replica, partition)
        if replica.state.is_leader and not led:
            replica.state.high_watermark = replica.log.log_end_offset
            replica.log.advance_high_watermark(replica.log.log_end_offset)

    return [(ReplicaManager, "_take_over", eager)]


@_bug("acknowledge before the sync")
def _ack_before_sync() -> Patches:
    def wait(self: GroupSync, log: Any, done: Any) -> None:
        log.recovery_point = log.log_end_offset
        assert self.call_on_loop is not None
        self.call_on_loop(lambda: done(None))

    return [(GroupSync, "wait", wait)]


# --- the quorum and its controller -----------------------------------------------------------------------------------


@_bug("vote for everybody")
def _vote_for_everybody() -> Patches:
    def can_grant(self: Any, _candidate: Any, up_to_date: bool, _pre_vote: bool) -> bool:
        return up_to_date and not isinstance(self.state, Leader)

    return [(elections.ElectingMember, "_can_grant", can_grant)]


@_bug("forget a vote")
def _forget_vote() -> Patches:
    return [
        (QuorumStateFile, "write", lambda *_: None),
        (elections.ElectingMember, "_give_vote", lambda *_: None),
    ]


@_bug("elect a quorum leader whose log is short")
def _short_log() -> Patches:
    return [(LogPositions, "is_up_to_date", lambda *_: True)]


@_bug("take one voter for a majority")
def _one_is_a_majority() -> Patches:
    return [(Leader, "high_watermark", lambda _self, persisted, current: max(persisted, current))]


@_bug("do not sync the quorum's log")
def _no_quorum_sync() -> Patches:
    return [(DiskRaftLog, "flush", lambda _: None)]


@_bug("skip the epoch check of a quorum leader")
def _skip_epoch_check() -> Patches:
    def follow_hint(self: Any, response: Any) -> bool:
        if response.leader_id is not None and response.leader_id != self.local.id:
            self._become_follower(response.epoch, response.leader_id)
        return True

    return [(elections.ElectingMember, "_follow_hint", follow_hint)]


@_bug("elect a leader that is not in sync")
def _elect_anybody() -> Patches:
    def elect(partition: Any, replicas: Any, _isr: Any, _elr: Any, acceptable: Any, *_: Any, **__: Any) -> Any:
        if acceptable(partition.leader):
            return partition.leader, False
        return next((replica for replica in reversed(replicas) if acceptable(replica)), -1), False

    return [(partitions, "_elect", elect)]


@_bug("keep a broker in sync that has lost its log")
def _keep_in_sync() -> Patches:
    def stay(*_: Any, **__: Any) -> Any:
        return iter(())

    return [(brokers, "without_broker", stay)]


# --- idempotence, transactions, groups -------------------------------------------------------------------------------


@_bug("forget sequence numbers")
def _forget_sequences() -> Patches:
    return [
        (ProducerStates, "find_duplicate", lambda *_: None),
        (ProducerStates, "_check_data", lambda *_: None),
    ]


@_bug("followers forget producers")
def _followers_forget() -> Patches:
    append = ProducerStates.append

    def forgetful(self: Any, batch: Any, origin: Origin, *args: Any, **kwargs: Any) -> Any:
        if origin is Origin.REPLICATION and not batch.is_control and not batch.is_transactional:
            return None
        return append(self, batch, origin, *args, **kwargs)

    return [(ProducerStates, "append", forgetful), (ProducerStates, "replay", lambda *_, **__: None)]


@_bug("show open transactions")
def _show_open() -> Patches:
    return [(Log, "last_stable_offset", property(lambda self: self.high_watermark))]


@_bug("show aborted transactions")
def _show_aborted() -> Patches:
    return [(Log, "aborted_transactions", lambda *_: [])]


@_bug("drop a control batch")
def _drop_control_batch() -> Patches:
    stage_own = ReplicaManager.stage_own

    def dropping(self: Any, replica: Any, batch: memoryview, *args: Any) -> int:
        if batch[22] & 0x20 and not replica.topic.startswith("__") and replica.index == 0:
            return int(replica.log.next_offset)
        return stage_own(self, replica, batch, *args)

    return [(ReplicaManager, "stage_own", dropping)]


@_bug("commit what was aborted")
def _commit_aborted() -> Patches:
    def committing(**fields: Any) -> Any:
        return build_end_txn_marker(**{**fields, "committed": True})

    return [(transaction_markers, "build_end_txn_marker", committing)]


@_bug("do not fence the producer before")
def _no_fence() -> Patches:
    def same_epoch(self: Any, timeout_ms: int, now_ms: int, **_: Any) -> Any:
        return self._begin(self.producer_id, max(self.producer_epoch, 0), -1, timeout_ms, now_ms)

    return [(TransactionMetadata, "incremented", same_epoch)]


@_bug("let a member commit that was fenced")
def _fenced_member() -> Patches:
    return [(ConsumerGroup, "check_offset_commit", lambda *_, **__: None)]


# --- hunting ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The real code with one bug in it."""
    patches = BUGS[name]()
    before = [(target, attribute, target.__dict__[attribute]) for target, attribute, _ in patches]
    for target, attribute, new in patches:
        setattr(target, attribute, new)
    try:
        yield
    finally:
        for target, attribute, old in before:
            setattr(target, attribute, old)


def run_with(name: str, seed: int) -> Outcome:
    """Run a seed with a bug planted."""
    with planted(name):
        outcome = run_seed(seed, plan=draw_plan(seed))
    outcome.story = []
    return outcome


def _task(task: tuple[str, int]) -> Outcome:
    return run_with(*task)


def hunt(name: str, seeds: Iterable[int], jobs: int = 1) -> tuple[int, str] | None:
    """The first seed that catches a bug, and how; None when none does."""
    tasks = [(name, seed) for seed in seeds]
    if jobs <= 1:
        outcomes: Iterable[Outcome] = map(_task, tasks)
        return next(((o.plan.seed, o.violation) for o in outcomes if o.violation is not None), None)
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        found = pool.imap(_task, tasks, chunksize=2)
        return next(((o.plan.seed, o.violation) for o in found if o.violation is not None), None)

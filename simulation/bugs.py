"""Bugs that are planted into the real code to see whether the simulation finds them: a test of the test.

Each takes away one rule that the cluster lives by. `plant` puts it in for a while; `hunt` looks for a seed that
catches it.
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from klamm.controller import acls, brokers, partitions
from klamm.coordinator.groups.consumer import reconcile
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.offsets import ShardOffsets
from klamm.coordinator.transactions.state import TransactionMetadata
from klamm.metadata import image_records
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.metadata_records import AccessControlEntryRecord
from klamm.raft import quorum_state
from klamm.raft.core import elections
from klamm.raft.core.leader_discovery import LeaderDiscovery
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.roles import Leader
from klamm.raft.disk_log import DiskRaftLog
from klamm.raft.quorum_state import QuorumStateFile
from klamm.records.batch import BatchView
from klamm.records.control import build_end_txn_marker
from klamm.replication import replica_fetcher
from klamm.replication.core.partition import PartitionState
from klamm.replication.isr import IsrChanges
from klamm.replication.manager import ReplicaManager
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.server.coordinators import transaction_gate, transaction_markers
from klamm.server.coordinators.transaction_coordinator import BRIEF_PAUSES_MS, TransactionCoordinator
from klamm.server.coordinators.transaction_guards import GuardKey, TransactionGuards
from klamm.server.handlers.data import fetch_follower, produce_authorized
from klamm.server.login import security as login_security
from klamm.server.requests.access.control import AccessControl
from klamm.storage import cleaner_pass, segment_scan
from klamm.storage.cleaner_pass import CleanerPass
from klamm.storage.group_sync import GroupSync
from klamm.storage.log import Log
from klamm.storage.producer_state import Origin, ProducerStates
from simulation.plan import RunPlan, draw_plan, draw_situation
from simulation.run import RunResult, run_seed

Patches = list[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class Bug:
    """A rule that is taken away."""

    make: Callable[[], Patches]
    situation: str
    """Where it does harm soon."""


BUGS: dict[str, Bug] = {}


def _bug(name: str, *, in_situation: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    def register(make: Callable[[], Patches]) -> Callable[[], Patches]:
        BUGS[name] = Bug(make, in_situation)
        return make

    return register


# --- replication -----------------------------------------------------------------------------------------------------


@_bug("acknowledge before the others in sync have it", in_situation="leaders change")
def _ack_before_isr() -> Patches:
    def on_local_append(self: PartitionState, log_end_offset: int) -> int:
        if self.is_leader:
            self.high_watermark = max(self.high_watermark, log_end_offset)
        return self.high_watermark

    return [(PartitionState, "on_local_append", on_local_append)]


@_bug("truncate to the high watermark", in_situation="leaders change")
def _truncate_to_high_watermark() -> Patches:
    add = replica_fetcher.ReplicaFetcher.add

    def truncating(self: Any, replica: Any) -> None:
        if replica.log.high_watermark < replica.log.log_end_offset:
            replica.log.truncate_to(replica.log.high_watermark)
        add(self, replica)

    return [(replica_fetcher.ReplicaFetcher, "add", truncating)]


@_bug("never compare histories", in_situation="leaders change")
def _never_diverge() -> Patches:
    return [(fetch_follower, "_divergence", lambda *_: None)]


@_bug("join before catching up", in_situation="followers fall behind")
def _join_early() -> Patches:
    def consider(self: Any, replica: Any, follower: int) -> None:
        state = replica.state
        progress = state.followers.get(follower)
        if follower not in state.isr and state.proposed is None and progress is not None and not replica.retired:
            progress.log_end_offset = max(progress.log_end_offset, replica.log.log_end_offset)
            if self.eligible(follower, progress.broker_epoch):
                self._propose(replica, (*state.isr, follower), "planted")

    return [(IsrChanges, "consider", consider)]


@_bug("ignore min.insync.replicas", in_situation="followers fall behind")
def _ignore_min_isr() -> Patches:
    return [(PartitionState, "required_in_sync", property(lambda _: 1))]


@_bug("a new leader takes all it has for committed", in_situation="leaders change")
def _commit_on_election() -> Patches:
    take_over = ReplicaManager._take_over

    def advance_at_once(self: Any, replica: Any, partition: Any) -> None:
        led = replica.state.is_leader
        take_over(self, replica, partition)
        if replica.state.is_leader and not led:
            replica.state.high_watermark = replica.log.log_end_offset
            replica.log.advance_high_watermark(replica.log.log_end_offset)

    return [(ReplicaManager, "_take_over", advance_at_once)]


@_bug("acknowledge before the sync", in_situation="the lights go out")
def _ack_before_sync() -> Patches:
    def wait(self: GroupSync, log: Any, done: Any) -> None:
        log.state.recovery_point = log.log_end_offset
        assert self.call_on_loop is not None
        self.call_on_loop(lambda: done(None))

    return [(GroupSync, "wait", wait)]


# --- the quorum and its controller -----------------------------------------------------------------------------------


@_bug("grant every vote", in_situation="the quorum is shaken")
def _vote_for_every_candidate() -> Patches:
    def can_grant(self: Any, _candidate: Any, up_to_date: bool, _pre_vote: bool) -> bool:
        return up_to_date and not isinstance(self._replica.state, Leader)

    return [(elections.Elections, "can_grant", can_grant)]


@_bug("forget a vote", in_situation="the quorum is shaken")
def _forget_vote() -> Patches:
    return [
        (QuorumStateFile, "write", lambda *_: None),
        (elections.Elections, "record_vote", lambda *_: None),
    ]


@_bug("elect a quorum leader whose log is short", in_situation="the quorum is shaken")
def _short_log() -> Patches:
    return [(LogPositions, "is_up_to_date", lambda *_: True)]


@_bug("take one voter for a majority", in_situation="the quorum is shaken")
def _one_is_a_majority() -> Patches:
    return [(Leader, "high_watermark", lambda _self, persisted, current: max(persisted, current))]


@_bug("do not sync the quorum's log", in_situation="the lights go out")
def _no_quorum_sync() -> Patches:
    return [(DiskRaftLog, "flush", lambda _: None)]


@_bug("skip the epoch check of a quorum leader", in_situation="the quorum is shaken")
def _skip_epoch_check() -> Patches:
    def learn_leader(self: Any, response: Any) -> bool:
        if response.leader_id is not None and response.leader_id != self._replica.local.id:
            self._roles.become_follower(response.epoch, response.leader_id)
        return True

    return [
        (LeaderDiscovery, "learn_leader", learn_leader),
        (LeaderDiscovery, "validate_leader", lambda *_: ErrorCode.NONE),
    ]


@_bug("elect a leader that is not in sync", in_situation="followers fall behind")
def _elect_any_replica() -> Patches:
    def elect(partition: Any, replicas: Any, _isr: Any, _elr: Any, acceptable: Any, *_: Any, **__: Any) -> Any:
        if acceptable(partition.leader):
            return partition.leader, False
        return next((replica for replica in reversed(replicas) if acceptable(replica)), -1), False

    return [(partitions, "_elect", elect)]


@_bug("keep a broker in sync that has lost its log", in_situation="one machine at a time")
def _keep_in_sync() -> Patches:
    def keep_isrs(*_: Any, **__: Any) -> Any:
        return iter(())

    return [(brokers, "remove_from_isrs", keep_isrs)]


@_bug("take the quorum's files for what was written", in_situation="damaged voters")
def _believe_damage() -> Patches:
    return [
        (segment_scan, "CHECKSUMS", False),
        (BatchView, "check_crc", lambda _: None),
        (quorum_state, "verify_checksum", lambda fields: fields),
    ]


# --- compaction ------------------------------------------------------------------------------------------------------


@_bug("forget tombstones at once", in_situation="compaction")
def _forget_tombstones() -> Patches:
    make = CleanerPass.__init__

    def drop_at_once(self: Any, disk: Any, job: Any) -> None:
        make(self, disk, replace(job, config=replace(job.config, delete_retention_ms=0)))

    return [(CleanerPass, "__init__", drop_at_once)]


@_bug("keep what a tombstone has deleted", in_situation="compaction")
def _keep_deleted() -> Patches:
    """The first round knows no keys: values stay beside their tombstones, which later rounds take away."""
    map_keys = CleanerPass.map_keys

    def forget_keys(self: Any) -> None:
        map_keys(self)
        if self._job.first_dirty_offset == 0:
            self._table[:] = bytes(len(self._table))

    return [(CleanerPass, "map_keys", forget_keys)]


@_bug("compact away the markers of transactions", in_situation="compaction")
def _drop_markers() -> Patches:
    return [(cleaner_pass, "_note_marker", lambda *_: True), *_forget_tombstones()]


# --- idempotence, transactions, groups -------------------------------------------------------------------------------


@_bug("forget sequence numbers", in_situation="leaders change")
def _forget_sequences() -> Patches:
    return [
        (ProducerStates, "find_duplicate", lambda *_: None),
        (ProducerStates, "_check_data", lambda *_: None),
    ]


@_bug("followers forget producers", in_situation="leaders change")
def _followers_forget() -> Patches:
    append = ProducerStates.append

    def forget_sequences(self: Any, batch: Any, origin: Origin, *args: Any, **kwargs: Any) -> Any:
        if origin is Origin.REPLICATION and not batch.is_control and not batch.is_transactional:
            return None
        return append(self, batch, origin, *args, **kwargs)

    return [(ProducerStates, "append", forget_sequences), (ProducerStates, "replay", lambda *_, **__: None)]


@_bug("show open transactions", in_situation="transactions")
def _show_open() -> Patches:
    return [(Log, "last_stable_offset", property(lambda self: self.high_watermark))]


@_bug("show aborted transactions", in_situation="transactions")
def _show_aborted() -> Patches:
    return [(Log, "aborted_transactions", lambda *_: [])]


@_bug("drop a control batch", in_situation="transactions")
def _drop_control_batch() -> Patches:
    stage_from_coordinator = ReplicaManager.stage_from_coordinator

    def dropping(self: Any, replica: Any, batch: memoryview, *args: Any) -> int:
        if batch[22] & 0x20 and not replica.topic.startswith("__") and replica.index == 0:
            return int(replica.log.next_offset)
        return stage_from_coordinator(self, replica, batch, *args)

    return [(ReplicaManager, "stage_from_coordinator", dropping)]


@_bug("commit what was aborted", in_situation="transactions")
def _commit_aborted() -> Patches:
    def committing(**fields: Any) -> Any:
        return build_end_txn_marker(**{**fields, "committed": True})

    return [(transaction_markers, "build_end_txn_marker", committing)]


@_bug("do not fence the producer before", in_situation="transactions")
def _no_fence() -> Patches:
    def same_epoch(self: Any, timeout_ms: int, now_ms: int, **_: Any) -> Any:
        return self._begin(self.producer_id, max(self.producer_epoch, 0), -1, timeout_ms, now_ms)

    return [(TransactionMetadata, "increment_epoch", same_epoch)]


@_bug("take the marker of the last transaction for the end of this one", in_situation="transactions without a pause")
def _older_marker_ends() -> Patches:
    def on_marker(self: TransactionGuards, key: GuardKey, *_: int) -> None:
        self.release(key)

    return [
        (TransactionGuards, "on_marker", on_marker),
        (transaction_gate, "_RETRIED", frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})),
    ]


@_bug("let batches of a transaction overtake each other", in_situation="transactions without a pause")
def _overtake() -> Patches:
    def at_once(self: Any, _producer_id: int, work: Callable[[], Awaitable[None]]) -> None:
        self._services.loop.create_task(work())

    return [(transaction_gate.TransactionGate, "spawn", at_once)]


@_bug("a batch overtakes a request whose wait has not begun", in_situation="transactions without a pause")
def _overtake_before_start() -> Patches:
    spawn = transaction_gate.TransactionGate.spawn

    def start_later(self: Any, producer_id: int, work: Callable[[], Awaitable[None]]) -> None:
        self._services.loop.call_soon(spawn, self, producer_id, work)

    return [(transaction_gate.TransactionGate, "spawn", start_later)]


@_bug("an EndTxn overtakes its AddPartitionsToTxn", in_situation="transactions without a pause")
def _end_overtakes() -> Patches:
    async def submit_and_wait(self: TransactionCoordinator, transactional_id: str, decide: Any) -> Any:
        return await self.runtime.submit_and_wait(self.runtime.partition_for(transactional_id), decide)

    async def submit_when_free(self: TransactionCoordinator, transactional_id: str, decide: Any) -> Any:
        for pause_ms in BRIEF_PAUSES_MS:
            try:
                return await self.submit_and_wait(transactional_id, decide)
            except KlammError as error:
                if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
            await asyncio.sleep(pause_ms / 1000)
        return await self.submit_and_wait(transactional_id, decide)

    return [
        (TransactionCoordinator, "submit_and_wait", submit_and_wait),
        (TransactionCoordinator, "submit_when_free", submit_when_free),
    ]


@_bug("let a member commit that was fenced", in_situation="members come and go")
def _fenced_member() -> Patches:
    return [(ConsumerGroup, "check_offset_commit", lambda *_, **__: None)]


@_bug("commit positions whatever becomes of their transaction", in_situation="transactions")
def _commit_positions() -> Patches:
    replay_marker = ShardOffsets.replay_marker

    def committing(self: Any, producer_id: int, _committed: bool) -> None:
        replay_marker(self, producer_id, True)

    return [(ShardOffsets, "replay_marker", committing)]


@_bug("give a partition that was not given back", in_situation="members come and go")
def _give_twice() -> Patches:
    compare = reconcile._compare

    def give_all(member: Any, member_epoch: int, target_epoch: int, target: Any, _is_free: Any, reads: Any) -> Any:
        return compare(member, member_epoch, target_epoch, target, lambda *_: True, reads)

    return [(reconcile, "_compare", give_all)]


# --- rights and logins -----------------------------------------------------------------------------------------------


@_bug("accept a write that is denied", in_situation="rights change")
def _accept_denied() -> Patches:
    return [(produce_authorized, "topic_denied", lambda *_, **__: False)]


@_bug("serve known Produce requests after a right is gone", in_situation="rights change")
def _keep_prefixes() -> Patches:
    return [(AccessControl, "_forget_prefixes", lambda _: None)]


@_bug("remember decisions of other ACLs", in_situation="rights change")
def _keep_decisions() -> Patches:
    update = StandardAuthorizer.update

    def keep_decisions(self: Any, changed: Any) -> None:
        decisions = dict(self._decisions)
        update(self, changed)
        self._decisions.update(decisions)

    return [(StandardAuthorizer, "update", keep_decisions)]


@_bug("acknowledge the deletion of ACLs that stay", in_situation="rights change")
def _lose_deletion() -> Patches:
    delete_acls = acls.delete_acls

    def losing(context: Any, request: Any) -> Any:
        return replace(delete_acls(context, request), records=())

    return [(acls, "delete_acls", losing)]


@_bug("remove all ACLs of a user on a resource with one of them", in_situation="rights change")
def _remove_more() -> Patches:
    remove = StandardAuthorizer._remove

    def remove_all(self: Any, entry_id: Any) -> None:
        entry = self._entries.get(entry_id)
        remove(self, entry_id)
        if entry is not None:
            same = (entry.resource_type, entry.pattern_type, entry.resource_name)
            for other in list(self._patterns.get(same, {}).get(entry.principal, ())):
                remove(self, other)

    return [(StandardAuthorizer, "_remove", remove_all)]


@_bug("leave ACLs out of snapshots", in_situation="rights change")
def _snapshots_without_acls() -> Patches:
    records_of = image_records.image_records

    def without(image: Any) -> Iterator[Any]:
        return (record for record in records_of(image) if not isinstance(record, AccessControlEntryRecord))

    return [(image_records, "image_records", without)]


@_bug("log in with a password that was changed", in_situation="rights change")
def _keep_credentials() -> Patches:
    find_keys = login_security._find_keys
    kept: dict[Any, Any] = {}

    def find_first(services: Any, mechanism: Any, tokens: Any, user: str, is_token: bool) -> Any:
        key = (id(services), user)
        if key not in kept:
            # Kept with its services: another object could get the same id.
            kept[key] = (services, find_keys(services, mechanism, tokens, user, is_token))
        return kept[key][1]

    return [(login_security, "_find_keys", find_first)]


# --- hunting ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def plant(name: str) -> Iterator[None]:
    """The real code with one bug in it."""
    patches = BUGS[name].make()
    before = [(target, attribute, target.__dict__[attribute]) for target, attribute, _ in patches]
    for target, attribute, new in patches:
        setattr(target, attribute, new)
    try:
        yield
    finally:
        for target, attribute, old in before:
            setattr(target, attribute, old)


def run_with(name: str, plan: RunPlan) -> RunResult:
    """Run a plan with a bug planted."""
    with plant(name):
        outcome = run_seed(plan.seed, plan=plan)
    outcome.story = []
    return outcome


def _task(task: tuple[str, RunPlan]) -> RunResult:
    return run_with(*task)


def hunt(name: str, seeds: Iterable[int], jobs: int = 1, *, anywhere: bool = True) -> tuple[int, str] | None:
    """The first seed that catches a bug, and how; None when none does.

    Seeds draw their plans as always; unless `anywhere`, they draw them in the situation where the bug does harm.
    """
    situation = BUGS[name].situation
    tasks = ((name, draw_plan(seed) if anywhere else draw_situation(seed, situation)) for seed in seeds)
    if jobs <= 1:
        outcomes: Iterable[RunResult] = map(_task, tasks)
        return next(((o.plan.seed, o.violation) for o in outcomes if o.violation is not None), None)
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        results = pool.imap(_task, tasks, chunksize=2)
        return next(((o.plan.seed, o.violation) for o in results if o.violation is not None), None)

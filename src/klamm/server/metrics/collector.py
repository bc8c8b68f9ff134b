"""Reads a node into a snapshot: on the loop, in slices, so that no scrape holds up requests."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.coordinator.transactions.state import ONGOING, PREPARED, TransactionMetadata
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.raft.core.roles import ElectionState, Leader, election_of
from klamm.replication import Replica
from klamm.server.cluster.lifecycle import BrokerLifecycle, BrokerState
from klamm.server.login.counts import LoginCounts
from klamm.server.metrics import limits
from klamm.server.metrics.lag.group_lag import GroupLags
from klamm.server.metrics.snapshot import (
    ApiFacts,
    GroupFacts,
    GroupPartition,
    LogDirUse,
    NodeSnapshot,
    OtlpCounts,
    PartitionFacts,
    QuotaFacts,
    RaftFacts,
)
from klamm.server.metrics.traffic import ReplicaTraffic
from klamm.telemetry.histogram import Histogram
from klamm.telemetry.request_times import ApiTimes, with_quick

if TYPE_CHECKING:
    from klamm.net import NetServer
    from klamm.server.services import Services

T = TypeVar("T")

SLICE_PARTITIONS: Final = 128
"""Replicas that are read before other work of the loop; one takes about three microseconds."""
SLICE_LAGS: Final = 32
"""Group positions; one may read an index and a header from the page cache."""
WINDOW_S: Final = 60.0
"""How often the windows of quantiles begin anew."""
STUCK_MS: Final = 60_000
"""A transaction that is open this much longer than its timeout, or whose markers take this long, is stuck."""
PRODUCE: Final = 0

_BROKER_STATES: Final = {
    BrokerState.STARTING: 1,
    BrokerState.FENCED: 2,
    BrokerState.RUNNING: 3,
    BrokerState.STOPPING: 6,
}
"""Kafka's numbers; a broker that is registered and fenced is still recovering there."""


class NodeMetrics:
    """The metrics of one node. `tick` is called about once a second, `collect` by a scrape; both on the loop."""

    def __init__(
        self,
        services: "Services",
        net: "NetServer",
        logins: LoginCounts,
        lifecycle: BrokerLifecycle | None,
        sync_seconds: deque[float],
    ) -> None:
        """`sync_seconds` are the times of syncs that were not read yet, to which threads add."""
        self._services = services
        self._net = net
        self._logins = logins
        self._times = services.request_times
        self._lifecycle = lifecycle
        self._traffic = ReplicaTraffic(services.replicas)
        self._group_lag = GroupLags(services)
        self._collecting = asyncio.Lock()
        """One scrape after the other: each tells the lags what it wants of other nodes."""
        self._sync_seconds = sync_seconds
        self._syncs = Histogram()
        self._loop_lag = Histogram()
        self._started_at = services.loop.time()
        self._marked_at = self._started_at
        self._busy: deque[tuple[float, float]] = deque(maxlen=int(WINDOW_S))
        """(wall, CPU) seconds of the loop's thread at the last ticks."""
        self._raft_ends: deque[tuple[float, int, bool]] = deque(maxlen=30)
        self._quick_marks: dict[int, tuple[int, int]] = {}
        """By API: its requests on the quick path at the last two marks."""
        self._version = _klamm_version()
        self.unclean_elections = 0
        self.otlp: OtlpCounts | None = None
        """Of the export by OTLP, where there is one."""
        services.metadata.add_publisher(self)

    def on_metadata_update(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Count the unclean elections that this node decided as the active controller."""
        if self._services.controllers.runtime.active is None:
            return
        for change in delta.topics_changed.values():
            for index, partition in change.partitions.items():
                before = change.before.partitions.get(index) if change.before is not None else None
                # Only an unclean election starts a recovery.
                if before is not None and partition.leader_recovery_state and not before.leader_recovery_state:
                    self.unclean_elections += 1

    def tick(self, late_s: float) -> None:
        """Record how late the loop called, and what threads and the quorum have done since the last tick."""
        self._loop_lag.observe(max(late_s, 0.0))
        self._drain_syncs()
        now = self._services.loop.time()
        self._busy.append((now, time.thread_time()))
        core = self._services.raft.core
        self._raft_ends.append((now, core.log.end_offset, isinstance(core.state, Leader)))
        if now - self._marked_at >= WINDOW_S:
            self._marked_at = now
            self._times.mark()
            self._times.turns.slowest = 0.0
            for key, times in self._times.by_key.items():
                quick = self._count_quick_produces() if key == PRODUCE else times.quick
                self._quick_marks[key] = (self._quick_marks.get(key, (0, 0))[1], quick)

    def _count_quick_produces(self) -> int:
        return self._traffic.removed.quick_produces + sum(replica.quick_produces for replica in self._services.replicas)

    def close(self) -> None:
        """Ask other nodes no more."""
        self._group_lag.close()

    def _drain_syncs(self) -> None:
        while self._sync_seconds:
            self._syncs.observe(self._sync_seconds.popleft())

    # Collecting

    async def collect(self) -> NodeSnapshot:
        """Return the state of the node; other work of the loop is done between slices."""
        async with self._collecting:
            return await self._collect()

    async def _collect(self) -> NodeSnapshot:
        services, replicas = self._services, self._services.replicas
        self._drain_syncs()
        snapshot = NodeSnapshot(
            node_id=services.node_id,
            cluster_id=services.cluster_id,
            version=self._version,
            now_ms=services.clock.now_ms(),
            uptime_s=services.loop.time() - self._started_at,
            is_broker=services.config.is_broker,
            broker_state=_BROKER_STATES[self._lifecycle.state] if self._lifecycle is not None else 0,
            image=services.image,
            removed=self._traffic.removed,
            offline_replicas=len(replicas.offline),
            replication_bytes_in=replicas.replication_bytes_in,
            replication_bytes_out=replicas.replication_bytes_out,
            isr_shrinks=replicas.isr_shrinks,
            isr_expands=replicas.isr_expands,
            turns=self._times.turns.turns.read(),
            slowest_turn=self._times.turns.slowest,
            loop_lag=self._loop_lag.read(),
            loop_busy_share=self._busy_share(),
            syncs=self._syncs.read(),
            connections=self._net.connections_by_listener(),
            connection_limit=self._net.limits.connections,
            refused_connections=dict(self._net.refused),
            logins_succeeded=dict(self._logins.succeeded),
            logins_failed=dict(self._logins.failed),
            logins_evicted=self._logins.evicted,
            tls_failures=dict(self._net.tls_failures),
            throttled_requests=dict(services.quotas.throttled_requests),
            throttle_ms=dict(services.quotas.throttle_ms),
            fetch_sessions=len(services.sessions),
            raft=self._raft_facts(),
            is_active_controller=services.controllers.runtime.active is not None,
            unclean_elections=self.unclean_elections,
            otlp=self.otlp,
            log_dirs=[LogDirUse(log_dir.path, log_dir.failure is None, -1, -1) for log_dir in services.logs.dirs],
        )
        cleaner = services.logs.cleaner
        snapshot.cleaner_running, snapshot.cleaner_damaged = cleaner.running_count, cleaner.damaged_count
        snapshot.cleaner_passes, snapshot.cleaner_max_dirty_percent = cleaner.passes, cleaner.max_dirty_ratio * 100
        self._add_quotas(snapshot)
        async for channel in _in_slices(list(self._net.channels()), SLICE_PARTITIONS):
            snapshot.queued_requests += channel.count_queued()
        audit = services.access.audit_topic if services.access is not None else None
        if audit is not None:
            snapshot.audit_dropped, snapshot.audit_queued = audit.queue.dropped_total, len(audit.queue)
        if snapshot.is_active_controller and len(snapshot.image.topics) > limits.TOPICS_MAX:
            snapshot.omit("topics", len(snapshot.image.topics) - limits.TOPICS_MAX)
        quick_produces = await self._add_partitions(snapshot)
        self._add_apis(snapshot, quick_produces)
        await self._add_groups(snapshot)
        await self._add_transactions(snapshot)
        self._group_lag.refresh()
        return snapshot

    def _busy_share(self) -> float:
        if len(self._busy) < 2:
            return 0.0
        (wall_before, cpu_before), (wall, cpu) = self._busy[0], self._busy[-1]
        return min((cpu - cpu_before) / max(wall - wall_before, 1e-9), 1.0)

    def _raft_facts(self) -> RaftFacts:
        core = self._services.raft.core
        election = election_of(core.state)
        facts = RaftFacts(
            role=core.state.role.value,
            leader=-1 if election.leader_id is None else election.leader_id,
            # As Kafka: a leader has voted for itself, though its state does not keep the vote.
            vote=core.local.id if isinstance(core.state, Leader) else _vote_of(election),
            epoch=core.epoch,
            high_watermark=core.high_watermark,
            log_end_offset=core.log.end_offset,
            voters=len(core.voters.ids),
            observers=len(core.state.observers) if isinstance(core.state, Leader) else 0,
            commit_seconds=self._services.raft.commit_times.read(),
        )
        if core.local.id not in core.voters.ids:
            facts.role = "observer"
        if len(self._raft_ends) > 1:
            (began, first, led), (now, last, leads) = self._raft_ends[0], self._raft_ends[-1]
            rate = max(last - first, 0) / max(now - began, 1e-9)
            if led and leads:
                facts.append_rate = rate
            elif not led and not leads:
                facts.fetch_rate = rate
        return facts

    def _add_quotas(self, snapshot: NodeSnapshot) -> None:
        for entity, quotas in snapshot.image.client_quotas.items():
            parts = {kind: name if name is not None else "<default>" for kind, name in entity.parts}
            for kind, limit in quotas.items():
                if len(snapshot.quotas) >= limits.QUOTAS_MAX:
                    snapshot.omit("quotas")
                    continue
                snapshot.quotas.append(
                    QuotaFacts(parts.get("user", ""), parts.get("client-id", ""), parts.get("ip", ""), kind, limit)
                )

        clock_ms = self._services.clock.monotonic_ms()
        for usage in self._services.quotas.clients.usage(clock_ms):
            if len(snapshot.quota_usage) < limits.QUOTAS_MAX:
                snapshot.quota_usage.append(usage)
            else:
                snapshot.omit("quota usage")

    def _add_apis(self, snapshot: NodeSnapshot, quick_produces: int) -> None:
        turns = self._times.turns
        for key, times in self._times.by_key.items():
            quick = quick_produces if key == PRODUCE else times.quick
            if quick or any(times.local.counts):
                shape = turns.writes if key == PRODUCE else turns.turns
                recent_quick = quick - self._quick_marks.get(key, (0, 0))[0]
                snapshot.apis.append(_api_facts(times, quick, recent_quick, shape))

    async def _add_partitions(self, snapshot: NodeSnapshot) -> int:
        """Add the replicas; return how many Produce requests took the quick path."""
        quick_produces = self._traffic.removed.quick_produces
        # A copy: replicas may come and go between slices. Not by _in_slices: a call for each of ten thousand counts.
        replicas = list(self._services.replicas)
        for start in range(0, len(replicas), SLICE_PARTITIONS):
            for replica in replicas[start : start + SLICE_PARTITIONS]:
                quick_produces += replica.quick_produces
                snapshot.offline_replicas += replica.log.offline
                snapshot.delayed_fetches += len(replica.delayed_fetches)
                snapshot.delayed_produces += len(replica.acknowledgements.until_committed)
                if not replica.leads:
                    missing = replica.leader_high_watermark - replica.log.log_end_offset
                    snapshot.max_fetcher_lag = max(snapshot.max_fetcher_lag, missing)
                elif replica.state.followers:
                    end = replica.log.log_end_offset
                    behind = max(end - max(progress.log_end_offset, 0) for progress in replica.state.followers.values())
                    snapshot.max_replica_lag = max(snapshot.max_replica_lag, behind)
                facts = self._partition_facts(replica)
                if len(snapshot.partitions) < limits.PARTITIONS_MAX:
                    snapshot.partitions.append(facts)
                else:
                    snapshot.omit_partition(facts)
            await asyncio.sleep(0)
        return quick_produces

    def _partition_facts(self, replica: Replica) -> PartitionFacts:
        state, log = replica.state, replica.log
        offsets = log.state
        records_in, bytes_in = self._traffic.read(replica)
        return PartitionFacts(
            replica.topic,
            replica.index,
            replica.leads,
            state.leader,
            bool(state.replicas) and state.replicas[0] == state.leader,
            len(state.replicas),
            len(state.isr),
            replica.min_insync_replicas,
            offsets.log_start_offset,
            offsets.log_end_offset,
            offsets.high_watermark,
            log.size_bytes,
            len(log.segments),
            records_in,
            bytes_in,
            replica.bytes_out,
            replica.produces + replica.quick_produces,
            replica.fetches,
            replica.failed_produces,
            replica.failed_fetches,
            len(log.producers.entries),
            log.producers.open_transaction_count,
        )

    async def _add_groups(self, snapshot: NodeSnapshot) -> None:
        runtime = self._services.coordinators.groups
        positions = 0
        for index in runtime.active:
            if index not in runtime.active:
                continue  # unloaded between two slices
            shard = runtime.shard(index)
            async for group in _in_slices(list(shard.groups.values()), SLICE_PARTITIONS):
                state = group.state_name
                snapshot.group_states[state] = snapshot.group_states.get(state, 0) + 1
                if len(snapshot.groups) >= limits.GROUPS_MAX:
                    snapshot.omit("groups")
                    continue
                offsets_by_topic = shard.offsets.of_group(group.group_id)
                count = sum(map(len, offsets_by_topic.values()))
                partitions: list[GroupPartition] = []
                if positions + count > limits.GROUP_PARTITIONS_MAX:
                    # All of the group: sums over a part of its partitions would be wrong.
                    snapshot.omit("group positions", count)
                else:
                    positions += count
                    committed = [
                        (topic, partition, position.offset)
                        for topic, offsets in offsets_by_topic.items()
                        for partition, position in offsets.items()
                    ]
                    async for topic, partition, offset in _in_slices(committed, SLICE_LAGS):
                        lag = self._group_lag.find(topic, partition, offset, snapshot.now_ms)
                        partitions.append(GroupPartition(topic, partition, offset, lag.records, lag.seconds))
                members: Any = getattr(group, "members", ())
                snapshot.groups.append(GroupFacts(group.group_id, group.kind, state, len(members), partitions))

    async def _add_transactions(self, snapshot: NodeSnapshot) -> None:
        runtime = self._services.coordinators.transactions.runtime
        for index in runtime.active:
            if index not in runtime.active:
                continue
            async for transaction in _in_slices(list(runtime.shard(index)), SLICE_PARTITIONS):
                snapshot.transactional_ids += 1
                _add_transaction(snapshot, transaction)


def _vote_of(election: ElectionState) -> int:
    return -1 if election.voted is None else election.voted.id


def _add_transaction(snapshot: NodeSnapshot, transaction: TransactionMetadata) -> None:
    if transaction.state is not ONGOING and transaction.state not in PREPARED:
        return
    snapshot.transactions_open += 1
    age_ms = snapshot.now_ms - transaction.start_timestamp_ms if transaction.start_timestamp_ms >= 0 else 0
    snapshot.oldest_transaction_s = max(snapshot.oldest_transaction_s, age_ms / 1000)
    if transaction.state is ONGOING:
        stuck = age_ms > transaction.timeout_ms + STUCK_MS
    else:
        stuck = snapshot.now_ms - transaction.last_update_timestamp_ms > STUCK_MS
    snapshot.transactions_stuck += stuck


def _api_facts(times: ApiTimes, quick: int, recent_quick: int, shape: Histogram) -> ApiFacts:
    phases = {}
    for phase, histogram in (
        ("queue", times.queue), ("local", times.local), ("remote", times.remote), ("send", times.send),
    ):  # fmt: skip
        ever, recent = histogram.read(), histogram.recent()
        if phase == "local":
            ever = with_quick(ever, quick, shape.read())
            recent = with_quick(recent, recent_quick, shape.recent())
        phases[phase] = (ever, recent)
    ever, recent = phases["local"]
    later, recent_later = times.total.read(), times.total.recent()
    # What was answered at once took as long as its handler; the others have a time of their own.
    total = with_quick(later, max(ever.count - later.count, 0), ever)
    recent_total = with_quick(recent_later, max(recent.count - recent_later.count, 0), recent)
    return ApiFacts(times.name, ever.count, dict(times.errors), phases, (total, recent_total))


async def _in_slices(items: Iterable[T], size: int) -> AsyncIterator[T]:
    """Yield items, with other work of the loop after every `size` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)


def _klamm_version() -> str:
    try:
        return version("klamm")
    except PackageNotFoundError:
        return "unknown"

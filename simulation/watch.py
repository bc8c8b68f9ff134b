"""The invariants that are looked at after every event: what the nodes themselves believe, compared with each other.

Only the node that has just run is looked at, and only what changed in it is compared; what is known of the others comes
from their own turns.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulation.cluster import Machine, SimCluster
from simulation.history import History
from simulation.ledger import Ledger, Place
from simulation.rights import RightsModel

Seen = tuple[int, int, int, int, bool]
"""What is compared of a replica: leader epoch, high watermark, end, start, whether it leads."""


class InvariantWatch:
    """Looks at every node after each of its events."""

    def __init__(self, cluster: SimCluster, ledger: Ledger, violate: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self._violate = violate
        self.quorum_leaders: dict[int, str] = {}
        """Quorum epoch -> who led in it."""
        self.partition_leaders: dict[tuple[bytes, int, int], str] = {}
        """(topic id, partition, leader epoch) -> who led in it."""
        self.metadata: dict[int, int] = {}
        """Offset of the metadata log -> epoch of the record, as applied by the first node."""
        self._metadata_sums: dict[int, int] = {}
        """First offset of a batch of the metadata log -> checksum of its epoch and values."""
        self._subscribed: set[Any] = set()
        """Quorum members whose metadata is being compared."""
        self.committed: dict[tuple[bytes, int], int] = {}
        self._committed_epochs: dict[tuple[bytes, int], tuple[int, list[tuple[int, int]]]] = {}
        """(latest epoch, all epochs) of the leader's log when the high watermark last moved."""
        self._cut: dict[Any, list[tuple[int, int]]] = {}
        """Epochs of a log as they were before it was cut."""
        self.excused: set[int] = set()
        """Nodes whose disk has lost something that was promised to be lost at worst: unsynced writes, a wiped disk."""
        self.wiped: set[int] = set()
        """Those of them whose disk has lost what was synced."""
        self.history = History(cluster.loop)
        self.compacts = False
        """Whether compaction works within the run, so that it matters what replicas were given."""
        self.rights: RightsModel | None = None
        """Follows the metadata log of a secured cluster."""
        self._quorum: dict[str, tuple[Any, ...]] = {}
        self._replicas: dict[str, dict[Any, Seen]] = {}

    def record_loss(self, node: int) -> None:
        """A disk has lost what it had synced."""
        self.excused.add(node)
        self.wiped.add(node)
        self.history.forget(node)

    def on_all_in_sync(self) -> None:
        """All replicas are in sync again."""
        self.excused.clear()
        self.wiped.clear()

    def attach(self, machine: Machine) -> None:
        """InvariantWatch the process that runs on a machine now."""
        assert machine.process is not None
        self._quorum.pop(machine.name, None)
        self._replicas[machine.name] = {}
        process = machine.process

        def probe() -> None:
            if process.alive:
                self._check_node(machine)

        process.probe = probe

    def _check_node(self, machine: Machine) -> None:
        node = machine.node
        services = getattr(node, "services", None)
        if services is None:
            return
        self._check_quorum(machine, services)
        known = self._replicas[machine.name]
        for replica in services.replicas:
            log = replica.log
            state = replica.state
            now = (
                state.leader_epoch,
                state.high_watermark,
                log.log_end_offset,
                log.log_start_offset,
                replica.leads,
            )
            before = known.get(replica)
            if before != now:
                known[replica] = now
                if before is None:
                    self._subscribe_to_cuts(log)
                    self._subscribe_to_commits(replica)
                if self.compacts:
                    self.history.update(machine, replica, None if before is None else before[2], log.log_end_offset)
                self._check_replica(machine, replica, before, now)

    # --- the quorum --------------------------------------------------------------------------------------------------

    def _check_quorum(self, machine: Machine, services: Any) -> None:
        core = getattr(services.raft, "core", None)
        if core is None:
            return
        if services.raft not in self._subscribed:
            self._subscribed.add(services.raft)
            self._subscribe_to_metadata(machine, services.raft)
        provenance = services.metadata.image.provenance
        now = (core.epoch, core.is_leader, core.high_watermark, provenance.offset)
        before = self._quorum.get(machine.name)
        if now == before:
            return
        self._quorum[machine.name] = now
        epoch, leads, high_watermark, applied = now
        if leads:
            leader = self.quorum_leaders.setdefault(epoch, machine.name)
            if leader != machine.name:
                self._violate(f"1: {leader} and {machine.name} both lead the quorum in epoch {epoch}")
        if before is not None:
            if epoch < before[0]:
                self._violate(f"2: node {machine.id} went back from quorum epoch {before[0]} to {epoch}")
            if high_watermark < before[2]:
                self._violate(f"3: node {machine.id} took the quorum's high watermark back to {high_watermark}")
            if applied < before[3]:
                self._violate(f"16: node {machine.id} went back from metadata offset {before[3]} to {applied}")
        if applied >= 0:
            epoch = provenance.epoch
            other = self.metadata.setdefault(applied, epoch)
            if other != epoch:
                self._violate(
                    f"16: node {machine.id} applied metadata offset {applied} of epoch {epoch}, another one had it of"
                    f" epoch {other}"
                )

    def _subscribe_to_metadata(self, machine: Machine, raft: Any) -> None:
        """Be there when a node applies metadata: it is the same everywhere, to the last bit."""
        listener = raft._listener
        on_commit = listener.on_commit

        def check_batch(first_offset: int, epoch: int, values: list[bytes], append_time_ms: int) -> None:
            checksum = zlib.crc32(b"".join(values), epoch)
            if self._metadata_sums.setdefault(first_offset, checksum) != checksum:
                self._violate(f"16: node {machine.id} applied something else at metadata offset {first_offset}")
            if self.rights is not None:
                self.rights.follow(first_offset, values)
            on_commit(first_offset, epoch, values, append_time_ms)

        listener.on_commit = check_batch

    # --- partitions --------------------------------------------------------------------------------------------------

    def _check_replica(self, machine: Machine, replica: Any, before: Seen | None, now: Seen) -> None:
        epoch, high_watermark, end, start, leads = now
        key = (replica.topic_id, replica.index)
        name = f"{replica.topic}-{replica.index}"
        if start > max(high_watermark, replica.log.high_watermark):
            self._violate(f"15: {name} on node {machine.id} starts at {start}, beyond the high watermark")
        if high_watermark > end:
            self._violate(f"3: {name} on node {machine.id} ends at {end}, before its high watermark {high_watermark}")
        committed = self.committed.get(key, 0)
        if before is not None:
            if epoch < before[0]:
                self._violate(f"2: {name} on node {machine.id} went back from epoch {before[0]} to {epoch}")
            if end < before[2] and start <= end < committed and self._was_committed(key, replica.log, end):
                self._violate(
                    f"5: {name} on node {machine.id} was cut from {before[2]} to {end}, but was committed up to"
                    f" {committed}"
                )
            if leads and before[4] and epoch == before[0] and high_watermark < before[1]:
                self._violate(f"3: the leader of {name} took the high watermark back to {high_watermark}")
        if not leads:
            if before is not None and before[4] and high_watermark > committed:
                self._commit(key, replica, high_watermark)  # it committed and lost its leadership in one event
            return
        other = self.partition_leaders.setdefault((*key, epoch), machine.name)
        if other != machine.name:
            self._violate(f"1: {other} and {machine.name} both lead {name} in epoch {epoch}")
        if (before is None or not before[4] or before[0] != epoch) and end < committed:
            self._violate(
                f"4: node {machine.id} leads {name} in epoch {epoch} and ends at {end}, but {committed} were committed"
            )
        if high_watermark > committed:
            if before is None:
                self._check_commit(replica, high_watermark)
            self._commit(key, replica, high_watermark)
            self._check_isr(replica, name, high_watermark)

    def _commit(self, key: tuple[bytes, int], replica: Any, high_watermark: int) -> None:
        self.committed[key] = high_watermark
        latest = replica.log.leader_epochs.latest
        if self._committed_epochs.get(key, (-1, []))[0] != latest:
            self._committed_epochs[key] = (latest, replica.log.leader_epochs.entries())
        place: Place = (replica.topic, replica.index)
        self.ledger.committed[place] = max(self.ledger.committed.get(place, 0), high_watermark)

    def _subscribe_to_cuts(self, log: Any) -> None:
        listener = log.listener

        def before_truncate(state: Any) -> None:
            self._cut[log] = log.leader_epochs.entries()
            listener.before_truncate(state)

        log.listener = replace(listener, before_truncate=before_truncate)

    def _subscribe_to_commits(self, replica: Any) -> None:
        """Be there when the high watermark moves.

        After the event would be too late: it may bring two changes of who is in sync (a follower joins, another image
        says it has left again), and what the leader commits between the two must be judged by the first.
        """
        log = replica.log
        advance, advance_to_end = log.advance_high_watermark, log.advance_to_end

        def check_advance(offset: int) -> int:
            self._check_commit(replica, min(offset, log.log_end_offset))
            return int(advance(offset))

        def check_advance_to_end() -> int:
            self._check_commit(replica, log.log_end_offset)
            return int(advance_to_end())

        log.advance_high_watermark, log.advance_to_end = check_advance, check_advance_to_end

    def _check_commit(self, replica: Any, high_watermark: int) -> None:
        """A leader commits only while as many are in sync as the topic asks for, and all of them said they have it."""
        state = replica.state
        if not replica.leads or high_watermark <= self.committed.get((replica.topic_id, replica.index), 0):
            return
        name = f"{replica.topic}-{replica.index}"
        needed = min(replica.settings.min_insync_replicas, len(state.replicas))
        if len(state.isr) < needed:
            self._violate(
                f"6: {name} commits up to {high_watermark} with only {list(state.isr)} in sync, where {needed} are"
                " needed"
            )
        behind = [r for r in state.isr if r in state.followers and state.followers[r].log_end_offset < high_watermark]
        if behind:
            self._violate(f"6: {name} commits up to {high_watermark}, which {behind}, in sync, have not asked beyond")

    def _was_committed(self, key: tuple[bytes, int], log: Any, offset: int) -> bool:
        """Whether the record that was cut away is the one that was committed, not one of a leader that lost."""
        return epoch_at(self._cut.get(log, []), offset) == epoch_at(self._committed_epochs[key][1], offset)

    def _check_isr(self, replica: Any, name: str, high_watermark: int) -> None:
        """What is committed lies in the logs of all who are in sync."""
        for node_id in replica.state.isr:
            machine = self.cluster.find_registered(node_id)
            if machine is None or machine.node is None or node_id in self.excused or not machine.running:
                continue
            services = getattr(machine.node, "services", None)
            other = services.replicas.find_by_id(replica.topic_id, replica.index) if services is not None else None
            if other is not None and other.log.log_end_offset < high_watermark:
                self._violate(
                    f"3: {name} is committed up to {high_watermark}, but node {node_id}, which is in sync, ends at"
                    f" {other.log.log_end_offset}"
                )


def epoch_at(entries: list[tuple[int, int]], offset: int) -> int:
    """The leader epoch of the record at an offset."""
    return next((epoch for epoch, start in reversed(entries) if start <= offset), -1)

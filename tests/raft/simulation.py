"""A whole quorum in memory under one seed: clock, network and disks that lose, delay, reorder and crash.

The nodes run the real core; `SimNode` is a driver in miniature. After every event the invariants of `Cluster.check`
must hold.
"""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

from klamm.model.errors import ErrorCode, KlammError
from klamm.raft.core.events import (
    AppendEntry,
    Persisted,
    QuorumTimeouts,
    Ready,
    Received,
    Resign,
    SnapshotTaken,
    Truncate,
)
from klamm.raft.core.log_positions import LogPositions
from klamm.raft.core.messages import (
    Entry,
    OffsetAndEpoch,
    RaftFetchResponse,
    RaftFetchSnapshotResponse,
    RaftMessage,
    RaftVoteRequest,
    RaftVoteResponse,
)
from klamm.raft.core.quorum import ReplicaKey, Voter, VoterSet
from klamm.raft.core.raft import RaftCore
from klamm.raft.core.roles import ElectionState, Role
from klamm.raft.core.voter_history import VoterChange, VoterConfiguration, VoterHistory

TIMEOUTS = QuorumTimeouts(
    election_timeout_ms=150,
    fetch_timeout_ms=300,
    request_timeout_ms=100,
    fetch_max_wait_ms=50,
    snapshot_max_bytes=64,
)


class SimDisk:
    """What a node would find after a crash: synced entries, the last vote, its snapshots."""

    def __init__(self) -> None:
        self.election = ElectionState()
        self.entries: list[Entry] = []
        self.synced = 0
        self.base = OffsetAndEpoch(0, 0)
        self.snapshots: dict[OffsetAndEpoch, list[str]] = {}
        self.named: dict[OffsetAndEpoch, VoterConfiguration] = {}
        self.partial = b""

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.base.offset

    @property
    def newest(self) -> OffsetAndEpoch | None:
        return max(self.snapshots, default=None)

    def truncate_to(self, offset: int) -> None:
        while self.entries and self.entries[-1].base_offset >= offset:
            self.entries.pop()
        self.synced = min(self.synced, self.end_offset)

    def crash(self) -> None:
        self.truncate_to(self.synced)
        self.partial = b""

    def positions(self) -> LogPositions:
        epochs: list[tuple[int, int]] = []
        for entry in self.entries:
            if not epochs or entry.epoch > epochs[-1][0]:
                epochs.append((entry.epoch, entry.base_offset))
        return LogPositions(self.base, self.end_offset, tuple(epochs), self.newest)

    def voter_history(self, given: VoterConfiguration) -> VoterHistory:
        history = VoterHistory(self.named.get(self.base, given), self.base.offset - 1)
        for entry in self.entries:
            if entry.voter_change is not None:
                history.append(entry.base_offset, entry.voter_change)
        return history


class SimNode:
    """The driver's duties, with every disk operation taking its time."""

    def __init__(self, cluster: "Cluster", key: ReplicaKey) -> None:
        self.cluster = cluster
        self.key = key
        self.id = key.id
        self.disk = SimDisk()
        self.core: RaftCore | None = None
        self.life = 0
        self.epoch_seen = 0

    def start(self) -> None:
        disk, cluster = self.disk, self.cluster
        self.life += 1
        self.state: list[str] = list(disk.snapshots[disk.newest]) if disk.newest else []
        self.applied = disk.newest.offset if disk.newest else 0
        self.hw_seen = self.applied
        self.electing = self.syncing = False
        self.truncations = 0
        self.core = RaftCore(
            self.key,
            cluster.voters,
            disk.positions(),
            election=disk.election,
            random=Random(cluster.random.random()),
            now_ms=cluster.now,
            timeouts=TIMEOUTS,
            voter_history=disk.voter_history(cluster.given_to(self)),
            bootstrap=(1,) if cluster.dynamic and self.id != 1 else (),
        )
        self.pump()

    def crash(self) -> None:
        self.core = None
        self.life += 1
        self.disk.crash()

    def later(self, delay: int, action: Callable[[], None]) -> None:
        """Do something unless the node crashes before."""
        life = self.life
        self.cluster.at(delay, lambda: action() if self.life == life else None)

    def step(self, event: Received | Persisted | SnapshotTaken | Resign) -> None:
        assert self.core is not None
        self.core.step(event, self.cluster.now)
        self.pump()

    def tick(self) -> None:
        if self.core is not None and self.core.deadline_ms <= self.cluster.now:
            self.core.tick(self.cluster.now)
            self.pump()

    def pump(self) -> None:
        core = self.core
        assert core is not None
        while not self.electing and not (self.syncing and self.truncations != core.log.truncations):
            ready = core.ready()
            if ready is None:
                break
            if ready.election is not None:
                self.electing = True
                self.later(self.cluster.disk_delay(), lambda ready=ready: self.elected(ready))
                break
            self.act(ready)
        self.later(max(core.deadline_ms - self.cluster.now, 1), self.tick)

    def elected(self, ready: Ready) -> None:
        self.electing = False
        assert ready.election is not None
        self.disk.election = ready.election
        self.act(ready)
        self.pump()
        if self.cluster.random.random() < self.cluster.crashes_after_voting:
            self.crash()
            self.cluster.at(self.cluster.random.choice((1, 5, 50)), lambda: self.core or self.start())

    def act(self, ready: Ready) -> None:
        for operation in ready.log:
            match operation:
                case AppendEntry(entry):
                    self.disk.entries.append(entry)
                case Truncate(end_offset):
                    self.truncations += 1
                    self.disk.truncate_to(end_offset)
                case _:
                    self.disk.partial = self.disk.partial[: operation.position] + operation.chunk
                    if operation.complete:
                        self.install(operation.snapshot_id)
        self.sync()
        for message in ready.messages:
            self.cluster.send(self.filled(message))
        self.apply(ready.high_watermark)

    def install(self, snapshot_id: OffsetAndEpoch) -> None:
        disk = self.disk
        self.truncations += 1
        disk.snapshots[snapshot_id] = json.loads(disk.partial)
        disk.named[snapshot_id] = self.cluster.configuration_at(snapshot_id.offset)
        self.core.install_snapshot(snapshot_id, disk.named[snapshot_id])
        disk.entries.clear()
        disk.base = snapshot_id
        disk.synced = snapshot_id.offset
        self.state, self.applied = list(disk.snapshots[snapshot_id]), snapshot_id.offset
        self.cluster.check_state(self)

    def sync(self) -> None:
        assert self.core is not None
        end = self.disk.end_offset
        if not self.syncing and self.core.log.persisted_offset < end:
            self.syncing = True
            self.later(self.cluster.disk_delay(), lambda: self.synced(end))

    def synced(self, end: int) -> None:
        assert self.core is not None
        self.syncing = False
        self.disk.synced = max(self.disk.synced, min(end, self.disk.end_offset))
        if self.truncations == self.core.log.truncations:
            self.step(Persisted(end))
        else:
            self.pump()
        self.sync()

    def apply(self, high_watermark: int) -> None:
        for entry in self.disk.entries:
            if self.applied <= entry.base_offset and entry.end_offset <= high_watermark:
                assert self.applied == entry.base_offset
                self.applied = entry.end_offset
                self.cluster.committed_at(entry)
                if isinstance(entry.payload, tuple):
                    self.state += [value.decode() for value in entry.payload]

    def filled(self, message: RaftMessage) -> RaftMessage:
        body = message.body
        if isinstance(body, RaftFetchResponse) and body.read_from is not None:
            entries = [entry for entry in self.disk.entries if entry.base_offset >= body.read_from]
            body = replace(body, entries=tuple(entries[: self.cluster.random.randint(1, 5)]))
        elif isinstance(body, RaftFetchSnapshotResponse) and body.snapshot_id is not None:
            values = self.disk.snapshots.get(body.snapshot_id)
            if values is None:
                body = replace(body, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            else:
                data = json.dumps(values).encode()
                chunk = data[body.position : body.position + body.max_bytes]
                body = replace(body, size=len(data), chunk=chunk)
        return replace(message, body=body)

    def take_snapshot(self) -> None:
        core, disk = self.core, self.disk
        if core is None or self.electing or self.applied == 0 or self.applied > disk.synced:
            return
        snapshot_id = OffsetAndEpoch(self.applied, core.log.epoch_at(self.applied - 1))
        if disk.newest is not None and snapshot_id.offset <= disk.newest.offset:
            return
        base = disk.newest or disk.base
        disk.snapshots[snapshot_id] = list(self.state)
        disk.named[snapshot_id] = core.voter_history.at(snapshot_id.offset)
        for old in [known for known in disk.snapshots if known < base]:
            del disk.snapshots[old]
        if base.offset > disk.base.offset:
            disk.entries = [entry for entry in disk.entries if entry.base_offset >= base.offset]
            disk.base = base
        self.step(SnapshotTaken(snapshot_id, base))


class Cluster:
    """Nodes, their network, and what must hold for all of them together."""

    def __init__(
        self, seed: int, voters: int, observers: int = 0, *, dynamic: bool = False, raised: bool = False
    ) -> None:
        self.random = Random(seed)
        self.now = 0
        self.voters = VoterSet.of_ids(*range(1, voters + 1))
        self.dynamic = dynamic
        directories = {i: bytes(15) + bytes([i if raised else 0]) for i in range(1, voters + observers + 1)}
        self.nodes = {i: SimNode(self, ReplicaKey(i, directory)) for i, directory in directories.items()}
        self.loss = 0.0
        self.crashes_after_voting = self.random.choice((0.0, 0.1, 0.5))
        self.cut: set[tuple[int, int]] = set()
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.sequence = itertools.count()
        self.values = itertools.count()
        self.leaders: dict[int, int] = {}
        self.log: dict[int, tuple[int, object]] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.vote_requests: dict[tuple[int, int, int], RaftVoteRequest] = {}
        for node in self.nodes.values():
            node.start()

    def given_to(self, node: SimNode) -> VoterConfiguration:
        """What a node's folder was formatted with: the first voters have each other's addresses, later ones none."""
        if not self.dynamic:
            return VoterConfiguration(self.voters)
        return VoterConfiguration(self.voters, 1) if node.id in self.voters else VoterConfiguration(VoterSet(()))

    def configuration_at(self, end_offset: int) -> VoterConfiguration:
        """The voters after everything committed below an offset."""
        configuration = VoterConfiguration(self.voters, int(self.dynamic))
        for base in sorted(self.log):
            payload = self.log[base][1]
            if base < end_offset and isinstance(payload, VoterChange):
                configuration = payload.apply_to(configuration)
        return configuration

    def changes(self) -> list[VoterChange]:
        """Every change of the quorum that was committed."""
        return [payload for _, payload in self.log.values() if isinstance(payload, VoterChange)]

    def change_voters(self) -> None:
        """An administrator sends a request to add or remove a voter to a leader, or to a former one."""
        leading = [node for node in self.nodes.values() if node.core is not None and node.core.is_leader]
        if not leading:
            return
        node = self.random.choice(leading)
        key = self.random.choice(list(self.nodes.values())).key
        try:
            if key.id in node.core.voters:
                node.core.remove_voter(key, self.now)
            else:
                node.core.add_voter(Voter(key), self.now)
        except KlammError:
            return
        node.pump()

    def raise_kraft_version(self) -> None:
        """An administrator raises kraft.version at a leader to which some of its static voters have reported."""
        leading = [node for node in self.nodes.values() if node.core is not None and node.core.is_leader]
        if not leading:
            return
        node = self.random.choice(leading)
        running = [Voter(node.key, "host", 9093) for node in self.nodes.values() if node.core is not None]
        try:
            for voter in running:
                if (
                    self.random.random() < 0.9
                    and voter.id in node.core.voters
                    and not node.core.voter_history.latest.dynamic
                ):
                    node.core.update_voter(voter, self.now)
            node.core.raise_kraft_version(1, Voter(node.key, "host", 9093), self.now)
        except KlammError:
            return
        node.pump()

    def at(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + delay, next(self.sequence), action))

    def disk_delay(self) -> int:
        return self.random.choice((0, 1, 1, 2, 5, 30))

    def note_vote(self, message: RaftMessage) -> None:
        """No replica grants two votes in one epoch, whatever it loses in between."""
        body = message.body
        if isinstance(body, RaftVoteResponse) and body.granted:
            request = self.vote_requests.get((message.destination, message.source, message.correlation_id))
            if request is not None and not request.pre_vote:
                voted = self.votes.setdefault((message.source, body.epoch), message.destination)
                assert voted == message.destination, f"node {message.source} voted twice in epoch {body.epoch}"

    def send(self, message: RaftMessage) -> None:
        self.note_vote(message)
        copies = 2 if self.random.random() < self.loss / 4 else 1
        for _ in range(copies):
            if self.random.random() >= self.loss:
                self.at(self.random.choice((1, 1, 2, 3, 10, 40)), lambda: self.deliver(message))

    def deliver(self, message: RaftMessage) -> None:
        node = self.nodes[message.destination]
        if isinstance(message.body, RaftVoteRequest):
            self.vote_requests[message.source, message.destination, message.correlation_id] = message.body
        if node.core is not None and (message.source, message.destination) not in self.cut:
            node.step(Received(message))

    def run(self, until_ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        end = self.now + until_ms
        while self.queue and self.queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self.queue)
            action()
            self.check()
            if until():
                return True
        self.now = end
        return until()

    def leader(self) -> SimNode | None:
        leading = [node for node in self.nodes.values() if node.core is not None and node.core.is_leader]
        return max(leading, key=lambda node: node.core.epoch, default=None)

    def propose(self) -> int | None:
        leading = [node for node in self.nodes.values() if node.core is not None and node.core.is_leader]
        if not leading:
            return None
        node = self.random.choice(leading)
        values = [f"v{next(self.values)}" for _ in range(self.random.randint(1, 3))]
        try:
            entry = node.core.propose(tuple(value.encode() for value in values), self.now)
        except KlammError:
            return None
        node.pump()
        return entry.last_offset

    def heal(self) -> None:
        self.loss = self.crashes_after_voting = 0.0
        self.cut.clear()
        for node in self.nodes.values():
            if node.core is None:
                node.start()

    # invariants

    def committed_at(self, entry: Entry) -> None:
        known = self.log.setdefault(entry.base_offset, (entry.epoch, entry.payload))
        assert known == (entry.epoch, entry.payload), f"two entries committed at {entry.base_offset}"

    def check_state(self, node: SimNode) -> None:
        expected = self.state_at(node.applied)
        assert node.state == expected, f"node {node.id} installed a wrong snapshot"

    def state_at(self, offset: int) -> list[str]:
        return [
            value.decode()
            for base in sorted(self.log)
            if base < offset and isinstance(self.log[base][1], tuple)
            for value in self.log[base][1]
        ]

    def check(self) -> None:
        for node in self.nodes.values():
            core = node.core
            if core is None:
                continue
            core.check()
            assert core.epoch >= node.epoch_seen or not node.disk.election.epoch, "the epoch went back"
            assert node.disk.election.epoch >= node.epoch_seen, "a durable epoch went back"
            node.epoch_seen = node.disk.election.epoch
            assert core.high_watermark >= node.hw_seen, "the high watermark went back"
            if core.state.role is Role.LEADER:
                self.check_leader(node, core)
            node.hw_seen = core.high_watermark

    def check_leader(self, node: SimNode, core: RaftCore) -> None:
        leader = self.leaders.setdefault(core.epoch, node.id)
        assert leader == node.id, f"epoch {core.epoch} is led by {leader} and {node.id}"
        if core.high_watermark > node.hw_seen:
            self.check_majority(core.high_watermark, core.voters)
            last_epoch = core.log.epoch_at(core.high_watermark - 1)
            assert last_epoch == core.epoch, f"epoch {core.epoch} commits by counting replicas of epoch {last_epoch}"

    def check_majority(self, high_watermark: int, voters: VoterSet) -> None:
        """What a leader calls committed is on the disks of a majority."""
        holders = [node.id for node in self.nodes.values() if node.disk.synced >= high_watermark]
        assert voters.is_majority(holders), f"{high_watermark} is committed but only {holders} have it"

    def check_agreement(self) -> None:
        """All nodes have applied the same records, and all of them."""
        end = max(node.applied for node in self.nodes.values())
        for node in self.nodes.values():
            assert node.applied == end, f"node {node.id} is at {node.applied} of {end}"
            assert node.state == self.state_at(end)


def stir(cluster: Cluster) -> None:
    """One random misfortune, or its end."""
    random = cluster.random
    node = random.choice(list(cluster.nodes.values()))
    match random.randrange(13):
        case 0 | 1:
            if node.core is not None:
                node.crash()
        case 2 | 3 | 4:
            if node.core is None:
                node.start()
        case 5:
            cluster.loss = random.choice((0.0, 0.05, 0.3))
        case 6:
            others = [other for other in cluster.nodes if other != node.id]
            cluster.cut |= {(node.id, other) for other in others} | {(other, node.id) for other in others}
        case 7:
            other = random.choice(list(cluster.nodes))
            cluster.cut.add((node.id, other))
        case 8 | 9:
            cluster.cut.clear()
        case 10 | 11:
            for member in cluster.nodes.values():
                if random.random() < 0.7:
                    member.take_snapshot()
        case 12:
            leader = cluster.leader()
            if leader is not None and random.random() < 0.3:
                leader.core.resign()
                leader.pump()


def run_story(
    seed: int, voters: int, observers: int, rounds: int, *, dynamic: bool = False, raised: bool = False
) -> Cluster:
    """A random life of a quorum, healed at its end: it must then elect, commit and agree.

    With `raised` its fixed voters become ones that change, in the middle of everything.
    """
    cluster = Cluster(seed, voters, observers, dynamic=dynamic, raised=raised)
    for _ in range(rounds):
        cluster.run(cluster.random.choice((5, 20, 60, 200)))
        if raised and cluster.random.random() < 0.3:
            cluster.raise_kraft_version()
        for _ in range(cluster.random.choice((0, 0, 1, 3)) if dynamic or raised else 0):
            cluster.change_voters()
        for _ in range(cluster.random.randrange(6)):
            cluster.propose()
        stir(cluster)
    cluster.heal()
    assert cluster.run(20_000, lambda: cluster.leader() is not None), "no leader after everything healed"
    cluster.run(3_000)
    last = cluster.propose()
    assert last is not None, "a healed quorum takes no proposal"
    caught_up = cluster.run(20_000, lambda: all(node.applied > last for node in cluster.nodes.values()))
    assert caught_up, f"not all nodes applied {last}: {[node.applied for node in cluster.nodes.values()]}"
    cluster.check_agreement()
    if raised:
        end = max(node.applied for node in cluster.nodes.values())
        latest = [node.core.voter_history.latest for node in cluster.nodes.values()]
        assert all(voters == cluster.configuration_at(end) for voters in latest), f"different quorums: {latest}"
    return cluster

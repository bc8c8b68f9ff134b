"""A group at random: clients that crash, stall, repeat themselves and lose answers, and a coordinator that restarts.

Every client follows the protocol as real ones do; every response is checked against what a client may ever see:

- a partition has at most one owner in a generation,
- an offset is only moved by a member of the current generation, and reads what was last accepted, also after a restart,
- of two processes with one instance id at most one is ever believed,
- once faults have ended, all members are in one generation and every partition has an owner.
"""

from dataclasses import dataclass, field
from random import Random

from klamm.coordinator.groups import GroupConfig
from klamm.model.errors import ErrorCode

from .groups_world import Answer, World

PARTITIONS = 5
SESSION_MS = 10_000
REBALANCE_MS = 3000
STALL_MS = 6000
"""Long enough to miss a rebalance, too short to be given up: what a long garbage collection does."""
START_OVER = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED}
JOIN_AGAIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.NOT_COORDINATOR}


@dataclass(eq=False)
class Client:
    """One consumer process."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    owned: tuple[int, ...] = ()
    pending: Answer | None = None
    syncing: bool = False
    dead: bool = False
    joined_members: list[str] = field(default_factory=list)
    leads: bool = False
    stalled_until_ms: int = 0

    @property
    def stable(self) -> bool:
        return not self.dead and self.pending is None and self.generation >= 0


class Machine:
    """Plays a group from a seed."""

    def __init__(self, seed: int, clients: int = 4, *, lazy: bool = False) -> None:
        self.random = Random(seed)
        self.world = World(GroupConfig(initial_rebalance_delay_ms=self.random.choice([0, 500])), lazy=lazy)
        self.clients: list[Client] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.accepted: dict[int, int] = {}
        self.twins: set[str] = set()
        self.count = 0
        self.wanted = clients
        for _ in range(clients):
            self.spawn()

    def spawn(self, instance_id: str | None = None) -> None:
        self.count += 1
        if instance_id is None and self.random.random() < 0.4:
            instance_id = f"static-{self.count}"
        self.clients.append(Client(f"p{self.count}", instance_id))

    # What clients do

    def join(self, client: Client) -> None:
        client.owned = ()
        client.generation = -1
        client.syncing = False
        client.pending = self.world.join(
            client.member_id,
            instance_id=client.instance_id,
            client_id=client.name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )

    def sync(self, client: Client, generation: int) -> None:
        assignments = {}
        if client.leads:
            for partition in range(PARTITIONS):
                member = client.joined_members[partition % len(client.joined_members)]
                assignments[member] = assignments.get(member, b"") + bytes([partition])
        client.syncing = True
        client.generation = generation
        client.pending = self.world.sync(client.member_id, generation, assignments, instance_id=client.instance_id)

    def receive(self, client: Client) -> None:
        """Look at an answer that has come."""
        answer, client.pending = client.pending, None
        assert answer is not None
        code = answer.error
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
            self.join(client)
        elif code is not ErrorCode.NONE:
            self.complain(client, code)
        elif client.syncing:
            client.owned = tuple(answer.assignment)
            client.syncing = False
            for partition in client.owned:
                # A static member that returns is the same owner under another id.
                who = client.instance_id or client.member_id
                owner = self.owners.setdefault((client.generation, partition), who)
                assert owner == who, f"{partition} has two owners in generation {client.generation}"
        elif answer.skip_assignment or not answer.members:
            client.member_id, client.leads = answer.member_id, False
            self.sync(client, answer.generation_id)
        else:
            client.member_id, client.leads = answer.member_id, True
            client.joined_members = sorted(m.member_id for m in answer.members)
            self.sync(client, answer.generation_id)

    def complain(self, client: Client, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            assert client.instance_id in self.twins, "fenced, and there never was a twin"
            client.dead = True
            if not any(other.instance_id == client.instance_id and not other.dead for other in self.clients):
                self.spawn(client.instance_id)
            return
        if code in START_OVER:
            client.member_id = ""
        else:
            assert code in JOIN_AGAIN, code
        self.join(client)

    def beat(self, client: Client) -> None:
        code = self.world.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)
        if code is not ErrorCode.NONE:
            self.complain(client, code)

    def commit(self, client: Client) -> None:
        if not client.owned:
            return
        partition = self.random.choice(client.owned)
        offset = self.accepted.get(partition, 0) + self.random.randrange(10)
        code = self.world.commit(
            offset, client.member_id, client.generation, partition=partition, instance_id=client.instance_id
        )
        if code is ErrorCode.NONE:
            group = self.world.group()
            assert client.generation == group.generation_id, "an old generation moved an offset"
            assert client.member_id in group.members, "a stranger moved an offset"
            self.accepted[partition] = offset
        elif code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self.complain(client, code)

    def commit_and_lose_the_leader(self, client: Client) -> None:
        """The answer never comes: the offset may have been stored or not, and whichever it is stays."""
        if not client.owned:
            return
        partition = self.random.choice(client.owned)
        before, offset = self.accepted.get(partition, -1), self.accepted.get(partition, 0) + 100
        self.world.commit(
            offset,
            client.member_id,
            client.generation,
            partition=partition,
            instance_id=client.instance_id,
            unheard=True,
        )
        if self.random.random() < 0.5:
            self.world.flush()
        self.restart()
        committed = self.world.offset(partition=partition)
        assert committed in (before, offset), f"partition {partition}: was {before}, maybe {offset}, reads {committed}"
        if committed >= 0:
            self.accepted[partition] = committed

    # What happens to them

    def step(self) -> None:
        what = self.random.random()
        alive = [client for client in self.clients if not client.dead]
        if what < 0.15:
            self.world.pass_time(self.random.choice([1, 100, 1000, 3000]))
        elif what < 0.17:
            self.restart()
        elif self.world.lazy and what < 0.19 and alive:
            self.commit_and_lose_the_leader(self.random.choice(alive))
        elif self.world.lazy and what < 0.30:
            self.world.flush()
        elif not alive or (what < 0.20 and len(alive) < self.wanted + 2):
            self.spawn()
        else:
            self.act(self.random.choice(alive), trouble=True)
        self.check()

    def restart(self) -> None:
        groups = self.world.shard.groups
        rebalancing = "g" in groups and groups["g"].state_name.endswith("Rebalance")
        if rebalancing or self.world.uncommitted:
            # A static member that returned during a rebalance is stored at its end. Kafka has the same gap: after a
            # restart in between, the place belongs to the id that was stored before.
            self.twins |= {client.instance_id for client in self.clients if client.instance_id is not None}
        self.world.restart()

    def act(self, client: Client, *, trouble: bool) -> None:
        what = self.random.random()
        if client.stalled_until_ms > self.world.now_ms:
            return
        if trouble and what < 0.02:
            client.dead = True  # without a word; a static one's place is taken by its next process
            if client.instance_id is not None or len([c for c in self.clients if not c.dead]) < 3:
                self.spawn(client.instance_id)
        elif trouble and what < 0.03 and client.instance_id is not None:
            self.twins.add(client.instance_id)
            self.spawn(client.instance_id)  # while this one lives on
        elif trouble and what < 0.05 and client.stable:
            self.world.leave(client.member_id, instance_id=client.instance_id)
            client.dead = True
            self.spawn()
        elif trouble and what < 0.08 and client.stable:
            client.stalled_until_ms = self.world.now_ms + STALL_MS
        elif client.pending is not None:
            if not client.pending.pending:
                self.receive(client)
            elif trouble and what < 0.15:
                self.join(client)  # it did not wait for the response and joins again
        elif client.generation < 0:
            self.join(client)
        elif what < 0.5:
            self.beat(client)
        else:
            self.commit(client)

    def check(self) -> None:
        self.world.shard.check()
        if self.world.lazy and self.random.random() < 0.7:
            return  # to look is to wait for the commit, which would hide what a crash before it does
        for partition, offset in self.accepted.items():
            committed = self.world.offset(partition=partition)
            assert committed == offset, f"partition {partition}: committed {offset}, reads {committed}"

    def calm_down(self) -> None:
        """No more trouble: the group must become whole."""
        for _ in range(120):
            for client in [c for c in self.clients if not c.dead]:
                self.act(client, trouble=False)
            self.world.pass_time(500)
            self.world.flush()
            self.check()
        alive = [client for client in self.clients if not client.dead]
        generation = self.world.group().generation_id
        assert {client.generation for client in alive} == {generation}, "not all clients are in the same generation"
        owned = sorted(partition for client in alive for partition in client.owned)
        assert owned == list(range(PARTITIONS)), f"the partitions are not all owned once: {owned}"


def play(seed: int, steps: int = 150, *, lazy: bool = False) -> Machine:
    """One life from a seed; a `lazy` log commits late and loses its end with the leader."""
    machine = Machine(seed, lazy=lazy)
    for _ in range(steps):
        machine.step()
    machine.calm_down()
    return machine

"""A random life of a group: members of both kinds come, go, stall, crash and restart; answers get lost; topics change.

After every step the shard's own `check` holds, no partition is read by two living members, and epochs only grow. At the
end the faults stop, and the group must settle: every partition has one reader, who is the one the group believes in.
"""

import random
from dataclasses import dataclass, field

from coordinator.consumer_groups_world import CONFIG, ClassicConsumer, Consumer, ConsumerWorld
from klamm.coordinator.core.shard import CoordinatorRecord
from klamm.coordinator.groups import GroupShard
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.model.errors import ErrorCode

TOPICS = ("t", "u", "v")
PATTERNS = ("t|u", "[u-v]", "t.*", ".*")


@dataclass
class Client(Consumer):
    """A consumer that may take its time to give back."""

    next_owned: set[tuple[bytes, int]] | None = None
    """The assignment it takes up once it has revoked what it must."""
    slow: bool = False
    unsure: bool = False
    """An answer was lost: the next request says everything, as clients do."""

    def beat(self, *, full: bool = False) -> ErrorCode:
        return super().beat(full=full or self.unsure)

    def receive(self, answer) -> ErrorCode:
        self.unsure = False
        reads = set(self.owned)
        error = super().receive(answer)
        if error or answer.assignment is None:
            self.next_owned = None if error else self.next_owned
            return error
        if self.slow and reads - self.owned:
            self.next_owned, self.owned = self.owned, reads
        else:
            self.next_owned = None
        return error

    def finish(self) -> None:
        """Give back what it must, and only then take what is new."""
        if self.next_owned is not None:
            self.owned, self.next_owned = self.next_owned, None

    def join(self) -> "Client":
        self.next_owned = None
        super().join()
        return self


@dataclass
class Machine:
    """One seed, one life."""

    seed: int
    config: GroupConfig = CONFIG
    new: list[Client] = field(default_factory=list)
    old: list[ClassicConsumer] = field(default_factory=list)
    away: list[Client] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.world = ConsumerWorld(self.config, t=3)
        self.names = 0
        self.epochs: dict[str, tuple[int, int]] = {}

    # Moves

    def _name(self) -> str:
        self.names += 1
        return f"m{self.names}"

    def _subscription(self) -> dict:
        if self.random.random() < 0.3:
            return {"topics": None, "regex": self.random.choice(PATTERNS)}
        return {"topics": tuple(self.random.sample(TOPICS, self.random.randint(1, 3)))}

    def join(self) -> None:
        if len(self.new) < 5:
            instance = self._name() if self.random.random() < 0.3 else None
            client = Client(
                self.world,
                self._name(),
                instance_id=instance,
                assignor=self.random.choice([None, "uniform", "range"]),
                slow=self.random.random() < 0.5,
                **self._subscription(),
            )
            answer = self.world.beat(client.request(0))
            self.new.append(client)
            client.unsure = True
            if self.random.random() < 0.9:
                client.receive(answer)

    def join_classic(self) -> None:
        if len(self.old) < 3:
            topics = tuple(self.random.sample(TOPICS, self.random.randint(1, 3)))
            self.old.append(ClassicConsumer(self.world, topics=topics, cooperative=False, session_ms=30_000))
            self.old[-1].beat()

    def beat(self) -> None:
        if self.new:
            client = self.random.choice(self.new)
            self._exchange(client)

    def _exchange(self, client: Client) -> None:
        chance = self.random.random()
        if chance < 0.05:
            client.unsure = True  # the request is lost
            return
        if client.epoch == 0:
            client.owned, client.next_owned = set(), None
        request = client.request(client.epoch, full=client.unsure or self.random.random() < 0.2)
        answer = self.world.beat(request)
        if chance < 0.15:
            client.unsure = True  # the answer is lost
            return
        client.receive(answer)
        if chance < 0.2:
            client.receive(self.world.beat(request))  # sent twice

    def beat_classic(self) -> None:
        if self.old:
            self.random.choice(self.old).beat()

    def finish(self) -> None:
        for client in self.random.sample(self.new, len(self.new)):
            client.finish()

    def subscribe(self) -> None:
        if self.new:
            client = self.random.choice(self.new)
            if client.epoch > 0:
                wish = self._subscription()
                client.topics = wish["topics"] or ()
                client.regex = wish.get("regex", "")
                client.beat(full=True)

    def leave(self) -> None:
        if self.new and self.random.random() < 0.5:
            client = self.new.pop(self.random.randrange(len(self.new)))
            for_a_while = client.instance_id is not None and self.random.random() < 0.7
            client.leave(-2 if for_a_while else -1)
            if for_a_while:
                self.away.append(client)

    def leave_classic(self) -> None:
        if self.old and self.random.random() < 0.5:
            self.world.leave(self.old.pop().member_id)

    def rejoin_static(self) -> None:
        if self.away:
            gone = self.away.pop()
            client = Client(
                self.world, self._name(), topics=gone.topics, regex=gone.regex, instance_id=gone.instance_id
            )
            self.new.append(client)
            client.receive(self.world.beat(client.request(0)))

    def crash(self) -> None:
        if self.new and self.random.random() < 0.3:
            self.new.pop()

    def crash_classic(self) -> None:
        if self.old and self.random.random() < 0.3:
            self.old.pop()

    def wait(self) -> None:
        self.world.pass_time(self.random.choice([1, 500, 3_000, 3_000, 12_000, 50_000]))

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        known = self.world.image.topics.by_name.get(name)
        if known is None:
            self.world.create(name, self.random.randint(1, 5))
        elif self.random.random() < 0.3:
            self.world.delete(name)
        else:
            self.world.grow(name, len(known.partitions) + self.random.randint(1, 2))

    def restart(self) -> None:
        before = snapshot(self.world.shard)
        for joined in self.old:
            joined.waiting = None
        self.world.restart()
        assert snapshot(self.world.shard) == before, "the log says something else than the shard remembered"
        assert snapshot(self._from_compacted_log()) == before, "the compacted log says something else"

    def _from_compacted_log(self) -> GroupShard:
        latest: dict[bytes, tuple[int, CoordinatorRecord]] = {}
        for offset, record in enumerate(record for entry in self.world.log for record in entry.records):
            latest[record.key] = (offset, record)
        shard = GroupShard(self.config, lambda: "")
        for offset, record in sorted(latest.values()):
            if record.value is not None or self.random.random() < 0.5:  # tombstones go some day
                shard.replay(record, offset)
        return shard

    def commit(self) -> None:
        """A member that owns a partition may commit it, even if it missed the response with its last epoch."""
        group = self.world.shard.groups.get("g")
        if not self.new or not isinstance(group, ConsumerGroup):
            return
        client = self.random.choice([client for client in self.new if client.unsure] or self.new)
        member = group.members.get(client.member_id)
        for topic_id, number in sorted(client.owned):
            topic = self.world.image.topics.by_id.get(topic_id)
            if topic is None:
                continue
            code = self.world.commit(
                1, client.member_id, client.epoch, topic=topic.name, topic_id=topic_id, partition=number, version=9
            )
            if member is not None and member.member_epoch >= 0 and client.epoch > 0:
                assert code is ErrorCode.NONE, f"{client} cannot commit {topic.name}-{number}: {code!r}, it is {member}"
            elif member is None:
                assert code is ErrorCode.UNKNOWN_MEMBER_ID

    def forge(self) -> None:
        """A request carries an epoch that the member never had, or had long ago: it must be refused."""
        group = self.world.shard.groups.get("g")
        if not self.new or not isinstance(group, ConsumerGroup):
            return
        client = self.random.choice(self.new)
        member = group.members.get(client.member_id)
        if member is None or member.uses_classic_protocol or member.member_epoch <= 0:
            return
        epoch = member.member_epoch + self.random.choice([-3, -2, 1, 5])
        if epoch > 0 and epoch != member.previous_member_epoch:
            written = len(self.world.log)
            assert self.world.beat(client.request(epoch)).error is ErrorCode.FENCED_MEMBER_EPOCH
            assert len(self.world.log) == written

    MOVES = (
        (join, 6),
        (join_classic, 2),
        (beat, 40),
        (beat_classic, 12),
        (finish, 6),
        (subscribe, 3),
        (leave, 3),
        (leave_classic, 2),
        (rejoin_static, 4),
        (crash, 1),
        (crash_classic, 1),
        (wait, 8),
        (change_topics, 3),
        (restart, 1),
        (commit, 6),
        (forge, 3),
    )

    # Life

    def live(self, steps: int = 150) -> None:
        moves, weights = zip(*self.MOVES, strict=True)
        for _ in range(steps):
            move = self.random.choices(moves, weights)[0]
            self.steps.append(move.__name__)
            move(self)
            self.check()
        self.settle()

    def check(self) -> None:
        self.world.shard.check()
        group = self.world.shard.groups.get("g")
        if not isinstance(group, ConsumerGroup):
            self.epochs.clear()
            return
        reads = [place for client in self.new if client.member_id in group.members for place in client.owned]
        for client in self.old:
            if client.member_id in group.members:
                reads += [(client.ids[name], number) for name, number in client.owned if name in client.ids]
        assert len(reads) == len(set(reads)), f"read twice: {sorted(reads)}"
        epochs = {"group": (group.group_epoch, group.target_epoch)}
        epochs |= {m.member_id: (m.member_epoch, 0) for m in group.members.values() if m.member_epoch > 0}
        for name, epoch in epochs.items():
            assert epoch >= self.epochs.get(name, (0, -1)), f"the epoch of {name} went back to {epoch}"
        self.epochs = epochs

    def settle(self) -> None:
        """No more faults: all clients send requests until every member is reconciled."""
        for client in self.new:
            client.slow = False
        quiet = 0
        for _ in range(120):
            written = len(self.world.log)
            for client in self.new:
                client.finish()
                if client.epoch == 0:
                    client.owned = set()
                client.beat()
            for client in self.old:
                client.beat()
            self.check()
            self.world.pass_time(2_000)
            quiet = quiet + 1 if written == len(self.world.log) else 0
            # Members that left without a word keep their partitions for a session.
            if quiet > 25:
                break
        assert quiet > 25, "the group does not come to rest"
        self._check_settled()

    def _check_settled(self) -> None:
        group = self.world.shard.groups.get("g")
        if group is None or not (self.new or self.old):
            return
        if isinstance(group, ClassicGroup):
            assert not self.new
            return
        assert group.state_name == "Stable", group
        assert group.members.keys() == {client.member_id for client in [*self.new, *self.old]}
        for client in self.new:
            assert client.epoch == client.me.member_epoch
            assert client.owned == {(t, n) for t, numbers in client.me.assigned.items() for n in numbers}
        topics = self.world.image.topics.by_name
        wanted = {name for member in group.members.values() for name in group.topics_of(member)} & topics.keys()
        expected = {(topics[name].id, number) for name in wanted for number in topics[name].partitions}
        have = {(t, n) for member in group.members.values() for t, numbers in member.assigned.items() for n in numbers}
        assert have == expected, "not everything is read"
        for member in group.members.values():
            ids = {topics[name].id for name in group.topics_of(member) if name in topics}
            assert member.assigned.keys() <= ids, "a member has a topic it does not subscribe to"


def snapshot(shard: GroupShard) -> dict:
    """The hard state of the groups."""
    groups: dict = {}
    for group_id, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            groups[group_id] = (
                group.group_epoch,
                group.metadata_hash,
                group.target_epoch,
                group.members,
                group.static_members,
                group.target,
                group.resolved,
            )
    return groups

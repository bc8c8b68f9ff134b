"""A group of real clients and its history: who held which partition when, in which generation, and what was read.

The members run inside client programs (`java/Crowd.java`, `go/groups.go`, `js/groups.js`) and only tell what happened
to them; the rules a group must keep are judged here, the same for all of them.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from compat.brokers import Broker
from compat.clients import JavaClient, ProcessClient, Record
from klamm.client import Admin

STABLE_TIMEOUT_S = 45.0
QUIET_S = 0.4
"""How long the same assignment must be seen before it counts as settled; longer than any heartbeat interval."""
CLOCK_MS = 5
SESSION_MS = 3000


@dataclass
class Member:
    """One member as its program reports it; frozen at the last report once its program is dead."""

    name: str
    home: ProcessClient
    instance: str | None = None
    state: str = "joined"
    owned: frozenset[int] = frozenset()
    events: list[tuple[int, str, int, frozenset[int]]] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


@dataclass
class Crowd:
    """One group on one topic: members come and go, records are written, and the rules are checked."""

    broker: Broker
    java: JavaClient
    topic: str
    way: str
    partitions: int
    poll_interval_ms: int = 20_000
    members: dict[str, Member] = field(default_factory=dict)
    written: set[tuple[int, int]] = field(default_factory=set)
    _numbers: Iterable[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.java.create(self.broker.bootstrap, self.topic, self.partitions)

    @property
    def group(self) -> str:
        return f"group-{self.topic}"

    def write(self, per_partition: int = 5) -> None:
        """A few records into every partition; a member must read each of them."""
        records = [Record(b"%d" % i, partition=p) for i in range(per_partition) for p in range(self.partitions)]
        offsets = self.java.produce(self.broker.bootstrap, self.topic, records, idempotent=True)
        self.written |= {(record.partition, offset) for record, offset in zip(records, offsets, strict=True)}

    def join(self, home: ProcessClient, count: int = 1, *, static: bool = False) -> list[Member]:
        return [self._join_one(home, static=static) for _ in range(count)]

    def _join_one(self, home: ProcessClient, *, static: bool = False, instance: str | None = None) -> Member:
        name = f"{self.topic}-{next(iter(self._numbers))}"
        instance = f"instance-{name}" if static else instance
        home.call(
            "member_start",
            bootstrap=self.broker.bootstrap,
            topic=self.topic,
            group=self.group,
            member=name,
            way=self.way,
            instance=instance,
            session_ms=SESSION_MS,
            poll_interval_ms=self.poll_interval_ms,
        )
        self.members[name] = Member(name, home, instance)
        return self.members[name]

    def leave(self, *members: Member, how: str = "leave") -> None:
        """Leave the group; with "crash" stop without leaving, and the session must expire."""
        for member in members:
            assert member.home.call("member_end", member=member.name, how=how)["ended"]
            member.state = how

    def rejoin(self, member: Member) -> Member:
        """The same static member in a new life."""
        return self._join_one(member.home, instance=member.instance)

    def pause(self, member: Member, paused: bool) -> None:
        member.home.call("member_pause", member=member.name, paused=paused)
        member.state = "paused" if paused else "joined"

    def kill(self, home: ProcessClient) -> None:
        """kill -9 of a program with all its members."""
        self.refresh()
        home.close()
        committed = self._committed()
        for member in self.members.values():
            if member.home is home:
                member.state = "killed"
                # What it read and committed after its last report;
                # its session has not expired, so no other member read it.
                member.seen |= {
                    (partition, offset)
                    for partition, offset in self.written
                    if partition in member.owned and offset < committed.get(partition, 0)
                }

    def _committed(self) -> dict[int, int]:
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            offsets = admin.list_group_offsets(self.group)
        return {place.partition: offset.offset for place, offset in offsets.items()}

    def refresh(self) -> None:
        homes = {id(member.home): member.home for member in self.members.values() if member.state != "killed"}
        for home in homes.values():
            names = [m.name for m in self.members.values() if m.home is home]
            for name, shown in home.call("members", members=names)["members"].items():
                self._take_report(self.members[name], shown)

    @staticmethod
    def _take_report(member: Member, shown: dict[str, Any]) -> None:
        member.owned = frozenset(shown["owned"])
        member.events = [(at, what, generation, frozenset(held)) for at, what, generation, held in shown["events"]]
        places = (place.split(":") for place in shown["seen"])
        member.seen = {(int(partition), int(offset)) for partition, offset in places}
        member.problems = shown["problems"]
        assert member.state != "joined" or shown["alive"], f"{member.name} died: {member.problems}"

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members.values() if member.state == "joined"]

    def settle(self) -> None:
        """Wait until every partition has one owner among those present, in equal shares, and nothing moves any more."""
        deadline = time.monotonic() + STABLE_TIMEOUT_S
        before: list[tuple[str, frozenset[int], int]] = []
        since = time.monotonic()
        while True:
            self.refresh()
            now = [(m.name, m.owned, len(m.events)) for m in self.present]
            if now != before:
                before, since = now, time.monotonic()
            held = sorted(partition for m in self.present for partition in m.owned)
            shares = [len(m.owned) for m in self.present]
            whole = held == list(range(self.partitions)) and max(shares) - min(shares) <= 1
            if whole and time.monotonic() - since > QUIET_S:
                return
            assert time.monotonic() < deadline, self.describe("the group does not settle")
            time.sleep(0.03)

    def drain(self) -> None:
        """Wait until every written record was read by some member."""
        self.wait(lambda: self.written <= self.read(), "records are missing")

    def read(self) -> set[tuple[int, int]]:
        self.refresh()
        return {place for member in self.members.values() for place in member.seen}

    def wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STABLE_TIMEOUT_S
        while not true():
            assert time.monotonic() < deadline, self.describe(what)
            time.sleep(0.03)

    def owned_partitions(self) -> dict[str, frozenset[int]]:
        self.refresh()
        return {member.name: member.owned for member in self.present}

    def events_since(self, member: Member, count: int) -> list[str]:
        return [what for _, what, _, _ in member.events[count:]]

    def assert_kept(self, before: dict[str, frozenset[int]], counts: dict[str, int]) -> None:
        """A member that stayed kept as much as its new share allows, and never gave it away in between."""
        for member in self.present:
            if member.name not in before:
                continue
            old, new = before[member.name], member.owned
            assert len(old & new) == min(len(old), len(new)), self.describe(f"{member.name} kept {old & new}")
            for _, what, _, held in member.events[counts[member.name] :]:
                assert old & new <= held, self.describe(f"{member.name} lost hold of what it kept: {what}")

    def event_counts(self) -> dict[str, int]:
        return {member.name: len(member.events) for member in self.members.values()}

    def assert_one_owner(self) -> None:
        """No partition has two owners at one time, nor two in one generation.

        A member that was paused or killed could not know that it lost its partitions, so its time ends there.
        """
        holds: dict[int, list[tuple[int, float, str]]] = {}
        owners: dict[tuple[int, int], set[str]] = {}
        for member in self.members.values():
            since: dict[int, int] = {}
            for at, what, generation, held in member.events:
                if what == "assigned" and generation > 0:
                    for partition in held:
                        owners.setdefault((generation, partition), set()).add(member.instance or member.name)
                for partition in [p for p in since if p not in held]:
                    # "lost" is the event of a member that was removed while it did not poll.
                    if what != "lost":
                        holds.setdefault(partition, []).append((since[partition], at, member.name))
                    del since[partition]
                for partition in held:
                    since.setdefault(partition, at)
            if member.state == "joined":
                for partition, start in since.items():
                    holds.setdefault(partition, []).append((start, float("inf"), member.name))
        for partition, spans in holds.items():
            spans.sort()
            for (_, end, first), (start, _, second) in itertools.pairwise(spans):
                assert start >= end - CLOCK_MS, self.describe(f"{first} and {second} both hold {partition}")
        twice = {place: names for place, names in owners.items() if len(names) > 1}
        assert not twice, self.describe(f"two owners in one generation: {twice}")

    def finish(self) -> None:
        """Everything is read, the rules are kept, and all members have left."""
        self.drain()
        self.assert_one_owner()
        self.leave(*self.present)
        self.assert_one_owner()

    def close(self) -> None:
        for member in self.members.values():
            if member.state in ("joined", "paused"):
                member.home.call("member_end", member=member.name, how="leave")
                member.state = "leave"

    def describe(self, headline: str) -> str:
        lines = [headline]
        for member in self.members.values():
            lines.append(f"{member.name} ({member.state}) owns {sorted(member.owned)} {member.problems[-3:]}")
            lines += [f"    {at} {what} gen {gen} {sorted(held)}" for at, what, gen, held in member.events[-8:]]
        missing = sorted(self.written - {place for m in self.members.values() for place in m.seen})
        return "\n".join([*lines, f"missing {len(missing)}: {missing[:10]}", self.broker.log_tail(15)])

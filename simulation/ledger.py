"""What clients were promised and what they saw: the truth a run is judged by.

Producers say what they send and what was acknowledged, consumers what they read; each contradiction is a violation, as
soon as it is seen. Values are unique, so a record is known by its value.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

Place = tuple[str, int]


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Transaction:
    """One transaction of a transactional producer."""

    name: str
    values: list[tuple[Place, bytes]] = field(default_factory=list)
    outcome: str = "open"
    """open; aborted: no commit was or will be requested; committing: requested; committed: acknowledged."""


@dataclass(slots=True)
class Sent:
    """One value on its way."""

    value: bytes
    place: Place
    writer: str
    order: int
    """Values of one writer in one partition are sent in this order."""
    transaction: Transaction | None = None
    offset: int = -1
    """Where it was acknowledged, -1 while it was not."""
    late: bool = False
    """Whether it was sent after everything had healed."""


class Ledger:
    """One run's promises."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self.violate = violate
        self.sent: dict[bytes, Sent] = {}
        self.acked: dict[tuple[str, int, int], bytes] = {}
        """(topic, partition, offset) -> value"""
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.committed: dict[Place, int] = {}
        """How far partitions were committed, as leaders said: the largest high watermark ever."""
        self.lossy: set[str] = set()
        """Topics for which nothing was promised: acks below all, deleted ones."""
        self.transactions: list[Transaction] = []
        self.owners: dict[tuple[str, Place], tuple[int, str]] = {}
        """(epoch or generation, member) that a partition of a group was given to last."""
        self.healed = False
        self.accepted: set[Place] = set()
        """Partitions that took a record which was sent after everything had healed."""
        self.denied: set[bytes] = set()
        """Values whose producers had no right to write them."""
        self.damaged: set[int] = set()
        """Nodes whose disk has changed by itself."""
        self.group_commits: dict[tuple[str, Place], int] = {}
        self.acks = 0
        self.reads = 0

    def send(self, place: Place, value: bytes, writer: str, order: int, transaction: Transaction | None = None) -> None:
        """A value leaves its producer for the first time."""
        if value in self.sent:
            raise ValueError(f"{value!r} is sent twice")
        self.sent[value] = Sent(value, place, writer, order, transaction, late=self.healed)
        if transaction is not None:
            transaction.values.append((place, value))

    def ack(self, place: Place, base_offset: int, values: list[bytes]) -> None:
        """A producer was told that its values are safe, from this offset on."""
        self.acks += len(values)
        if base_offset < 0:
            self.violate(f"8: {place} acknowledged {values[0]!r} at offset {base_offset}")
            return
        topic, index = place
        if topic not in self.lossy and base_offset + len(values) > self.committed.get(place, 0):
            self.violate(
                f"6: {topic}-{index} acknowledged {values[-1]!r} at {base_offset + len(values) - 1}, but is committed"
                f" only up to {self.committed.get(place, 0)}"
            )
        if self.sent[values[0]].late:
            self.accepted.add(place)
        for offset, value in enumerate(values, base_offset):
            self.sent[value].offset = offset
            other = self.acked.setdefault((topic, index, offset), value)
            if other != value:
                self.violate(f"8: {topic}-{index} acknowledged {other!r} and {value!r} at the same offset {offset}")
            self._compare(topic, index, offset, value)

    def read(self, place: Place, offset: int, value: bytes, reader: str, *, committed_only: bool) -> None:
        """A consumer was given a record."""
        self.reads += 1
        topic, index = place
        if topic in self.lossy:
            return
        known = self.seen.get((topic, index, offset))
        if known is None:
            self.seen[topic, index, offset] = value
            self._compare(topic, index, offset, value)
        elif known != value:
            self.violate(f"6: {reader} read {value!r} at {topic}-{index}@{offset}, where {known!r} was read before")
        sent = self.sent.get(value)
        if sent is None or sent.place != place:
            self.violate(f"19: {reader} read {value!r} in {topic}-{index}, which no producer sent there")
        elif committed_only and sent.transaction is not None and sent.transaction.outcome in ("open", "aborted"):
            self.violate(
                f"9: {reader} read {value!r} of transaction {sent.transaction.name}, which is"
                f" {sent.transaction.outcome}"
            )
        if offset >= self.committed.get(place, 0):
            self.violate(
                f"3: {reader} read {topic}-{index}@{offset} beyond what is committed ({self.committed.get(place, 0)})"
            )

    def _compare(self, topic: str, index: int, offset: int, value: bytes) -> None:
        acked, seen = self.acked.get((topic, index, offset)), self.seen.get((topic, index, offset))
        if topic not in self.lossy and acked is not None and seen is not None and acked != seen:
            self.violate(f"6: {topic}-{index}@{offset} was acknowledged as {acked!r} and read as {seen!r}")

    def record_damaged(self, node: int, reader: str, error: Exception) -> None:
        """A reader was given bytes whose checksum is wrong: detected by the reader, to be explained by a disk fault."""
        if node not in self.damaged:
            self.violate(f"4: node {node} gave {reader} damaged bytes: {error}")

    def give(self, group: str, place: Place, member: str, epoch: int) -> None:
        """A member heard that a partition is its own; news of an epoch that is over changes nothing."""
        known = self.owners.get((group, place))
        if known is None or epoch > known[0]:
            self.owners[group, place] = (epoch, member)
        elif epoch == known[0] and member != known[1]:
            self.violate(
                f"12: {place[0]}-{place[1]} was given to {known[1]} and to {member} in epoch {epoch} of group {group}"
            )

    def owner(self, group: str, place: Place) -> str:
        """The member that was given a partition last."""
        return self.owners.get((group, place), (-1, ""))[1]

    def group_commit(self, group: str, place: Place, offset: int) -> None:
        """A group was told that its position is kept."""
        key = (group, place)
        self.group_commits[key] = max(self.group_commits.get(key, -1), offset)

    def group_position(self, group: str, place: Place, offset: int, at_least: int) -> None:
        """A group was told where it stands; before it asked, it had been promised `at_least`."""
        if offset < at_least:
            self.violate(f"11: group {group} stands at {place[0]}-{place[1]}@{offset}, but had committed {at_least}")

    # --- at the end --------------------------------------------------------------------------------------------------

    def check_log(self, place: Place, records: list[tuple[int, bytes]], visible: set[int] | None) -> None:
        """Compare the final content of a partition with what was promised.

        `records` are all data records that are left, with their offsets; `visible` the offsets a read_committed
        consumer sees.
        """
        topic, index = place
        if topic in self.lossy:
            return
        at = dict(records)
        where: dict[bytes, int] = {}
        for offset, value in records:
            if value in where:
                self.violate(f"7: {value!r} lies twice in {topic}-{index}: at {where[value]} and {offset}")
            where[value] = offset
            if value in self.denied:
                self.violate(f"22: {value!r} was denied and lies at {topic}-{index}@{offset}")
            sent = self.sent.get(value)
            if sent is None or sent.place != place:
                self.violate(f"19: {topic}-{index}@{offset} holds {value!r}, which no producer sent there")
        for (t, i, offset), value in self.acked.items():
            if (t, i) == place and at.get(offset) != value:
                state = f"holds {at[offset]!r}" if offset in at else "is gone"
                self.violate(f"6: {value!r} was acknowledged at {t}-{i}@{offset}, which {state} (lost write)")
        for (t, i, offset), value in self.seen.items():
            if (t, i) == place and at.get(offset) != value:
                self.violate(f"6: {value!r} was read at {t}-{i}@{offset} and is not there any more (unstable read)")
        last: dict[str, int] = {}
        for offset, value in records:
            sent = self.sent.get(value)
            if sent is not None:
                if sent.order < last.get(sent.writer, -1):
                    self.violate(f"7: {topic}-{index}@{offset} {value!r} comes after a later one of {sent.writer}")
                last[sent.writer] = sent.order
        if visible is not None:
            self._check_transactions(place, where, visible)

    def _check_transactions(self, place: Place, where: dict[bytes, int], visible: set[int]) -> None:
        for transaction in self.transactions:
            here = [value for at, value in transaction.values if at == place]
            shown = [value for value in here if where.get(value) in visible]
            if transaction.outcome == "aborted" and shown:
                self.violate(f"9: {transaction.name} was aborted, but {shown[0]!r} can be read in {place}")
            if transaction.outcome == "committed":
                missing = [value for value in here if self.sent[value].offset >= 0 and value not in shown]
                if missing:
                    self.violate(f"9: {transaction.name} was committed, but {missing[0]!r} cannot be read in {place}")

    def check_atomicity(self, visible: dict[Place, set[bytes]]) -> None:
        """Whole transactions or none of them, over all partitions."""
        for transaction in self.transactions:
            acked = [(p, v) for p, v in transaction.values if self.sent[v].offset >= 0 and p in visible]
            shown = [(p, v) for p, v in acked if v in visible[p]]
            if shown and len(shown) < len(acked):
                hidden = next((p, v) for p, v in acked if v not in visible[p])
                self.violate(f"9: transaction {transaction.name} is torn: {shown[0]} can be read, {hidden} cannot")

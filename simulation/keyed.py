"""KeyedRecords producers as load for a compacted topic, and what compaction must leave of it.

Every record says in a header who it is: a tombstone has no value to be known by.
"""

from dataclasses import dataclass, field
from typing import Any

from simulation.cluster import SimCluster
from simulation.ledger import Ledger, Place
from simulation.producers import SimProducer

KEYS = 6
"""How many keys are written at a time."""
RECORDS_PER_SET = 30
"""After so many records a producer leaves its keys for others: what was said of them last is to stay."""
NAME = "name"
"""The header."""
TOMBSTONES = 0.2


@dataclass(slots=True)
class KeyedRecord:
    """One keyed record."""

    name: bytes
    tombstone: bool


@dataclass(slots=True)
class KeyedRecords:
    """What was written under each key of a compacted topic."""

    written: dict[tuple[Place, bytes], list[KeyedRecord]] = field(default_factory=dict)

    def check(self, ledger: Ledger, place: Place, node: int, records: list[Any], *, keeps_tombstones: bool) -> None:
        """Compare one replica's records, oldest first, with what was acknowledged."""
        last = {record.key: record for record in records}
        for (at, key), written in sorted(self.written.items()):
            acked = [write for write in written if ledger.sent[write.name].offset >= 0]
            if at != place or not acked:
                continue
            newest = max(acked, key=lambda write: ledger.sent[write.name].offset)
            offset = ledger.sent[newest.name].offset
            record = last.get(key)
            where = f"{place[0]}-{place[1]} on node {node}"
            if record is None:
                unsure = [write for write in written if ledger.sent[write.name].offset < 0 and write.tombstone]
                if not (newest.tombstone or unsure) or (keeps_tombstones and not unsure):
                    ledger.violate(
                        f"14: {where} has nothing left of {key!r}, whose latest was {newest.name!r}@{offset}"
                    )
            elif record.offset < offset and (keeps_tombstones or not newest.tombstone):
                ledger.violate(
                    f"14: {where} ends {key!r} with {name_of(record)!r}@{record.offset}, but {newest.name!r}@{offset}"
                    " came after it"
                )
            elif name_of(record) not in {write.name for write in written}:
                ledger.violate(f"14: {where} has {name_of(record)!r} under {key!r}, where no producer wrote it")


def name_of(record: Any) -> bytes:
    """Which record this is."""
    return next((bytes(value) for name, value in record.headers if name == NAME), b"")


class KeyedProducer(SimProducer):
    """Writes over and over under few keys, now and then a tombstone; then under others."""

    def __init__(
        self,
        cluster: SimCluster,
        ledger: Ledger,
        keyed: KeyedRecords,
        number: int,
        topic: str,
        partitions: int,
        pace: float,
    ) -> None:
        super().__init__(cluster, ledger, f"keyed-{number}", topic, partitions, pace)
        self._keyed = keyed
        self._written = 0

    def records(self, place: Place, values: list[bytes]) -> list[Any]:
        """The records of a batch."""
        now = self.cluster.machines[1].clock.now_ms()
        rows = []
        for name in values:
            self._written += 1
            key = f"k{self._written // RECORDS_PER_SET}-{self.random.randrange(KEYS)}".encode()
            tombstone = self.random.random() < TOMBSTONES
            self._keyed.written.setdefault((place, key), []).append(KeyedRecord(name, tombstone))
            rows.append((now, key, None if tombstone else name, ((NAME, name),)))
        return rows

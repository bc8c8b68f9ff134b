"""What the clients of a run did and saw: the only input of the checker.

Every record's value is a number used once in the whole run. Workers write from threads of their own; appending to a
list is atomic, and nothing is read before the run is over.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Fate(StrEnum):
    """How a request ended for its client."""

    OK = "ok"
    FAILED = "failed"
    """Certainly without effect."""
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(slots=True)
class Send:
    """One record given to a producer; `offset` is the acknowledged one, -1 without one."""

    worker: str
    number: int
    """The worker's own count: it gave its records to the producer in this order."""
    place: Place
    value: int
    transaction: int | None = None
    fate: Fate = Fate.UNKNOWN
    offset: int = -1

    def note_acknowledged(self, offset: int | None) -> None:
        """Acknowledged; without an offset when a repeated batch had been written long ago."""
        self.fate = Fate.OK
        self.offset = -1 if offset is None else offset


@dataclass(slots=True)
class Transaction:
    """One transaction of a worker; `commits` is true if its end is a commit."""

    worker: str
    number: int
    commits: bool
    fate: Fate = Fate.UNKNOWN


@dataclass(slots=True)
class Poll:
    """What one poll of a consumer returned of one partition, in order; `session` counts its assignments and seeks."""

    worker: str
    session: int
    place: Place
    rows: list[tuple[int, int]]
    """(offset, value)"""


@dataclass(slots=True)
class History:
    """A whole run."""

    sends: list[Send] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    final: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """Every partition read from its start to its end, committed records only, after everything had healed."""
    hung: list[str] = field(default_factory=list)
    """Producers that were replaced while faults went on, because they got no reply."""
    refused: list[str] = field(default_factory=list)
    """Producers with an open transaction that got an error that they have none."""

    def save(self, path: Path) -> None:
        """Keep the run for a person to look into."""
        body = {
            "sends": [asdict(send) for send in self.sends],
            "transactions": [asdict(transaction) for transaction in self.transactions],
            "polls": [asdict(poll) for poll in self.polls],
            "final": [[*place, rows] for place, rows in self.final.items()],
            "hung": self.hung,
            "refused": self.refused,
        }
        path.write_text(json.dumps(body), encoding="utf-8")

"""What there is to see while the bank is open: the topics of the results, the lag of the groups, the lake."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from klamm.client import Admin, Consumer, Record
from klamm.client.admin.types import OffsetSpec
from live_bank.lake import Lake
from live_bank.rules import BALANCES, DEAD_LETTERS, SPEND, SUSPICIOUS, TRANSACTIONS, Account, parse_json

_RESULTS: Final = (BALANCES, SPEND, SUSPICIOUS, DEAD_LETTERS)
_LOOK_S: Final = 0.5
_LONGEST_HISTORY: Final = 240
_LAST: Final = 50
_JOIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: its place, its error and its value."""

    partition: int
    offset: int
    error: str
    value: bytes | None


@dataclass(slots=True)
class Flow:
    """How much has passed somewhere, how fast, and how much is behind."""

    over: int = 6
    """How many marks a rate is taken over: batches come in gusts."""
    total: int = 0
    behind: int | None = None
    rates: deque[float] = field(default_factory=partial(deque, maxlen=_LONGEST_HISTORY))
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def mark(self, now_s: float, total: int, behind: int | None = None) -> None:
        """Take note of a new total."""
        self.total, self.behind = total, behind
        self._marks.append((now_s, total))
        while len(self._marks) > self.over:
            self._marks.popleft()
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        self.rates.append((last - first) / (last_s - first_s) if last_s > first_s else 0.0)

    @property
    def rate(self) -> float:
        return self.rates[-1] if self.rates else 0.0


@dataclass(slots=True)
class Seen:
    """Everything the picture shows, at one moment."""

    address: str = ""
    elapsed_s: float = 0.0
    bank_time: datetime | None = None
    stage: str = ""
    bad: int = 0
    files: int = 0
    flows: dict[str, Flow] = field(default_factory=dict)
    balances: dict[str, Account] = field(default_factory=dict)
    spend: dict[str, Decimal] = field(default_factory=dict)
    """By minute, over all accounts."""
    letters: int = 0
    last_letters: deque[Letter] = field(default_factory=partial(deque, maxlen=_LAST))
    suspicious: int = 0
    last_suspicious: deque[dict[str, Any]] = field(default_factory=partial(deque, maxlen=_LAST))


def letter_of(headers: Any, value: bytes | None) -> Letter:
    """The headers of a dead letter."""
    texts = {name: (text or b"").decode() for name, text in headers}
    position = int(texts["dead_letter.partition"]), int(texts["dead_letter.offset"])
    return Letter(*position, texts["dead_letter.error"], value)


class Results:
    """The results' topics, followed from their beginning by one thread and looked at by another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.balances: dict[str, Account] = {}
        self.letters = 0
        self.last_letters: deque[Letter] = deque(maxlen=_LAST)
        self.suspicious = 0
        self.last_suspicious: deque[dict[str, Any]] = deque(maxlen=_LAST)
        self.spent = Decimal(0)
        self._spend: dict[str, dict[str, Decimal]] = {}

    def take(self, record: Record) -> None:
        """The next record of one of them."""
        with self._lock:
            self._take(record)

    def _take(self, record: Record) -> None:
        if record.topic == DEAD_LETTERS:
            self.letters += 1
            self.last_letters.append(letter_of(record.headers, record.value))
            return
        row = parse_json(record.value)
        if record.topic == BALANCES:
            self.balances[row["account"]] = Account(row["balance"], int(row["transactions"]))
        elif record.topic == SPEND:
            minute = self._spend.setdefault(row["minute"], {})
            self.spent += row["spent"] - minute.get(row["account"], 0)
            minute[row["account"]] = row["spent"]
            while len(self._spend) > _LONGEST_HISTORY:
                del self._spend[min(self._spend)]
        else:
            self.suspicious += 1
            self.last_suspicious.append(row)

    @property
    def booked(self) -> int:
        """Of how many transactions the balances are the sums."""
        return sum(balance.transactions for balance in self.newest_balances().values())

    def newest_balances(self) -> dict[str, Account]:
        with self._lock:
            return dict(self.balances)

    def spend(self) -> dict[str, Decimal]:
        """What was paid in each minute, by all."""
        with self._lock:
            return {minute: sum(spend.values(), Decimal(0)) for minute, spend in sorted(self._spend.items())}


class Watcher:
    """A thread that follows results, groups and the lake."""

    def __init__(self, bootstrap: str, lake: Lake, groups: tuple[str, ...]) -> None:
        self.results = Results()
        self.lake = lake
        self.behind: dict[str, int] = {}
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._groups = groups
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = _JOIN_S) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "client.id": "watcher"}
        try:
            with (
                Admin(settings) as admin,
                Consumer({**settings, "isolation.level": "read_committed"}) as consumer,
            ):
                following = False
                while not self._done.is_set():
                    following = following or self._follow(admin, consumer)
                    self.behind = self._lag(admin)
                    self.lake.refresh()
                    until = time.monotonic() + _LOOK_S
                    while not self._done.is_set() and (left_s := until - time.monotonic()) > 0:
                        if not following:
                            self._done.wait(left_s)
                            break
                        for record in consumer.poll(left_s):
                            self.results.take(record)
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            self.error = error

    @staticmethod
    def _follow(admin: Admin, consumer: Consumer) -> bool:
        """Read the results' topics once all of them are there."""
        there = {topic.name for topic in admin.list_topics()}
        if not there.issuperset(_RESULTS):
            return False
        places = [place for result in _RESULTS for place in admin.partitions_of(result)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        return True

    def _lag(self, admin: Admin) -> dict[str, int]:
        """The lag of each group, as `klamm group show` prints it."""
        places = admin.partitions_of(TRANSACTIONS)
        ends = admin.list_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
        lags = {}
        for group in self._groups:
            done = admin.list_group_offsets(group, places)
            lags[group] = sum(
                end.offset - (done[partition].offset if partition in done else 0) for partition, end in ends.items()
            )
        return lags

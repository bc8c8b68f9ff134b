"""The books: all is computed again from the raw topic, in plain Python, and compared with what others made of it.

Topics are read with confluent-kafka from their beginning, committed records only, after everybody else has stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from live_bank.rules import (
    BALANCES,
    DEAD_LETTERS,
    SPEND,
    SUSPICIOUS,
    TRANSACTIONS,
    Account,
    Books,
    parse_json,
    recompute,
)
from live_bank.watch import letter_of

_MOST_TOLD: Final = 5
_QUIET_S: Final = 60.0


@dataclass(slots=True)
class Found:
    """What others made of the transactions."""

    sent: int = 0
    bad_sent: int = 0
    account_service_saw: int = 0
    logging_service_saw: int = 0
    account_service: dict[str, Account] = field(default_factory=dict)
    balances: dict[str, Account] = field(default_factory=dict)
    spend: dict[tuple[str, str], Decimal] = field(default_factory=dict)
    suspicious: Counter[int] = field(default_factory=Counter)
    dead_letters: Counter[tuple[int, int]] = field(default_factory=Counter)
    lake: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison."""

    what: str
    expected: str
    found: str
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(books: Books, found: Found) -> list[Line]:
    """Each thing that somebody counted or computed, beside the same from the raw topic."""
    bad = books.bad.total()
    return [
        _number("records sent", books.records, found.sent),
        _number("of them bad", bad, found.bad_sent),
        _number("account service saw", books.records, found.account_service_saw),
        _number("logging service saw", books.records, found.logging_service_saw),
        _accounts("account service's balances", books.accounts, found.account_service),
        _accounts("balances table", books.accounts, found.balances),
        _spend(books.spend, found.spend),
        _counted("suspicious", "id", books.suspicious, found.suspicious),
        _counted("dead letters", "record", books.bad, found.dead_letters),
        _counted("rows in the lake", "id", books.good, found.lake),
    ]


def _number(what: str, expected: int, found: int) -> Line:
    told = () if expected == found else (f"{found:,} instead of {expected:,}",)
    return Line(what, f"{expected:,}", f"{found:,}", told)


def _accounts(what: str, expected: Mapping[str, Account], found: Mapping[str, Account]) -> Line:
    told = [
        f"{name} has {_account(found.get(name))} instead of {_account(expected.get(name))}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    return Line(f"{what} ({len(expected)})", _sum(expected), _sum(found), _some(told))


def _account(account: Account | None) -> str:
    return f"{account.balance:,.2f} of {account.transactions:,} transactions" if account else "nothing"


def _sum(accounts: Mapping[str, Account]) -> str:
    return f"{sum((account.balance for account in accounts.values()), Decimal(0)):,.2f}"


def _spend(expected: Mapping[tuple[str, str], Decimal], found: Mapping[tuple[str, str], Decimal]) -> Line:
    told = [
        f"{each[0]} paid {found.get(each, 'nothing')} instead of {expected.get(each, 'nothing')}"
        f" in the minute {each[1][11:16]}"
        for each in sorted({*expected, *found})
        if expected.get(each) != found.get(each)
    ]

    one, other = (f"{sum(each.values(), Decimal(0)):,.2f}" for each in (expected, found))
    return Line(f"spend per minute ({len(expected):,} windows)", one, other, _some(told))


def _counted(what: str, noun: str, expected: Counter[Any], found: Counter[Any]) -> Line:
    told = [f"{noun} {_place(each)} is missing" for each in sorted((expected - found).keys())]
    told += [f"{noun} {_place(each)} is there {found[each]} times" for each in sorted((found - expected).keys())]
    return Line(what, f"{expected.total():,}", f"{found.total():,}", _some(told))


def _place(thing: Any) -> str:
    return "-".join(map(str, thing)) if isinstance(thing, tuple) else str(thing)


def _some(told: list[str]) -> tuple[str, ...]:
    more = len(told) - _MOST_TOLD
    return (*told[:_MOST_TOLD], f"and {more:,} more") if more > 0 else tuple(told)


def read_topic(bootstrap: str, topic: str) -> Iterator[Any]:
    """All committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "books",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=_QUIET_S).topics[topic]
        if known.error is not None:
            raise KafkaException(known.error)
        left = set(known.partitions)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in left])
        while left:
            record = consumer.poll(_QUIET_S)
            if record is None:
                raise TimeoutError(f"{topic} says nothing for {_QUIET_S:.0f} s")
            error = record.error()
            if error is None:
                yield record
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(record.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


def raw_books(bootstrap: str) -> Books:
    """The books of the raw topic."""
    records = read_topic(bootstrap, TRANSACTIONS)
    return recompute((record.partition(), record.offset(), record.value()) for record in records)


def read_results(bootstrap: str, found: Found) -> None:
    """What the pipeline wrote into its topics: of tables the newest row of each key."""
    for row in _newest(bootstrap, BALANCES):
        found.balances[row["account"]] = Account(row["balance"], int(row["transactions"]))
    for row in _newest(bootstrap, SPEND):
        found.spend[row["account"], row["minute"]] = row["spent"]
    for record in read_topic(bootstrap, SUSPICIOUS):
        found.suspicious[int(parse_json(record.value())["id"])] += 1
    for record in read_topic(bootstrap, DEAD_LETTERS):
        letter = letter_of(record.headers(), record.value())
        found.dead_letters[letter.partition, letter.offset] += 1


def _newest(bootstrap: str, table: str) -> list[Any]:
    rows = {record.key(): record.value() for record in read_topic(bootstrap, table)}
    return [parse_json(value) for value in rows.values() if value is not None]

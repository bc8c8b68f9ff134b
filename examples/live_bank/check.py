"""The books: all is computed again from the raw topic, in plain Python, and compared with what others made of it.

Topics are read with confluent-kafka from their beginning, committed records only, after all other clients have stopped.
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

_DIFFERENCES_SHOWN: Final = 5
_QUIET_S: Final = 60.0


@dataclass(slots=True)
class Results:
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
    actual: str
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(books: Books, results: Results) -> list[Line]:
    """Compare every result of services and pipeline with the same computed from the raw topic."""
    bad = books.bad.total()
    return [
        _number("records sent", books.records, results.sent),
        _number("of them bad", bad, results.bad_sent),
        _number("account service saw", books.records, results.account_service_saw),
        _number("logging service saw", books.records, results.logging_service_saw),
        _accounts("account service's balances", books.accounts, results.account_service),
        _accounts("balances table", books.accounts, results.balances),
        _spend(books.spend, results.spend),
        _counted("suspicious", "id", books.suspicious, results.suspicious),
        _counted("dead letters", "record", books.bad, results.dead_letters),
        _counted("rows in the lake", "id", books.good, results.lake),
    ]


def _number(what: str, expected: int, actual: int) -> Line:
    differences = () if expected == actual else (f"{actual:,} instead of {expected:,}",)
    return Line(what, f"{expected:,}", f"{actual:,}", differences)


def _accounts(what: str, expected: Mapping[str, Account], actual: Mapping[str, Account]) -> Line:
    differences = [
        f"{name} has {_account(actual.get(name))} instead of {_account(expected.get(name))}"
        for name in sorted({*expected, *actual})
        if expected.get(name) != actual.get(name)
    ]
    return Line(f"{what} ({len(expected)})", _sum(expected), _sum(actual), _some(differences))


def _account(account: Account | None) -> str:
    return f"{account.balance:,.2f} of {account.transactions:,} transactions" if account else "nothing"


def _sum(accounts: Mapping[str, Account]) -> str:
    return f"{sum((account.balance for account in accounts.values()), Decimal(0)):,.2f}"


def _spend(expected: Mapping[tuple[str, str], Decimal], actual: Mapping[tuple[str, str], Decimal]) -> Line:
    differences = [
        f"{window[0]} paid {actual.get(window, 'nothing')} instead of {expected.get(window, 'nothing')}"
        f" in the minute {window[1][11:16]}"
        for window in sorted({*expected, *actual})
        if expected.get(window) != actual.get(window)
    ]

    one, other = (f"{sum(spend.values(), Decimal(0)):,.2f}" for spend in (expected, actual))
    return Line(f"spend per minute ({len(expected):,} windows)", one, other, _some(differences))


def _counted(what: str, noun: str, expected: Counter[Any], actual: Counter[Any]) -> Line:
    differences = [f"{noun} {_place(item)} is missing" for item in sorted((expected - actual).keys())]
    differences += [
        f"{noun} {_place(item)} is there {actual[item]} times" for item in sorted((actual - expected).keys())
    ]
    return Line(what, f"{expected.total():,}", f"{actual.total():,}", _some(differences))


def _place(item: Any) -> str:
    return "-".join(map(str, item)) if isinstance(item, tuple) else str(item)


def _some(differences: list[str]) -> tuple[str, ...]:
    more = len(differences) - _DIFFERENCES_SHOWN
    return (*differences[:_DIFFERENCES_SHOWN], f"and {more:,} more") if more > 0 else tuple(differences)


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
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in left])
        while left:
            record = consumer.poll(_QUIET_S)
            if record is None:
                raise TimeoutError(f"no record of {topic} for {_QUIET_S:.0f} s")
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


def read_results(bootstrap: str, results: Results) -> None:
    """What the pipeline wrote into its topics: of tables the newest row of each key."""
    for row in _newest(bootstrap, BALANCES):
        results.balances[row["account"]] = Account(row["balance"], int(row["transactions"]))
    for row in _newest(bootstrap, SPEND):
        results.spend[row["account"], row["minute"]] = row["spent"]
    for record in read_topic(bootstrap, SUSPICIOUS):
        results.suspicious[int(parse_json(record.value())["id"])] += 1
    for record in read_topic(bootstrap, DEAD_LETTERS):
        letter = letter_of(record.headers(), record.value())
        results.dead_letters[letter.partition, letter.offset] += 1


def _newest(bootstrap: str, table: str) -> list[Any]:
    rows = {record.key(): record.value() for record in read_topic(bootstrap, table)}
    return [parse_json(value) for value in rows.values() if value is not None]

"""What a transaction is and what follows from a list of them, in plain Python: the books are checked against this.

Nothing here knows Spark or a client, so it can contradict both.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro

SCHEMA: Final = Path(__file__).with_name("transaction.avsc").read_text()
_PARSED: Final = fastavro.parse_schema(json.loads(SCHEMA))
_PREFIX: Final = 5
"""Bytes before an Avro value: 0, and the number of its schema in the registry."""

TRANSACTIONS: Final = "transactions"
BALANCES: Final = "balances"
SPEND: Final = "spend_per_minute"
SUSPICIOUS: Final = "suspicious"
DEAD_LETTERS: Final = "transactions.dead_letters"
PARTITIONS: Final = 2

LIMIT: Final = Decimal(900)
"""Who pays as much or more at once is looked at."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Money that moves: into an account, or out of it."""

    id: int
    account: str
    kind: str
    amount: Decimal
    at: str

    @property
    def minute(self) -> str:
        """The minute it belongs to, as the pipeline writes times."""
        return f"{self.at[:16]}:00.000000Z"


class BadRecord(ValueError):
    """A record that is no transaction."""


def parse_json(value: bytes) -> Any:
    """JSON with exact numbers."""
    return json.loads(value, parse_float=Decimal, parse_int=Decimal)


def read_transaction(value: bytes | None) -> Transaction:
    """The transaction of a record; BadRecord has the reason if it is none."""
    if value is None:
        raise BadRecord("the value is null")
    if len(value) < _PREFIX or value[0] != 0:
        raise BadRecord("the value names no schema")
    source = io.BytesIO(value[_PREFIX:])
    try:
        row: Any = fastavro.schemaless_reader(source, _PARSED, None)
    except Exception as error:  # noqa: BLE001 - fastavro raises any exception for damaged bytes
        raise BadRecord(f"the value is cut off or damaged: {error}") from None
    if source.read():
        raise BadRecord("there are bytes after the value")
    if row["amount"] is None:
        raise BadRecord("the amount is missing")
    at = row["at"].strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return Transaction(row["id"], row["account"], row["kind"], row["amount"], at)


def suspicious(transaction: Transaction) -> bool:
    """Whether a transaction has to be reviewed."""
    return transaction.amount <= -LIMIT


@dataclass(slots=True)
class Account:
    """What an account holds, and of how many transactions that is the sum."""

    balance: Decimal = Decimal(0)
    transactions: int = 0

    def book(self, amount: Decimal) -> None:
        self.balance += amount
        self.transactions += 1


@dataclass(slots=True)
class Books:
    """What follows from the transactions; services and pipeline compute the same."""

    records: int = 0
    accounts: dict[str, Account] = field(default_factory=dict)
    spend: dict[tuple[str, str], Decimal] = field(default_factory=dict)
    """What an account paid in a minute."""
    suspicious: Counter[int] = field(default_factory=Counter)
    """Ids of transactions, each as often as it is there."""
    good: Counter[int] = field(default_factory=Counter)
    bad: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Partition and offset of records that are no transactions."""

    def add(self, partition: int, offset: int, value: bytes | None) -> None:
        """The next record of the topic."""
        self.records += 1
        try:
            transaction = read_transaction(value)
        except BadRecord:
            self.bad[partition, offset] += 1
            return
        self.good[transaction.id] += 1
        self.accounts.setdefault(transaction.account, Account()).book(transaction.amount)
        if transaction.amount < 0:
            window = transaction.account, transaction.minute
            self.spend[window] = self.spend.get(window, Decimal(0)) - transaction.amount
        if suspicious(transaction):
            self.suspicious[transaction.id] += 1


def recompute(records: Iterable[tuple[int, int, bytes | None]]) -> Books:
    """The books of a topic's records: partition, offset and value."""
    books = Books()
    for partition, offset, value in records:
        books.add(partition, offset, value)
    return books

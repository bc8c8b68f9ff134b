"""The customers: transactions keyed by account, some of them nonsense, at the pace of a bank's day.

A minute of the bank's time passes in a second of ours, so that there are many minutes to see.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from klamm.client import Producer
from klamm.client.producer import Delivery
from klamm.registry.serializers import AvroSerializer
from live_bank.rules import LIMIT, SCHEMA, TRANSACTIONS

ACCOUNTS: Final = (
    "ada",
    "alan",
    "barbara",
    "dennis",
    "edsger",
    "frances",
    "grace",
    "hedy",
    "ken",
    "leslie",
    "margaret",
    "niklaus",
)
MORNING: Final = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
SPEED: Final = 60
"""Seconds of the bank's time in one of ours."""
_BAD_SHARE: Final = 0.01
_TIDE_S: Final = 24.0
_TICK_S: Final = 0.05
_JOIN_S: Final = 15.0
# kind, how often, cents from, cents to
_KINDS: Final = (
    ("card", 60, -120_00, -2_50),
    ("transfer", 24, -600_00, -10_00),
    ("cash", 4, -1_200_00, -20_00),
    ("salary", 12, 250_00, 2_400_00),
)
_OPENING_CENTS: Final = 5_000_00


def bank_time(elapsed_s: float) -> datetime:
    """The bank's clock, so long after it opened."""
    return MORNING + timedelta(seconds=elapsed_s * SPEED)


class Customers:
    """What the customers do next: chance, but the same chance for the same seed."""

    def __init__(self, seed: int, encode: Callable[[dict[str, Any]], bytes]) -> None:
        self._encode = encode
        """Makes an Avro record of a transaction."""
        self._chance = random.Random(seed)  # noqa: S311 - an example
        self._next_id = 0
        self._unopened = list(ACCOUNTS)

    def record(self, elapsed_s: float) -> tuple[bytes, bytes | None, int | None]:
        """Key and value of the next record, and its cents; None when it is nonsense."""
        chance = self._chance
        if self._unopened:
            account, kind, cents = self._unopened.pop(0), "opening", _OPENING_CENTS
        else:
            account = chance.choice(ACCOUNTS)
            kind, _, low, high = chance.choices(_KINDS, [kind[1] for kind in _KINDS])[0]
            cents = chance.randint(low, high)
        self._next_id += 1
        amount = Decimal(cents).scaleb(-2)
        row = {"id": self._next_id, "account": account, "kind": kind, "at": bank_time(elapsed_s), "amount": amount}
        if kind == "opening" or chance.random() >= _BAD_SHARE:
            return account.encode(), self._encode(row), cents
        return account.encode(), self._nonsense(row), None

    def _nonsense(self, row: dict[str, Any]) -> bytes | None:
        """A record of a customer whose program has a bug."""
        whole = self._encode(row)
        return self._chance.choice(
            (
                whole[: len(whole) // 2],
                json.dumps(row, default=str).encode(),  # it does not know of the schema
                self._encode({**row, "amount": None}),
                None,
            )
        )


class Generator:
    """Sends what the customers do, in a thread, until it is stopped."""

    def __init__(self, bootstrap: str, registry: str, rate: float, seed: int) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        # Not the producer's serializer: some customers send what is no transaction.
        self._customers = Customers(seed, partial(AvroSerializer(registry, SCHEMA).serialize, TRANSACTIONS))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self._began = time.monotonic()
        self.error: BaseException | None = None
        self.acknowledged = 0
        self.good = 0
        self.bad = 0
        self.suspicious = 0
        self.spent_cents = 0

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self, timeout_s: float = _JOIN_S) -> None:
        """Send no more; when this returns, all that was sent is acknowledged."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def now(self) -> datetime:
        """The bank's clock."""
        return bank_time(time.monotonic() - self._began)

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap, linger_ms=20, client_id="customers") as producer:
                self._send(producer)
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            self.error = error

    def _send(self, producer: Producer) -> None:
        owed = 1.0
        before = self._began
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            tide = 1 + 0.6 * math.sin((now - self._began) * 2 * math.pi / _TIDE_S)
            # After a pause of the machine the customers do not all come at once.
            owed += min(now - before, 1.0) * self._rate * tide
            before = now
            while owed >= 1:
                owed -= 1
                key, value, cents = self._customers.record(now - self._began)
                producer.send(TRANSACTIONS, value, key=key, on_delivery=self._acknowledge)
                self._count(cents)
        producer.flush()

    def _count(self, cents: int | None) -> None:
        if cents is None:
            self.bad += 1
            return
        self.good += 1
        self.spent_cents += max(-cents, 0)
        self.suspicious += cents <= -LIMIT * 100

    def _acknowledge(self, delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            self.error = self.error or error
        else:
            self.acknowledged += 1

"""The account service and the logging service: groups of their own, so each gets every transaction.

They read with confluent-kafka, as a bank's services might: to it, Klamm is Kafka.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from live_bank.rules import TRANSACTIONS, Account, BadRecord, read_transaction

_PORTION: Final = 500
_JOIN_S: Final = 15.0


class Service(ABC):
    """A consumer in a thread that takes every record once, and notices when one is missing."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.group = group
        self.seen = 0
        self.error: BaseException | None = None
        self._next: dict[int, int] = {}
        self._done = threading.Event()
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
            "log_level": 2,
        }
        self._thread = threading.Thread(target=self._run, name=group, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = _JOIN_S) -> None:
        """Leave the group."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([TRANSACTIONS])
            while not self._done.is_set():
                records = [record for record in consumer.consume(_PORTION, 0.2) if self._new(record)]
                self.work(records)
                self.seen += len(records)
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            self.error = error
        finally:
            consumer.close()

    def _new(self, record: Any) -> bool:
        """Whether a record was not seen yet: a member that was away for too long gets some of them again."""
        if record.error() is not None:
            raise KafkaException(record.error())
        partition, offset = record.partition(), record.offset()
        wanted = self._next.get(partition, 0)
        if offset > wanted:
            raise LookupError(f"the {self.group} misses offsets {wanted} to {offset - 1} of partition {partition}")
        self._next[partition] = max(wanted, offset + 1)
        return bool(offset == wanted)

    @abstractmethod
    def work(self, records: Sequence[Any]) -> None:
        """What the service does."""


class AccountService(Service):
    """Keeps the balances, as a service of its own: the pipeline's table must say the same."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "account-service")
        self.accounts: dict[str, Account] = {}

    def work(self, records: Sequence[Any]) -> None:
        for record in records:
            try:
                transaction = read_transaction(record.value())
            except BadRecord:
                continue
            self.accounts.setdefault(transaction.account, Account()).book(transaction.amount)


class LoggingService(Service):
    """Writes every record into a file, for reports and audits."""

    def __init__(self, bootstrap: str, path: str) -> None:
        super().__init__(bootstrap, "logging-service")
        self.path = path

    def lines(self) -> int:
        """How many records are in the file."""
        if not os.path.exists(self.path):
            return 0
        with open(self.path, "rb") as file:
            return sum(1 for _ in file)

    def work(self, records: Sequence[Any]) -> None:
        with open(self.path, "ab") as file:
            file.writelines(b"%d-%d %r\n" % (record.partition(), record.offset(), record.value()) for record in records)

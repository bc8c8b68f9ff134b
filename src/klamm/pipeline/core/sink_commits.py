"""The sink's commit protocol: how many transactions become one batch, and what a replay does. Pure.

A sink's state is its highest batch, and whether that is *decided* (its transactions are being committed) or *done*.
docs/decisions/0009 has the reasons, and what each kill point leaves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from klamm.client.producer.prepared_transaction import PreparedTransaction
from klamm.model.errors import ErrorCode, KlammError

# Must not change: it decides where the task offsets and decisions of existing sinks are.
COMMITS_PARTITIONS: Final = 32
"""Partitions of the commits topic; a group holds the task offsets of as many tasks."""


class SinkError(KlammError):
    """Raised when a batch cannot be completed exactly once, or not by this writer."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_TXN_STATE, message)


def name_sink(app: str) -> str:
    """Return the sink's name, which is also its group and its transactional id, by query id or `txnAppId`."""
    # Must not change: existing sinks are found by it.
    return f"klamm-spark-{app}"


class TaskTransaction(NamedTuple):
    """The transaction that one task has prepared and left open; a rewrite is the same if `rows` and `size` are."""

    task: int
    prepared: PreparedTransaction
    rows: int
    size: int
    began_ms: int = 0


class SinkState(NamedTuple):
    """The newest batch of a sink; `decision_offset` is the offset of its decision in the commits topic.

    `digest` stands for the source position of the batch; empty when the batch was written without one.
    """

    batch: int = -1
    done: bool = True
    decision_offset: int = -1
    digest: str = ""

    @classmethod
    def parse(cls, offset: int, metadata: str) -> SinkState:
        """Parse the offset and metadata of the sink's group."""
        word, _, rest = metadata.partition(" ")
        # Older versions wrote no digest.
        number, _, digest = rest.partition(" ")
        if word not in ("decided", "done") or not number.isdigit():
            raise SinkError(f"the sink's group holds {metadata!r}: another application commits to it")
        return cls(int(number), word == "done", offset, digest)

    @property
    def text(self) -> str:
        """The metadata of the group's offset."""
        return f"{'done' if self.done else 'decided'} {self.batch} {self.digest}".rstrip()


class CommitStep(Enum):
    """What is left to do for a batch."""

    BEGIN = "not decided"
    RESUME = "decided, transactions may still be open"
    SKIP = "done"


def next_step(state: SinkState, batch: int) -> CommitStep:
    """Return what is left to do for a batch."""
    # Spark replays only its last batch, so an older one is done.
    if state.batch > batch or (state.batch == batch and state.done):
        return CommitStep.SKIP
    # A smaller batch that is only decided is no obstacle: Spark begins a batch after the commit of the last one
    # returned, or after a replay of it.
    return CommitStep.RESUME if state.batch == batch else CommitStep.BEGIN


@dataclass(frozen=True, slots=True)
class SinkDecision:
    """The record that batch `batch` consists of these transactions."""

    sink: str
    batch: int
    transactions: tuple[TaskTransaction, ...]
    position: str = ""
    """The source position at which the batch ends, as JSON text; a repair continues there."""

    def encode(self) -> bytes:
        """Return the value of the record in the commits topic."""
        rows = [[entry.task, *entry.prepared, entry.rows, entry.size, entry.began_ms] for entry in self.transactions]
        # JSON, so that a stuck batch can be inspected with any consumer.
        document = {"v": 1, "sink": self.sink, "batch": self.batch, "tasks": rows}
        return json.dumps({**document, "position": self.position} if self.position else document).encode()

    @classmethod
    def decode(cls, data: bytes) -> SinkDecision:
        """Parse the value of a record in the commits topic."""
        try:
            parsed = json.loads(data)
            transactions = tuple(
                TaskTransaction(row[0], PreparedTransaction(*row[1:5]), row[5], row[6], row[7])
                for row in parsed["tasks"]
            )
            return cls(parsed["sink"], parsed["batch"], transactions, parsed.get("position", ""))
        except (KeyError, IndexError, TypeError, ValueError):
            raise SinkError(f"{data[:80]!r} is not a decision of a sink") from None

    def find_transaction(self, task: int) -> TaskTransaction | None:
        """Return the transaction of a task, or None."""
        return next((entry for entry in self.transactions if entry.task == task), None)


class Resumption(NamedTuple):
    """How a decided batch continues: by a new decision, None when nothing is lost; `unused` ones are aborted."""

    decision: SinkDecision | None
    unused: tuple[TaskTransaction, ...]


def resume_batch(decision: SinkDecision, lost: Iterable[int], rewritten: Iterable[TaskTransaction]) -> Resumption:
    """Plan the replay of a decided batch, of which the broker has aborted the transactions of the `lost` tasks.

    The other transactions are committed. A lost one can only be replaced by the same rows, written again by the same
    task; SinkError when they differ.
    """
    lost = set(lost)
    # One per task: of several attempts Spark passes on the message of the one it accepted.
    rewritten_by_task: Mapping[int, TaskTransaction] = {transaction.task: transaction for transaction in rewritten}
    replacements: list[TaskTransaction] = []
    for transaction in decision.transactions:
        if transaction.task not in lost:
            continue
        replacement = rewritten_by_task.get(transaction.task)
        # Count and size stand for equality: to compare bytes the sink would have to keep all rows.
        if replacement is None or (replacement.rows, replacement.size) != (transaction.rows, transaction.size):
            computed = "nothing" if replacement is None else f"{replacement.rows} rows of {replacement.size} bytes"
            raise SinkError(
                f"batch {decision.batch} of {decision.sink} is half committed: the broker aborted the transaction of "
                f"task {transaction.task} ({transaction.rows} rows of {transaction.size} bytes) before it could be "
                f"ended, and now the task has computed {computed}: the batch cannot be completed automatically"
            )
        replacements.append(replacement)
    unused = tuple(entry for entry in rewritten_by_task.values() if entry not in replacements)
    if not replacements:
        return Resumption(None, unused)
    # The new decision has only the replacements: all other transactions of the old one are committed.
    return Resumption(replace(decision, transactions=tuple(replacements)), unused)


def locate_task_offset(sink: str, task: int) -> tuple[str, int]:
    """Return the group and partition of a task's offset: its own transaction commits the batch number there."""
    return f"{sink}.{task // COMMITS_PARTITIONS}", task % COMMITS_PARTITIONS

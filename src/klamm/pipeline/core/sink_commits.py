"""How a batch of many transactions becomes one decision: the record of it, and what a replay makes of it. Pure.

A sink's state is the highest batch it knows and whether that is only *decided* (its transactions are being ended) or
*done*. docs/decisions/0009 tells why, and what each kill point leaves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from klamm.client.producer.prepared_transaction import PreparedTransaction
from klamm.model.errors import ErrorCode, KlammError

SLOTS: Final = 32
"""Partitions of the topic that offsets of sinks are kept under: one per task, group by group."""


class SinkError(KlammError):
    """A batch that cannot be completed exactly once, or not by this writer."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.INVALID_TXN_STATE, words)


class TaskTransaction(NamedTuple):
    """The transaction one task has written and left open; `rows` and `size` tell whether a rewrite is the same."""

    task: int
    transaction: PreparedTransaction
    rows: int
    size: int
    began_ms: int = 0


class SinkState(NamedTuple):
    """What a sink knows of its batches; `place` is where the record of the decision lies."""

    batch: int = -1
    done: bool = True
    place: int = -1

    @classmethod
    def parse(cls, offset: int, metadata: str) -> SinkState:
        """As it is kept with the offset of a group."""
        word, _, number = metadata.partition(" ")
        if word not in ("decided", "done") or not number.isdigit():
            raise SinkError(f"the sink's group holds {metadata!r}; does somebody else commit to it?")
        return cls(int(number), word == "done", offset)

    @property
    def text(self) -> str:
        """The metadata of the group's offset."""
        return f"{'done' if self.done else 'decided'} {self.batch}"


class Step(Enum):
    """What a batch finds."""

    BEGIN = "nobody has decided it"
    RESUME = "it is decided, and perhaps not ended everywhere"
    SKIP = "it is done"


def next_step(state: SinkState, batch: int) -> Step:
    """Where a batch stands."""
    if state.batch > batch or (state.batch == batch and state.done):
        return Step.SKIP
    return Step.RESUME if state.batch == batch else Step.BEGIN


@dataclass(frozen=True, slots=True)
class SinkDecision:
    """These transactions, all of them, are batch `batch`."""

    sink: str
    batch: int
    handles: tuple[TaskTransaction, ...]

    def encode(self) -> bytes:
        """As it is kept in the commits topic."""
        rows = [
            [handle.task, *handle.transaction, handle.rows, handle.size, handle.began_ms] for handle in self.handles
        ]
        return json.dumps({"v": 1, "sink": self.sink, "batch": self.batch, "tasks": rows}).encode()

    @classmethod
    def decode(cls, data: bytes) -> SinkDecision:
        """Read back."""
        try:
            found = json.loads(data)
            handles = tuple(
                TaskTransaction(row[0], PreparedTransaction(*row[1:5]), row[5], row[6], row[7])
                for row in found["tasks"]
            )
            return cls(found["sink"], found["batch"], handles)
        except (KeyError, IndexError, TypeError, ValueError):
            raise SinkError(f"{data[:80]!r} is no decision of a sink") from None

    def of(self, task: int) -> TaskTransaction | None:
        """The transaction of a task."""
        return next((handle for handle in self.handles if handle.task == task), None)


class Resumption(NamedTuple):
    """How a decided batch goes on: a decision that replaces it (None: nothing is lost), and transactions to give up."""

    decision: SinkDecision | None
    spare: tuple[TaskTransaction, ...]


def resume_batch(decision: SinkDecision, lost: Iterable[int], rewritten: Iterable[TaskTransaction]) -> Resumption:
    """A replay of a decided batch. Of `lost` tasks the broker has aborted the transaction; the others are committed.

    A lost one can only be made good by the same rows, computed again by the same task.
    """
    lost = set(lost)
    again: Mapping[int, TaskTransaction] = {each.task: each for each in rewritten}
    kept: list[TaskTransaction] = []
    for handle in decision.handles:
        if handle.task not in lost:
            continue
        other = again.get(handle.task)
        if other is None or (other.rows, other.size) != (handle.rows, handle.size):
            found = "nothing" if other is None else f"{other.rows} rows of {other.size} bytes"
            raise SinkError(
                f"batch {decision.batch} of {decision.sink} is half committed: the broker aborted the transaction of "
                f"task {handle.task} ({handle.rows} rows of {handle.size} bytes) before it could be ended, and now the "
                f"task has computed {found}. Had it computed the same again, it could be completed; this needs a person"
            )
        kept.append(other)
    spare = tuple(each for each in again.values() if each not in kept)
    if not kept:
        return Resumption(None, spare)
    return Resumption(SinkDecision(decision.sink, decision.batch, tuple(kept)), spare)


def task_marker(sink: str, task: int) -> tuple[str, int]:
    """The group and partition a task's own transaction commits its batch number to."""
    return f"{sink}.{task // SLOTS}", task % SLOTS

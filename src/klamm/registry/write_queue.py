"""Changes waiting to be written: decided in order, several registrations in one transaction.

A decision may rely on everything that was decided before it, and the state changes only by replay. So a batch holds
either one change of any kind, or registrations that do not touch each other: other subjects, other contents, and ids
that are reserved while the batch is on its way. A change that does not fit waits for the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.registry.store import LogEntry, RegistryDecision, RegistryRefusal, RegistryState
from klamm.registry.store.log_records import SCHEMA
from klamm.registry.store.subjects import parse_subject

_BATCH_MAX: Final = 100
"""Changes in one transaction."""
_QUEUE_MAX: Final = 10_000

Append = Callable[[Sequence[LogEntry]], Awaitable[None]]


@dataclass(slots=True)
class PendingChange:
    """A change that was asked for."""

    decide: Callable[[], RegistryDecision]
    answer: asyncio.Future[Any]
    decision: RegistryDecision | None = None


@dataclass(slots=True)
class ChangeBatch:
    """Changes that are written together."""

    changes: list[PendingChange] = field(default_factory=list)
    touched: set[tuple[str, ...]] = field(default_factory=set)
    """Subjects and contents of the registrations in it."""
    alone: bool = False

    @property
    def entries(self) -> list[LogEntry]:
        """All records."""
        return [entry for change in self.changes if change.decision for entry in change.decision.entries]

    def add(self, change: PendingChange) -> bool:
        """Add a decided change; False when it has to wait for the next batch."""
        assert change.decision is not None
        touched = _registration(change.decision)
        if self.changes and (self.alone or touched is None or touched & self.touched):
            return False
        self.changes.append(change)
        if touched is None:
            self.alone = True
        else:
            self.touched |= touched
        return True


class WriteQueue:
    """Decides and writes changes one batch after the other."""

    def __init__(self, state: RegistryState, check: Callable[[Sequence[LogEntry]], None]) -> None:
        self._state = state
        self._check = check
        """Raises RegistryRefusal for records that the topic does not take."""
        self._changes: deque[PendingChange] = deque()

    def __len__(self) -> int:
        return len(self._changes)

    def put(self, decide: Callable[[], RegistryDecision]) -> asyncio.Future[Any]:
        """Add a change; the future has its answer."""
        if len(self._changes) >= _QUEUE_MAX:
            raise RegistryRefusal(50001, f"{_QUEUE_MAX} changes are waiting")
        change = PendingChange(decide, asyncio.get_running_loop().create_future())
        self._changes.append(change)
        return change.answer

    def fail_all(self, error: Exception) -> None:
        """Let all waiting changes fail."""
        while self._changes:
            answer = self._changes.popleft().answer
            if not answer.done():
                answer.set_exception(error)

    def decide_batch(self) -> ChangeBatch:
        """Decide the next changes; refusals and changes without records are answered here."""
        batch = ChangeBatch()
        try:
            while self._changes and len(batch.changes) < _BATCH_MAX and not batch.alone:
                change = self._changes[0]
                if not change.answer.done() and self._decide(change) and not batch.add(change):
                    break
                self._changes.popleft()
                if batch.changes and batch.changes[-1] is change:
                    self._reserve(change)
        finally:
            self._state.release_ids()
        return batch

    def _decide(self, change: PendingChange) -> bool:
        """Decide a change; False when it is answered already."""
        try:
            change.decision = change.decide()
            self._check(change.decision.entries)
        except Exception as error:  # noqa: BLE001 - the caller's: a bug in one decision must not stop the others
            change.answer.set_exception(error)
            return False
        if not change.decision.entries:
            change.answer.set_result(change.decision.answer)
            return False
        return True

    def _reserve(self, change: PendingChange) -> None:
        assert change.decision is not None
        for key, value in change.decision.entries:
            if key.keytype == SCHEMA and key.subject is not None and value is not None:
                self._state.reserve_id(parse_subject(key.subject).context, value["id"])

    def retry(self, changes: Sequence[PendingChange]) -> None:
        """Put changes in front again, in their order."""
        self._changes.extendleft(reversed(changes))


def _registration(decision: RegistryDecision) -> set[tuple[str, ...]] | None:
    """Return the subject and the content that a plain registration touches; None for any other change."""
    if len(decision.entries) != 1:
        return None
    key, value = decision.entries[0]
    if key.keytype != SCHEMA or value is None or value.get("deleted") or key.subject is None:
        return None
    context = parse_subject(key.subject).context
    return {("subject", key.subject), ("content", context, value.get("schemaType", ""), value["md5"])}

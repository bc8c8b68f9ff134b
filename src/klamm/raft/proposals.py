"""Batches proposed by this leader that are not committed yet, with the futures of their callers."""

import asyncio
from collections import deque
from dataclasses import dataclass

from klamm.model.errors import KlammError
from klamm.raft.core.messages import Entry
from klamm.telemetry.histogram import Histogram


@dataclass(slots=True)
class Proposal:
    """A batch and its future, which resolves with the offset of the last record once the batch is applied."""

    entry: Entry
    values: list[bytes] | None
    """None for a control batch, which is not delivered to the listener."""
    future: "asyncio.Future[int]"
    proposed_at: float = 0.0
    """By the loop's clock."""


class Proposals:
    """Uncommitted batches in log order; only the first can be committed next."""

    def __init__(self) -> None:
        self._waiting: deque[Proposal] = deque()
        self.commit_times = Histogram()
        """From the proposal of a batch until it is applied."""

    @property
    def first(self) -> Proposal | None:
        """The batch to be committed next."""
        return self._waiting[0] if self._waiting else None

    def add(self, entry: Entry, values: list[bytes] | None, future: "asyncio.Future[int]") -> None:
        """Add a batch that was appended."""
        self._waiting.append(Proposal(entry, values, future, future.get_loop().time()))

    def complete(self, proposal: Proposal) -> None:
        """Resolve the first batch; without effect if all have failed while it was applied."""
        if self._waiting and self._waiting[0] is proposal:
            self._waiting.popleft()
            self.commit_times.observe(proposal.future.get_loop().time() - proposal.proposed_at)
            if not proposal.future.done():
                proposal.future.set_result(proposal.entry.last_offset)

    def fail(self, error: KlammError) -> None:
        """Fail all batches: leadership was lost, and each of them may or may not survive."""
        # Emptied first: a callback of a future may propose again.
        waiting, self._waiting = self._waiting, deque()
        for proposal in waiting:
            if not proposal.future.done():
                proposal.future.set_exception(error)

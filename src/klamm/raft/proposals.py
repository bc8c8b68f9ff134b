"""Batches of ours on their way to being committed, and who waits for each."""

import asyncio
from collections import deque
from dataclasses import dataclass

from klamm.model.errors import KlammError
from klamm.raft.core.messages import Entry


@dataclass(slots=True)
class Proposal:
    """One batch and its future: the offset of its last record once it is committed and applied."""

    entry: Entry
    values: list[bytes] | None
    """None: a control batch, of which the listener hears nothing."""
    future: "asyncio.Future[int]"


class Proposals:
    """In log order; only the first can be committed next."""

    def __init__(self) -> None:
        self._waiting: deque[Proposal] = deque()

    @property
    def first(self) -> Proposal | None:
        """The one that is committed next."""
        return self._waiting[0] if self._waiting else None

    def add(self, entry: Entry, values: list[bytes] | None, future: "asyncio.Future[int]") -> None:
        """A batch was appended."""
        self._waiting.append(Proposal(entry, values, future))

    def applied(self, proposal: Proposal) -> None:
        """The first is committed and applied; unless all have failed meanwhile, who waits for it hears so."""
        if self._waiting and self._waiting[0] is proposal:
            self._waiting.popleft()
            if not proposal.future.done():
                proposal.future.set_result(proposal.entry.last_offset)

    def fail(self, error: KlammError) -> None:
        """None of them will be heard of again; each may or may not survive."""
        waiting, self._waiting = self._waiting, deque()
        for proposal in waiting:
            if not proposal.future.done():
                proposal.future.set_exception(error)

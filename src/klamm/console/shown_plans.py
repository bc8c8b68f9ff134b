"""Plans that pages showed, kept until they are carried out: what is done is what was shown, however large it is.

A form carries the hash of its plan. One with a field for each partition would be refused by the limit of fields, and a
plan that is made anew would be another one: records are written and read meanwhile.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition

PlannedChanges = Mapping[TopicPartition, Any]
_PER_SESSION: Final = 4
_PARTITIONS_MAX: Final = 400_000
"""Of all plans that are kept; the oldest are dropped."""


class ShownPlans:
    """The plans of all sessions."""

    def __init__(self, *, per_session: int = _PER_SESSION, partitions_max: int = _PARTITIONS_MAX) -> None:
        self._per_session = per_session
        self._partitions_max = partitions_max
        self._plans: OrderedDict[tuple[str, str], tuple[tuple[str, ...], PlannedChanges]] = OrderedDict()
        self._partitions = 0

    def keep(self, session: str, about: tuple[str, ...], plan: PlannedChanges) -> str:
        """Keep what a page shows to a session, and return its hash; `about` is what the plan changes."""
        digest = hashlib.sha256(repr((about, sorted(plan.items()))).encode()).hexdigest()
        self._drop((session, digest))
        self._plans[session, digest] = about, plan
        self._partitions += len(plan)
        own = [key for key in self._plans if key[0] == session]
        for key in own[: -self._per_session]:
            self._drop(key)
        while self._partitions > self._partitions_max and len(self._plans) > 1:
            self._drop(next(iter(self._plans)))
        return digest

    def find(self, session: str, about: tuple[str, ...], digest: str) -> PlannedChanges:
        """Return the plan of a form; HttpRefusal 409 when it is not kept any more."""
        entry = self._plans.get((session, digest))
        if entry is None or entry[0] != about:
            raise HttpRefusal(409, "This plan is not known any more: show it again. Nothing was changed")
        return entry[1]

    def _drop(self, key: tuple[str, str]) -> None:
        entry = self._plans.pop(key, None)
        if entry is not None:
            self._partitions -= len(entry[1])

"""Fields that a filter names and records lack: without a report a misspelt name is a filter that matches nothing."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.model.units import pluralize

FIELDS_MAX: Final = 5
"""How many fields are reported."""


class Misses:
    """How many records lacked each field, and what the first of them had instead."""

    def __init__(self) -> None:
        self.records = 0
        self._counts: Counter[str] = Counter()
        self._beside: dict[str, list[str]] = {}

    def add(self, missing: Mapping[str, Any]) -> None:
        """One record; `missing` are the fields it lacks, each with the object that should have it."""
        self.records += 1
        for field, owner in missing.items():
            self._counts[field] += 1
            # The names of the first record are enough for a suggestion; keeping those of all would grow with the topic.
            if field not in self._beside:
                self._beside[field] = [str(name) for name in owner] if isinstance(owner, Mapping) else []

    def sentences(self) -> Iterable[str]:
        """The report, a sentence per field."""
        for field, count in self._counts.most_common(FIELDS_MAX):
            # The last name of value.order.totl, or of headers['trace'].
            name = field.rpartition(".")[2] if not field.endswith("]") else field.rpartition("[")[2].strip("'\"]")
            near = difflib.get_close_matches(name, self._beside[field], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"--where: {field} is missing in {count} of {pluralize(self.records, 'record')}{hint}"

"""The subjects in the order of their names, brought up to date when they are listed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from functools import partial
from typing import Final

from klamm.registry.store.subjects import ALL_CONTEXTS, DEFAULT_CONTEXT, Subject, parse_subject

_CHANGED_MAX: Final = 1000
"""Changes between two lists; after more of them everything is sorted again, which takes no longer."""
_OTHER_CONTEXTS: Final = ":."


class SubjectOrder:
    """A sorted list beside the index, with the same objects: sorting 50,000 names takes 40 ms, and a list has pages."""

    __slots__ = ("_changed", "_ordered", "_subjects")

    def __init__(self, subjects: Collection[Subject]) -> None:
        self._subjects = subjects
        self._ordered: list[Subject] | None = None
        self._changed: set[Subject] = set()

    def note(self, subject: Subject) -> None:
        """Take note of a subject that has come or gone."""
        if self._ordered is None:  # as at the start, while the topic is read
            return
        self._changed.add(subject)
        if len(self._changed) > _CHANGED_MAX:
            self._ordered = None
            self._changed.clear()

    def subjects(self) -> list[Subject]:
        """Return all subjects; the list is not to be changed, and is right until the next record."""
        if self._ordered is None:
            self._ordered = sorted(self._subjects, key=str)
        for subject in self._changed:
            place = bisect_left(self._ordered, str(subject), key=str)
            is_listed = place < len(self._ordered) and self._ordered[place] == subject
            if is_listed and subject not in self._subjects:
                del self._ordered[place]
            elif not is_listed and subject in self._subjects:
                self._ordered.insert(place, subject)
        self._changed.clear()
        return self._ordered

    def matching(self, prefix: str) -> list[Subject]:
        """Return the subjects that begin with a prefix, which may name one context or all (`:*:`)."""
        ordered = self.subjects()
        if prefix.startswith(ALL_CONTEXTS):
            name = prefix[len(ALL_CONTEXTS) :]
            return [subject for subject in ordered if subject.name.startswith(name)] if name else ordered.copy()
        wanted = parse_subject(prefix)
        # Names of other contexts are not of the default one, whatever they begin with.
        if wanted.context == DEFAULT_CONTEXT and _OTHER_CONTEXTS.startswith(wanted.name):
            first, last = _span(ordered, _OTHER_CONTEXTS)
            ordered = ordered[:first] + ordered[last:]
        first, last = _span(ordered, str(wanted))
        return ordered[first:last]


def _span(ordered: list[Subject], text: str) -> tuple[int, int]:
    """Return where the names that begin with a text begin and end."""
    cut = partial(_cut, len(text))
    return bisect_left(ordered, text, key=cut), bisect_right(ordered, text, key=cut)


def _cut(length: int, subject: Subject) -> str:
    return str(subject)[:length]

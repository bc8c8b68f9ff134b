"""Pages of long lists: each begins where the one before ended, without walking over what that one had."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeVar

from klamm.registry.store.state import RegistryState
from klamm.registry.store.subjects import Subject

T = TypeVar("T")

_KEPT_MAX: Final = 64
_PART: Final = 500
"""Subjects whose items are made at once; between two parts other requests have a turn."""


class _ListPosition(NamedTuple):
    """Where a part of a list begins: its first subject, and the items of those before."""

    records: int
    """The age of the list: with the next record the place may be another."""
    first: int
    items: int
    """How many items the subjects before it have."""


class ListPages:
    """Cuts pages of lists whose items belong to subjects, such as versions."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._places: OrderedDict[Hashable, _ListPosition] = OrderedDict()
        """By what is listed for whom: where the next page begins."""

    async def cut(
        self,
        key: Hashable,
        subjects: Sequence[Subject],
        items_of: Callable[[Sequence[Subject]], list[T]],
        page: tuple[int, int],
    ) -> list[T]:
        """Return the items of a page, (offset, limit); a limit below 1 is none."""
        offset, limit = page
        place = self._begin(key, offset)
        items: list[T] = []
        for index in range(place.first, len(subjects), _PART):
            part = items_of(subjects[index : index + _PART])
            begin = max(offset - place.items, 0)
            items += part[begin:] if limit < 1 else part[begin : begin + limit - len(items)]
            if 0 < limit <= len(items):
                self._keep(key, place._replace(first=index))
                break
            place = place._replace(items=place.items + len(part))
            await asyncio.sleep(0)
        return items

    def _begin(self, key: Hashable, offset: int) -> _ListPosition:
        place = self._places.get(key)
        if place is not None and place.records == self._state.records and place.items <= offset:
            return place
        return _ListPosition(self._state.records, 0, 0)

    def _keep(self, key: Hashable, place: _ListPosition) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > _KEPT_MAX:
            self._places.popitem(last=False)

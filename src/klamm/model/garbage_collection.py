"""Full garbage collections that do not walk what stays.

A node with 10,000 partitions has more than a million objects that stay as long as it runs. Each full collection of the
interpreter walks all of them and holds the interpreter meanwhile, for 140 ms and more, during which no request is
answered. Here the survivors of a full collection are frozen, so that the next one walks only what is new.

Frozen objects are freed as usual once nothing refers to them; only cycles among them stay. So that these do not pile
up, a full collection walks everything again after the frozen objects have grown by half.
"""

import gc
from collections.abc import Mapping
from typing import Final

_OLDEST: Final = 2
_GROWTH_MIN: Final = 100_000
"""A process with few objects walks them within milliseconds; it need not do so for every hundred new ones."""


class SurvivorFreezer:
    """Freezes the survivors of full collections, and releases them for a walk over everything as they grow."""

    def __init__(self, growth_min: int = _GROWTH_MIN) -> None:
        self._growth_min = growth_min
        self._whole_count = 0  # frozen objects after the last walk over everything
        self._frozen_count = 0  # at most this many: objects that were freed since are still counted
        self._walks_everything = False

    def install(self) -> None:
        """Take part in the collections of this process, until `uninstall`."""
        # A process that was forked may have frozen objects of its parent, which stay.
        self._whole_count = self._frozen_count = gc.get_freeze_count()
        gc.callbacks.append(self._on_collection)

    def uninstall(self) -> None:
        """Leave collections to the interpreter again; what is frozen stays frozen."""
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._release_if_grown()
        else:
            self._freeze_survivors()

    def _release_if_grown(self) -> None:
        limit = self._whole_count + max(self._whole_count // 2, self._growth_min)
        if self._frozen_count <= limit:
            return
        # The count walks the frozen objects, which is why it is not read at each collection.
        self._frozen_count = gc.get_freeze_count()
        if self._frozen_count > limit:
            gc.unfreeze()
            self._walks_everything = True

    def _freeze_survivors(self) -> None:
        if not self._walks_everything:
            self._frozen_count += len(gc.get_objects(_OLDEST))
        gc.freeze()
        if self._walks_everything:
            self._walks_everything = False
            self._frozen_count = self._whole_count = gc.get_freeze_count()


def freeze_survivors() -> None:
    """Shorten the full collections of a process that belongs to Klamm; not for a program that embeds a part of it."""
    SurvivorFreezer().install()

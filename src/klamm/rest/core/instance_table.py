"""Consumer instances by group and name: who may use them, when they expire, how many there may be. Pure.

An instance in use does not expire: a read that waits for records longer than the timeout is no reason to close it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from klamm.http.refusals import HttpRefusal
from klamm.rest.core.refusals import instance_exists, instance_not_found

T = TypeVar("T")


@dataclass(slots=True)
class InstanceEntry(Generic[T]):
    """One instance, and when it was used last."""

    group: str
    name: str
    owner: str
    instance: T
    used_ms: int
    uses: int = 0
    """Requests that use it now."""


class InstanceTable(Generic[T]):
    """All instances of a proxy; time is an argument."""

    def __init__(self, instances_max: int, timeout_ms: int) -> None:
        self._instances_max = instances_max
        self._timeout_ms = timeout_ms
        self._entries: dict[tuple[str, str], InstanceEntry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, group: str, name: str, owner: str, instance: T, now_ms: int) -> InstanceEntry[T]:
        """Add an instance; 40902 when the name is taken, 429 when there are too many."""
        if (group, name) in self._entries:
            raise instance_exists()
        if len(self._entries) >= self._instances_max:
            raise HttpRefusal(
                42901, f"There are {self._instances_max} consumer instances, and no more are allowed: delete some"
            )
        entry = InstanceEntry(group, name, owner, instance, now_ms)
        self._entries[group, name] = entry
        return entry

    def find(self, group: str, name: str, owner: str) -> InstanceEntry[T]:
        """Return an instance of this owner; 40403 without one."""
        entry = self._entries.get((group, name))
        # Not 403: the names of other owners' instances are not to be found out.
        if entry is None or entry.owner != owner:
            raise instance_not_found()
        return entry

    def begin_use(self, entry: InstanceEntry[T]) -> None:
        """Keep the instance from expiring until `end_use`."""
        entry.uses += 1

    def end_use(self, entry: InstanceEntry[T], now_ms: int) -> None:
        """Let the timeout begin."""
        entry.uses -= 1
        entry.used_ms = now_ms

    def remove(self, entry: InstanceEntry[T]) -> bool:
        """Remove an instance; False when it was removed before."""
        if self._entries.get((entry.group, entry.name)) is not entry:
            return False
        del self._entries[entry.group, entry.name]
        return True

    def remove_expired(self, now_ms: int) -> list[InstanceEntry[T]]:
        """Remove and return the instances that were not used for the timeout."""
        expired = [
            entry for entry in self._entries.values() if not entry.uses and now_ms - entry.used_ms >= self._timeout_ms
        ]
        for entry in expired:
            self.remove(entry)
        return expired

    def remove_all(self) -> list[InstanceEntry[T]]:
        """Remove and return all instances, when the proxy stops."""
        entries = list(self._entries.values())
        self._entries.clear()
        return entries

"""One thing that goes wrong: when, to whom, for how long."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.run import Run


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens: at a time, to some nodes, for a while."""

    at: float
    kind: str
    nodes: tuple[int, ...]
    lasts: float
    size: float = 0.0

    def __str__(self) -> str:
        who = " and ".join(map(str, self.nodes))
        return f"at {self.at:.2f} s, for {self.lasts:.2f} s: {self.kind} {who}".rstrip()


FaultStarter = Callable[["Run", Fault], Callable[[], None] | None]
"""Starts a fault and returns what ends it."""

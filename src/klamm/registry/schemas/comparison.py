"""Comparing two graphs of types in bounded time.

Types refer to each other and to themselves, so rules compare pairs of types, not trees:

- A pair is compared once. A pair that is being compared counts as compatible (the rules ask for the largest relation
  that holds, as for any recursive type).
- A result that relies on such a pair is kept as assumed, until that pair is decided. If the pair turns out
  incompatible, what relied on it is forgotten. An incompatible pair stays incompatible whatever is assumed.
- Steps and depth are limited. Beyond the limit the answer is "incompatible", with a kind of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

STEPS_MAX = 40_000
"""Pairs that one check compares; a check of two schemas with 1,000 types each takes some thousands."""

DEPTH_MAX = 110
"""Nested pairs; more than a schema can be nested (`JSON_DEPTH_MAX`), less than the interpreter's recursion limit."""


class CompatibilityLevel(StrEnum):
    """Which of two versions has to read data of the other; the transitive levels compare with all versions."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_backward(self) -> bool:
        """Whether the new schema has to read old data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        """Whether the old schema has to read new data."""
        return self.value.startswith(("FORWARD", "FULL"))

    @property
    def is_transitive(self) -> bool:
        """Whether all live versions count, not only the latest."""
        return self.value.endswith("_TRANSITIVE")


class CompatibilityPolicy(StrEnum):
    """How strict the rules of JSON Schema are; the other formats have one set of rules."""

    STRICT = "STRICT"
    LENIENT = "LENIENT"
    LOGICAL = "LOGICAL"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One rule that a change breaks."""

    kind: str
    """The rule, in the words of the format's table: `MISSING_ENUM_SYMBOLS`."""
    path: str
    message: str

    def describe(self) -> str:
        """Return the text that answers of the API contain."""
        return f"{{errorType:'{self.kind}', description:'{self.message}'}}"


class CheckLimitExceeded(Exception):
    """The comparison takes more steps than a check may; the schemas count as incompatible."""


Node = TypeVar("Node")

_NOTHING = 1 << 30
"""A depth that is never reached."""


class PairComparison(ABC, Generic[Node]):
    """Compares pairs of types, a pair at most once unless its result became invalid."""

    steps_max = STEPS_MAX
    depth_max = DEPTH_MAX

    def __init__(self) -> None:
        self._steps_left = self.steps_max
        self._results: dict[tuple[int, int], list[Incompatibility]] = {}
        # Pairs that are being compared, with their depth.
        self._active: dict[tuple[int, int], int] = {}
        # Pairs that are compatible if a pair that is being compared is, with the smallest depth of such a pair.
        self._assumed: dict[tuple[int, int], int] = {}
        # The smallest depth that the current pair relies on so far.
        self._relies_on = _NOTHING

    @abstractmethod
    def compare_nodes(self, reader: Node, writer: Node, path: str) -> list[Incompatibility]:
        """Apply the rules to one pair; parts are compared by `compare`."""

    def run(self, reader: Node, writer: Node, path: str) -> list[Incompatibility]:
        """Return each incompatibility once, or that the comparison was given up."""
        try:
            incompatibilities = self.compare(reader, writer, path)
        except (CheckLimitExceeded, RecursionError):
            message = "The schemas are too large or too deeply recursive to be compared"
            return [Incompatibility("CHECK_LIMIT_EXCEEDED", path, message)]
        return list(dict.fromkeys(incompatibilities)) if incompatibilities else []

    def compare(self, reader: Node, writer: Node, path: str) -> list[Incompatibility]:
        """Return why the reader's type cannot take values of the writer's type."""
        # The nodes belong to the two schemas, which outlive the comparison: an id names one node.
        pair = (id(reader), id(writer))
        assumed = self._active.get(pair, self._assumed.get(pair))
        if assumed is not None:
            self._relies_on = min(self._relies_on, assumed)
            return []
        known = self._results.get(pair)
        if known is not None:
            # One is enough to be incompatible: whole lists would double at every type that is used twice.
            return known[:1]
        self.spend(1)
        depth = len(self._active)
        if depth >= self.depth_max:
            raise CheckLimitExceeded
        outer, self._relies_on = self._relies_on, _NOTHING
        assumed_before = len(self._assumed)
        self._active[pair] = depth
        incompatibilities = self.compare_nodes(reader, writer, path)
        del self._active[pair]
        relies_on = self._relies_on
        self._relies_on = outer
        if not incompatibilities and relies_on < depth:
            self._assumed[pair] = relies_on
            self._relies_on = min(outer, relies_on)
            return []
        # What relied on this pair is decided with it: it holds too, or is forgotten.
        for other in list(self._assumed)[assumed_before:] if len(self._assumed) > assumed_before else ():
            del self._assumed[other]
            if not incompatibilities:
                self._results[other] = []
        self._results[pair] = incompatibilities
        return incompatibilities

    def spend(self, steps: int) -> None:
        """Count work against the limit; rules with inner loops of their own call it too."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise CheckLimitExceeded


def join_names(names: Iterable[str]) -> str:
    """Return names as a sorted list for a message."""
    return ", ".join(sorted(names))

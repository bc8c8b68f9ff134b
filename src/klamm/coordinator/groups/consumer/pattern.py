"""Topic patterns matched in linear time: one pass over the name, as RE2 does.

A pattern comes from a client and runs on the broker's only thread, where a backtracking matcher could take exponential
time. Here it becomes a small program that runs for all alternatives at once; the sets of states seen so far are cached,
so a character usually costs one look-up. Size and work are bounded: a pattern beyond them is refused as malformed.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from klamm.coordinator.groups.consumer.pattern_syntax import (
    WORD,
    Chars,
    Choice,
    Edge,
    InvalidPattern,
    PatternNode,
    Repeat,
    Sequence,
    parse,
)

PROGRAM_MAX: Final = 2000
"""Steps a pattern may compile to."""
CACHED_STATES_MAX: Final = 4000
"""Sets of states that are cached; beyond that the cache is cleared."""
WORK_MAX: Final = 2_000_000
"""Steps one resolution may take; a fraction of a second."""

__all__ = ["InvalidPattern", "Pattern", "Patterns", "Resolved"]

# Clients choose the patterns, so what is kept for them needs a limit.
_PATTERNS_MAX: Final = 1000
_PATTERN_CHARS_MAX: Final = 1 << 20

_CHARS, _SPLIT, _EDGE, _MATCH = range(4)

_States = tuple[frozenset[int], int]
"""The steps before the next character, and the kind of the last one: 0 none, 1 a word character, 2 another."""


class Resolved(NamedTuple):
    """The topics a pattern matches, the offset of the image, and when it was resolved."""

    topics: frozenset[str]
    version: int = -1
    timestamp: int = -1


class Pattern:
    """A compiled pattern; it matches whole names."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._program: list[tuple[int, int | str, int]] = []
        """(kind, set | other step | edge, next step)"""
        self._start = self._compile(parse(text), self._emit(_MATCH, 0, 0))
        self._seen: dict[_States, dict[str, _States]] = {}
        self._work = 0

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole of a topic's name."""
        self._work = 0
        return self._run(name)

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """The names it matches; InvalidPattern if matching takes too long."""
        self._work = 0
        return frozenset(name for name in names if self._run(name))

    # Compiling: every piece needs the step that follows it, so the program is built from its end.

    def _emit(self, kind: int, what: int | str, then: int) -> int:
        if len(self._program) >= PROGRAM_MAX:
            raise InvalidPattern("too large")
        self._program.append((kind, what, then))
        return len(self._program) - 1

    def _compile(self, node: PatternNode, then: int) -> int:
        if isinstance(node, Chars):
            return self._emit(_CHARS, node.mask, then)
        if isinstance(node, Edge):
            return self._emit(_EDGE, node.kind, then)
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                then = self._compile(part, then)
            return then
        if isinstance(node, Choice):
            start = self._compile(node.ways[-1], then)
            for way in reversed(node.ways[:-1]):
                start = self._emit(_SPLIT, self._compile(way, then), start)
            return start
        return self._compile_repeat(node, then)

    def _compile_repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            # The body ends at the loop's step, so that step is emitted first and completed afterwards.
            loop = self._emit(_SPLIT, then, then)
            body = self._compile(node.part, loop)
            self._program[loop] = (_SPLIT, body, then)
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._emit(_SPLIT, self._compile(node.part, then), end)
        for _ in range(node.least):
            then = self._compile(node.part, then)
        return then

    # Running

    def _run(self, name: str) -> bool:
        states: _States = (frozenset((self._start,)), 0)
        for character in name:
            following = self._seen.get(states)
            if following is None:
                if len(self._seen) >= CACHED_STATES_MAX:
                    self._seen.clear()
                following = self._seen[states] = {}
            after = following.get(character)
            if after is None:
                after = following[character] = self._step(states, character)
            if not after[0]:
                return False
            states = after
        # Step 0 is the match: it is emitted first.
        return 0 in self._reach(states, 0)

    def _step(self, states: _States, character: str) -> _States:
        bit = 1 << ord(character) if ord(character) < 128 else 0
        kind = 1 if bit & WORD else 2
        program = self._program
        reached = frozenset(
            program[at][2] for at in self._reach(states, kind) if program[at][0] == _CHARS and int(program[at][1]) & bit
        )
        return reached, kind

    def _reach(self, states: _States, following: int) -> set[int]:
        """Return every step that is reachable without a character; `following` is the kind of the next one, 0 none."""
        todo = list(states[0])
        before = states[1]
        reached: set[int] = set()
        while todo:
            at = todo.pop()
            if at in reached:
                continue
            reached.add(at)
            kind, what, then = self._program[at]
            if kind == _SPLIT:
                todo += (int(what), then)
            elif kind == _EDGE and _is_at_edge(str(what), before, following):
                todo.append(then)
        self._work += len(reached)
        if self._work > WORK_MAX:
            raise InvalidPattern("too much work to match")
        return reached


def _is_at_edge(edge: str, before: int, following: int) -> bool:
    if edge == "begin":
        return before == 0
    if edge == "end":
        return following == 0
    boundary = (before == 1) != (following == 1)
    return boundary if edge == "word" else not boundary


class Patterns:
    """The patterns in use, compiled once; a name is matched once, whatever else changes in the cluster."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Pattern, dict[str, bool]]] = {}
        self._chars = 0
        """The length of all of them together: one may have 32 KB."""

    def resolve(self, regex: str, topics: Mapping[str, Any]) -> frozenset[str]:
        """The names of `topics` that a pattern matches; InvalidPattern when it is none."""
        known = self._known.get(regex)
        if known is None:
            known = (Pattern(regex), {})
            if len(self._known) >= _PATTERNS_MAX or self._chars + len(regex) > _PATTERN_CHARS_MAX:
                self._known.clear()
                self._chars = 0
            self._known[regex] = known
            self._chars += len(regex)
        pattern, matches = known
        if len(matches) > 2 * len(topics) + _PATTERNS_MAX:
            matches.clear()
        new = topics.keys() - matches.keys()
        matching = pattern.select(new)
        matches.update((name, name in matching) for name in new)
        return frozenset(name for name in topics if matches[name])

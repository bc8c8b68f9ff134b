"""What is wrong with a pipeline file, and where: file, line, column, one sentence, the line itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from klamm.model.errors import ConfigError

_SECRET = re.compile(
    r"((?:password|secret|token|user\.info|jaas[\w.]*)[\"'`]?\s*=\s*')((?:[^'\\]|''|\\.)*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One refusal; `offset` is where in the text, counted in characters from 0."""

    offset: int
    words: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A text and its name, which turns offsets into lines and columns."""

    text: str
    name: str = "pipeline.sql"
    _starts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0, *(place + 1 for place, each in enumerate(self.text) if each == "\n")]
        object.__setattr__(self, "_starts", starts)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both counted from 1."""
        low, high = 0, len(self._starts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._starts[middle] <= offset:
                low = middle
            else:
                high = middle - 1
        return low + 1, offset - self._starts[low] + 1

    def line(self, number: int) -> str:
        """The text of a line counted from 1."""
        start = self._starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    def show(self, problem: Problem) -> str:
        """A problem as a person reads it: the place and the sentence, then the line with a mark under the place."""
        line, column = self.position(problem.offset)
        text = _SECRET.sub(lambda match: match[1] + "*" * len(match[2]), self.line(line))
        pad = "".join("\t" if each == "\t" else " " for each in text[: column - 1])
        kind = "warning: " if problem.warning else ""
        return f"{self.name}:{line}:{column}: {kind}{problem.words}\n  {text}\n  {pad}^"


class SqlError(ConfigError):
    """A pipeline file that cannot run; `problems` in the order of the text."""

    def __init__(self, source: Source, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = sorted(problems)
        super().__init__("\n".join(source.show(problem) for problem in self.problems))


class ParseError(Exception):
    """Raised where reading cannot go on; whoever collects problems catches it."""

    def __init__(self, offset: int, words: str) -> None:
        super().__init__(words)
        self.problem = Problem(offset, words)


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no known word is near."""
    proper = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), proper, n=1, cutoff=0.6)
    return f"; did you mean {proper[found[0]]}?" if found else ""


def join_words(words: Iterable[str], last: str = "or") -> str:
    """`a, b or c`."""
    *some, end = words
    return f"{', '.join(some)} {last} {end}" if some else end

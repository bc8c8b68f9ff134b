"""Problems of a pipeline file: a message with file, line and column, and the line itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.rewritten_text import RewrittenText

_SECRET = re.compile(
    r"((?:password|secret|token|user\.info|jaas[\w.]*)[\"'`]?\s*=\s*')((?:[^'\\]|''|\\.)*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, order=True)
class SqlProblem:
    """An error or warning; `offset` is its position in the text, in characters from 0."""

    offset: int
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class SqlSource:
    """A text and its file's name; converts offsets to lines and columns."""

    text: str
    name: str = "pipeline.sql"
    rewritten: RewrittenText | None = field(default=None, repr=False, compare=False)
    """The text that was parsed: offsets of problems are positions in it."""
    _starts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0, *(index + 1 for index, character in enumerate(self.text) if character == "\n")]
        object.__setattr__(self, "_starts", starts)

    def position(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset, both counted from 1."""
        if self.rewritten is not None:
            offset = self.rewritten.original(offset)
        low, high = 0, len(self._starts) - 1
        # Bisection over the lines' starts: files may be long, and problems many.
        while low < high:
            middle = (low + high + 1) // 2
            if self._starts[middle] <= offset:
                low = middle
            else:
                high = middle - 1
        return low + 1, offset - self._starts[low] + 1

    def line(self, number: int) -> str:
        """Return the text of a line, counted from 1."""
        start = self._starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    def show(self, problem: SqlProblem) -> str:
        """Return a problem as a compiler prints it: position and message, then the line with a caret below."""
        line, column = self.position(problem.offset)
        text = _SECRET.sub(_mask, self.line(line))
        pad = "".join("\t" if character == "\t" else " " for character in text[: column - 1])
        kind = "warning: " if problem.warning else ""
        return f"{self.name}:{line}:{column}: {kind}{problem.message}\n  {text}\n  {pad}^"


def _mask(match: re.Match[str]) -> str:
    return match[1] + "*" * len(match[2])  # of the same length, so that the caret stays in place


class SqlError(ConfigError):
    """Raised for a pipeline file that cannot run; `problems` are in the order of the text."""

    def __init__(self, source: SqlSource, problems: Sequence[SqlProblem]) -> None:
        self.source = source
        self.problems = sorted(problems)
        super().__init__("\n".join(source.show(problem) for problem in self.problems))


class ParseError(Exception):
    """Raised where a statement cannot be parsed; the parser adds its problem to the list."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.problem = SqlProblem(offset, message)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?`, or an empty string when no known word is similar."""
    # SQL names and options are compared without case, but suggested as declared.
    spellings = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), spellings, n=1, cutoff=0.6)
    return f"; did you mean {spellings[matches[0]]}?" if matches else ""


def join_words(words: Iterable[str], last: str = "or") -> str:
    """Return `a, b or c`."""
    *first, last_word = words
    return f"{', '.join(first)} {last} {last_word}" if first else last_word

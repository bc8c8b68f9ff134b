"""Finds what `b[1]` means in ksqlDB's spelling: its arrays begin at 1, and Spark's at 0. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core.ksql_functions import ARRAYS
from klamm.pipeline.sql.core.problems import ParseError
from klamm.pipeline.sql.core.rewritten_text import Edit
from klamm.pipeline.sql.core.tokens import NAME, STRING, WORD, Token

_ARRAY: Final = "ARRAY"
_MAP: Final = "MAP"
_STRUCT: Final = "STRUCT"
_OPENED: Final = {")": "(", "]": "["}
_DOTS: Final = (".", "->")


@dataclass(frozen=True, slots=True)
class KsqlType:
    """A declared type, as far as subscripts and fields need it; the kind is empty when it is not known."""

    kind: str = ""
    element: KsqlType | None = None
    fields: Mapping[str, KsqlType] = field(default_factory=dict)


UNKNOWN: Final = KsqlType()


def parse_ksql_type(tokens: Sequence[Token]) -> KsqlType:
    """Parse a column's type; what is malformed is unknown here, and reported by the parser."""
    try:
        return _parse(tokens, 0)[0]
    except (IndexError, RecursionError):
        return UNKNOWN


def _parse(tokens: Sequence[Token], index: int) -> tuple[KsqlType, int]:
    kind = tokens[index].text.upper()
    index += 1
    if kind not in (_ARRAY, _MAP, _STRUCT):
        if index < len(tokens) and tokens[index].matches("("):
            while not tokens[index].matches(")"):
                index += 1
            index += 1
        return KsqlType(kind), index
    element = UNKNOWN
    fields: dict[str, KsqlType] = {}
    # Behind `<` and each comma is a type, of a struct behind a name and perhaps a colon.
    while not tokens[index].matches(">"):
        index += 1
        name = tokens[index].value.lower()
        if kind == _STRUCT:
            index += 1 + tokens[index + 1].matches(":")
        element, index = _parse(tokens, index)
        fields[name] = element
        # E.g. NOT NULL of a field.
        while not tokens[index].matches(",", ">"):
            index += 1
    return KsqlType(kind, element, fields if kind == _STRUCT else {}), index + 1


@dataclass(frozen=True, slots=True)
class Subscripts:
    """The subscripts of a SELECT; `types` has the types of columns, by the qualifier (empty for none) and the name."""

    text: str
    tokens: Sequence[Token]
    types: Callable[[str, str], KsqlType]
    qualifiers: frozenset[str]

    def rewrite(self, *, is_marked: bool) -> Iterator[Edit]:
        """Yield the edits that let arrays begin at 1; ParseError where it is not known what is meant.

        With `is_marked` the statement is in ksqlDB's spelling, otherwise only what it reads is.
        """
        for index, token in enumerate(self.tokens):
            if not token.matches("[") or self._is_literal(index):
                continue
            close = self._find_close(index)
            first = self._find_start(index)
            # A text is the key of a map, which both have alike.
            if close is None or first is None or (close == index + 2 and self.tokens[index + 1].kind == STRING):
                continue
            kind = self._resolve_type(first, index).kind
            if kind == _MAP:
                continue
            base = self.text[self.tokens[first].start : self.tokens[index - 1].end]
            number = self.text[token.end : self.tokens[close].start].strip()
            if kind != _ARRAY or not is_marked:
                other = "" if is_marked else f", or get({base}, {number}) for Spark's"
                raise ParseError(
                    token.start,
                    f"{base}[{number}] is another element in ksqlDB, where arrays begin at 1, than in Spark, where they"
                    f" begin at 0: write try_element_at({base}, {number}){other}",
                )
            if number == "0":
                raise ParseError(token.start, f"ksqlDB's arrays begin at 1: write {base}[1] for the first element")
            start = self.tokens[first].start
            yield Edit(start, start, "try_element_at(")
            yield Edit(token.start, token.end, ", ")
            yield Edit(self.tokens[close].start, self.tokens[close].end, ")")

    def _is_literal(self, index: int) -> bool:
        return index > 0 and self.tokens[index - 1].matches(_ARRAY)

    def _find_close(self, index: int) -> int | None:
        depth = 0
        for position in range(index, len(self.tokens)):
            depth += self.tokens[position].matches("[") - self.tokens[position].matches("]")
            if not depth:
                return position
        return None

    def _find_open(self, index: int) -> int:
        close = self.tokens[index].text
        depth = 0
        for position in range(index, -1, -1):
            depth += self.tokens[position].matches(close) - self.tokens[position].matches(_OPENED[close])
            if not depth:
                return position
        return 0

    def _find_start(self, index: int) -> int | None:
        """Return where the expression begins that ends before `index`; None for what is no column, call or literal."""
        before = self.tokens[index - 1] if index > 0 else None
        if before is None:
            return None
        first = index - 1
        if before.matches("]", ")"):
            first = self._find_open(first)
            if before.matches("]") and not self._is_literal(first):
                return self._find_start(first)
            is_call = first > 0 and self.tokens[first - 1].kind in (WORD, NAME)
            first -= is_call
        elif before.kind not in (WORD, NAME):
            return None
        if first > 0 and self.tokens[first - 1].matches(*_DOTS):
            return self._find_start(first - 1)
        return first

    def _resolve_type(self, first: int, end: int) -> KsqlType:
        token = self.tokens[first]
        following = self.tokens[first + 1]
        if following.matches("(") or self._is_literal(first + 1):
            kind = _ARRAY if token.text.upper() in ARRAYS else ""
            position = self._skip_bracket(first + 1)
            known = KsqlType(kind)
        elif token.kind not in (WORD, NAME):
            return UNKNOWN
        elif following.matches(*_DOTS) and token.value.lower() in self.qualifiers:
            known = self.types(token.value.lower(), self.tokens[first + 2].value.lower())
            position = first + 3
        else:
            known = self.types("", token.value.lower())
            position = first + 1
        while position < end:
            if self.tokens[position].matches("["):
                known = known.element if known.element is not None and known.kind in (_ARRAY, _MAP) else UNKNOWN
                position = self._skip_bracket(position)
            else:
                known = known.fields.get(self.tokens[position + 1].value.lower(), UNKNOWN)
                position += 2
        return known

    def _skip_bracket(self, index: int) -> int:
        """Return the index behind the bracket that closes the one at `index`."""
        opening, close = self.tokens[index].text, {"(": ")", "[": "]"}[self.tokens[index].text]
        depth = 0
        for position in range(index, len(self.tokens)):
            depth += self.tokens[position].matches(opening) - self.tokens[position].matches(close)
            if not depth:
                return position + 1
        return len(self.tokens)

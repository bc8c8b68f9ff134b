"""Rewrites a SELECT in ksqlDB's spelling to Spark SQL: windows, joins, pseudo columns, functions. Pure.

Only what Spark does not have is rewritten. A function that both have keeps Spark's meaning.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.ksql_functions import HIGHER_ORDER, REFUSED, RENAMED, WRAPPED
from klamm.pipeline.sql.core.ksql_subscripts import UNKNOWN, KsqlType, Subscripts
from klamm.pipeline.sql.core.problems import ParseError
from klamm.pipeline.sql.core.query_sources import CLAUSES
from klamm.pipeline.sql.core.rewritten_text import Edit
from klamm.pipeline.sql.core.tokens import NAME, NUMBER, WORD, Token, closing_index

_UNITS: Final = ("MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY")
_BY_OFFSET: Final = {"LATEST_BY_OFFSET": "max_by", "EARLIEST_BY_OFFSET": "min_by"}
_RECORD_PARTS: Final = {"ROWOFFSET": "offset", "ROWPARTITION": "partition"}
_WINDOW_COLUMNS: Final = {"WINDOWSTART": "start", "WINDOWEND": "end"}
_TYPES: Final = {"VARCHAR": "STRING", "BYTES": "BINARY"}
_WINDOW_EXAMPLES: Final = {
    "TUMBLING": "SIZE 1 HOUR",
    "HOPPING": "SIZE 1 HOUR, ADVANCE BY 10 MINUTES",
    "SESSION": "5 MINUTES",
}
_KSQL_CLAUSES: Final = ("EMIT", "PARTITION", "WITHIN")


@dataclass(slots=True)
class Relation:
    """What a SELECT has to know of a declared stream or table; a rewrite may add options to it."""

    kind: str
    name: str
    time: str | None = None
    parts: dict[str, str] = field(default_factory=dict)
    """Names of the columns that are METADATA, by the part of the record."""
    key: tuple[str, ...] = ()
    columns: frozenset[str] = frozenset()
    """Names of declared columns, in lower case."""
    watermark: str | None = None
    types: dict[str, KsqlType] = field(default_factory=dict)
    """Types of columns, where they are known, by names in lower case."""
    is_ksql: bool = False
    """Whether its statement is in ksqlDB's spelling."""


@dataclass(frozen=True, slots=True)
class Source:
    """A relation that a SELECT reads, by the name its columns are qualified with."""

    relation: Relation | None
    alias: str


@dataclass(frozen=True, slots=True)
class Item:
    """An expression of the SELECT list and the name of its column."""

    expression: tuple[str, ...]
    name: str | None


@dataclass(slots=True)
class SelectRewrite:
    """The edits of a SELECT, and the options that clauses of it become."""

    text: str
    tokens: Sequence[Token]
    kind: str
    relations: Mapping[str, Relation]
    functions: Container[str] = ()
    """Names of functions that the file declares, in capitals."""
    is_ksql: bool = False
    """Whether the statement is known to be in ksqlDB's spelling; `run` sets it by what it finds."""
    edits: list[Edit] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    group_names: tuple[str, ...] = ()

    def run(self) -> None:
        """Find all rewrites; ParseError for what has no equivalent."""
        depths, self._calls = _nesting(self.tokens)
        self._outer = [index for index, depth in enumerate(depths) if not depth]
        self._depths = depths
        self._sources = list(self._read_sources())
        self._items = list(self._read_items())
        self.group_names = tuple(name for name in self._group_outputs() if name)
        self._partition_by()
        self._emit()
        self._joins()
        self._window()
        self._words()
        self.is_ksql = self.is_ksql or bool(self.edits or self.options)
        if self.is_ksql or any(source.relation is not None and source.relation.is_ksql for source in self._sources):
            subscripts = Subscripts(self.text, self.tokens, self._find_type, self._qualifiers())
            # First: what is inserted before a call stands before its new name.
            self.edits[:0] = list(subscripts.rewrite(is_marked=self.is_ksql))

    def output_types(self) -> dict[str, KsqlType]:
        """Return the types of the columns that the SELECT passes on."""
        types: dict[str, KsqlType] = {}
        for item in self._items:
            qualifier = item.expression[0].lower() if len(item.expression) > 1 else ""
            if item.expression[-1] == "*":
                for source in self._sources:
                    if source.relation is not None and qualifier in ("", source.alias.lower()):
                        types.update(source.relation.types)
            elif item.name is not None and _is_column(item.expression):
                types[item.name.lower()] = self._find_type(qualifier, item.expression[-1].lower())
        return types

    def _find_type(self, qualifier: str, name: str) -> KsqlType:
        """Return the type of a column; unknown also where several relations have one of this name."""
        types = [
            source.relation.types[name]
            for source in self._sources
            if source.relation is not None and name in source.relation.types and qualifier in ("", source.alias.lower())
        ]
        return types[0] if len(types) == 1 else UNKNOWN

    def _qualifiers(self) -> frozenset[str]:
        return frozenset(source.alias.lower() for source in self._sources)

    _calls: list[int] = field(init=False, default_factory=list)
    _outer: list[int] = field(init=False, default_factory=list)
    _depths: list[int] = field(init=False, default_factory=list)
    _sources: list[Source] = field(init=False, default_factory=list)
    _items: list[Item] = field(init=False, default_factory=list)
    _window_function: str | None = field(init=False, default=None)

    def _matches(self, index: int, *words: str) -> bool:
        return 0 <= index < len(self.tokens) and self.tokens[index].matches(*words)

    def _find(self, first: str, *second: str) -> int | None:
        """Return the index of two words outside of parentheses."""
        for index in self._outer:
            if self._matches(index, first) and (not second or self._matches(index + 1, *second)):
                return index
        return None

    def _end(self, start: int, *words: str) -> int:
        """Return the index of the first of these words after `start`, outside of parentheses; or the end."""
        return next(
            (index for index in self._outer if index >= start and self._matches(index, *words)), len(self.tokens)
        )

    def _replace(self, first: int, last: int, text: str) -> None:
        self.edits.append(Edit(self.tokens[first].start, self.tokens[last].end, text))

    def _insert(self, offset: int, text: str) -> None:
        self.edits.append(Edit(offset, offset, text))

    def _source_text(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last].end]

    # What it reads and returns

    def _read_sources(self) -> Iterator[Source]:
        for index in self._outer:
            if not self._matches(index, "FROM", "JOIN") or index + 1 >= len(self.tokens):
                continue
            name = self.tokens[index + 1]
            if name.kind not in (WORD, NAME):
                continue
            alias, following = name.value, index + 2
            following += self._matches(following, "AS")
            if following < len(self.tokens):
                token = self.tokens[following]
                clause = token.kind == WORD and token.text.upper() in (*CLAUSES, *_KSQL_CLAUSES)
                if token.kind in (WORD, NAME) and not clause:
                    alias = token.value
            yield Source(self.relations.get(name.value.lower()), alias)

    def _split(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last index of each part between commas outside of parentheses."""
        first = start
        for index in range(start, end + 1):
            if index == end or (not self._depths[index] and self._matches(index, ",")):
                if first < index:
                    yield first, index - 1
                first = index + 1

    def _read_items(self) -> Iterator[Item]:
        if not self._matches(0, "SELECT"):
            return
        for first, last in self._split(1, self._end(1, "FROM")):
            words = tuple(_normalize(token) for token in self.tokens[first : last + 1])
            named = self.tokens[last].kind in (WORD, NAME)
            if len(words) > 2 and self._matches(last - 1, "AS") and named:
                yield Item(words[:-2], self.tokens[last].value)
            elif len(words) > 1 and named and self.tokens[last - 1].kind in (WORD, NAME) and words[-1] != "END":
                yield Item(words[:-1], self.tokens[last].value)
            else:
                plain = named and (len(words) == 1 or words[-2] == ".")
                yield Item(words, self.tokens[last].value if plain else None)

    def _output_name(self, first: int, last: int) -> str | None:
        """Return the name that the SELECT gives to an expression; its own for a column that `*` includes."""
        words = tuple(_normalize(token) for token in self.tokens[first : last + 1])
        for item in self._items:
            if item.name is not None and (item.expression == words or item.name.upper() == words[-1] == "".join(words)):
                return item.name
        plain = self.tokens[last].kind in (WORD, NAME) and (last == first or self._matches(last - 1, "."))
        has_star = any(item.expression[-1] == "*" for item in self._items)
        return self.tokens[last].value if plain and has_star else None

    def _group_range(self) -> tuple[int, int] | None:
        group = self._find("GROUP", "BY")
        if group is None:
            return None
        return group + 2, self._end(group + 2, "HAVING", "EMIT", "PARTITION", "ORDER", "LIMIT", "UNION")

    def _group_outputs(self) -> list[str | None]:
        group = self._group_range()
        return [self._output_name(first, last) for first, last in self._split(*group)] if group else []

    # Clauses

    def _partition_by(self) -> None:
        index = self._find("PARTITION", "BY")
        if index is None:
            return
        end = self._end(index, "EMIT")
        offset = self.tokens[index].start
        if self.kind != "stream":
            raise ParseError(offset, "PARTITION BY is of a stream: the key of a table is its GROUP BY, or key = '...'")
        names = [self._output_name(first, last) for first, last in self._split(index + 2, end)]
        written = self._source_text(index + 2, end - 1) if end > index + 2 else ""
        if written.upper() != "NULL":
            if not names or None in names:
                raise ParseError(
                    offset, f"PARTITION BY takes columns of the SELECT: write {written or 'x'} AS name there, and name"
                )
            self.options["key"] = ", ".join(name for name in names if name)
        else:
            self.options["key"] = ""
        self._replace(index, end - 1, "")

    def _emit(self) -> None:
        index = self._find("EMIT", "CHANGES", "FINAL")
        if index is None:
            return
        if index + 2 < len(self.tokens):
            following = self.tokens[index + 2]
            raise ParseError(following.start, f"unexpected {following.text}: EMIT ends a statement")
        if self._matches(index + 1, "FINAL") and self.kind == "table":
            self.options["emit"] = "final"
        # ksqlDB keeps the key of a stream that is only filtered or mapped.
        if self.kind == "stream" and "key" not in self.options and len(self._sources) == 1:
            relation = self._sources[0].relation
            keys = relation.key if relation is not None else ()
            outputs = [self._key_output(name) for name in keys]
            if outputs and None not in outputs and self._find("GROUP") is None:
                self.options["key"] = ", ".join(name for name in outputs if name)
        self._replace(index, index + 1, "")

    def _key_output(self, key: str) -> str | None:
        for item in self._items:
            if item.expression[-1] == "*":
                return key
            if item.name is not None and item.expression[-1] == key.upper() and _is_column(item.expression):
                return item.name
        return None

    def _joins(self) -> None:
        joins = [index for index in self._outer if self._matches(index, "WITHIN")]
        for index in joins:
            if self._matches(index + 1, "GROUP"):  # of listagg
                continue
            before, after, following = self._within(index)
            grace, following = self._grace(following)
            joined = sum(self._matches(other, "FROM", "JOIN") for other in self._outer if other < index)
            left, right = self._sources[0], self._sources[joined - 1]
            if not self._matches(following, "ON"):
                raise ParseError(self.tokens[index].start, "expected ON after WITHIN")
            left_time, right_time = (self._time(side, index, qualified=True) for side in (left, right))
            for side in (left, right):
                self._set_watermark(side, grace, index)
            self._replace(index, following - 1, "")
            condition = (
                f" {right_time} >= {left_time} - INTERVAL '{before}' AND {right_time} <= {left_time} + INTERVAL"
                f" '{after}' AND"
            )
            self._insert(self.tokens[following].end, condition)

    def _within(self, index: int) -> tuple[str, str, int]:
        if not self._matches(index + 1, "("):
            duration, following = self._duration(index + 1)
            return duration, duration, following
        before, following = self._duration(index + 2)
        if not self._matches(following, ","):
            raise ParseError(self.tokens[index].start, "write WITHIN 5 MINUTES, or WITHIN (before, after)")
        after, following = self._duration(following + 1)
        return before, after, following + 1

    def _duration(self, index: int) -> tuple[str, int]:
        offset = self.tokens[min(index, len(self.tokens) - 1)].start
        if index + 1 >= len(self.tokens) or self.tokens[index].kind != NUMBER:
            raise ParseError(offset, "expected a duration, e.g. 5 MINUTES")
        unit = self.tokens[index + 1].text.upper()
        if unit.removesuffix("S") not in _UNITS:
            raise ParseError(self.tokens[index + 1].start, f"expected SECONDS, MINUTES, HOURS or DAYS, not {unit}")
        return f"{self.tokens[index].text} {unit.lower()}", index + 2

    def _grace(self, index: int) -> tuple[str | None, int]:
        if not (self._matches(index, "GRACE") and self._matches(index + 1, "PERIOD")):
            return None, index
        return self._duration(index + 2)

    def _time(self, source: Source, index: int, *, qualified: bool) -> str:
        relation = source.relation
        if relation is None or relation.time is None:
            raise ParseError(
                self.tokens[index].start,
                f"{relation.name if relation else source.alias} has no time: write WITH (TIMESTAMP = 'at') there, with"
                " a column at TIMESTAMP, or at TIMESTAMP METADATA FROM 'timestamp' for the time of the record",
            )
        return f"{quote_name(source.alias)}.{quote_name(relation.time)}" if qualified else quote_name(relation.time)

    def _set_watermark(self, source: Source, grace: str | None, index: int) -> None:
        relation = source.relation
        if grace is None or relation is None:
            return
        if relation.watermark is not None and relation.watermark.lower() != grace:
            raise ParseError(
                self.tokens[index].start,
                f"GRACE PERIOD is the watermark of {relation.name}, which is '{relation.watermark}': write one of them",
            )
        relation.watermark = grace

    def _window(self) -> None:
        index = self._find("WINDOW", "TUMBLING", "HOPPING", "SESSION")
        if index is None or not self._matches(index + 2, "("):
            return
        close = closing_index(self.tokens, index + 2)
        group = self._group_range()
        if group is None:
            raise ParseError(self.tokens[index].start, "WINDOW needs GROUP BY")
        if not self._sources:
            return
        time = self._time(self._sources[0], index, qualified=len(self._sources) > 1)
        function, durations = self._window_arguments(index, close)
        self._window_function = function
        self._replace(index, close, "")
        arguments = ", ".join([time, *(f"'{duration}'" for duration in durations)])
        self._insert(self.tokens[group[0] - 1].end, f" {function}({arguments}),")
        if self.kind == "table":
            self._add_window_columns()

    def _window_arguments(self, index: int, close: int) -> tuple[str, list[str]]:
        kind = self.tokens[index + 1].text.upper()
        durations: list[str] = []
        position = index + 3
        while position < close:
            first = self.tokens[position]
            if first.matches("GRACE"):
                grace, position = self._grace(position)
                self._set_watermark(self._sources[0], grace, index)
            elif first.matches("RETENTION"):
                raise ParseError(first.start, "leave RETENTION out: windows stay in the topic as its retention says")
            else:
                skipped = 2 if first.matches("ADVANCE") else int(first.matches("SIZE"))
                duration, position = self._duration(position + skipped)
                durations.append(duration)
            position += self._matches(position, ",")
        if len(durations) != (2 if kind == "HOPPING" else 1):
            example = {"TUMBLING": "SIZE 1 HOUR", "HOPPING": "SIZE 1 HOUR, ADVANCE BY 10 MINUTES"}.get(
                kind, "5 MINUTES"
            )
            raise ParseError(self.tokens[index].start, f"write WINDOW {kind} ({example})")
        return "session_window" if kind == "SESSION" else "window", durations

    def _add_window_columns(self) -> None:
        """Add the window to the table's columns and key, as ksqlDB does without saying so."""
        names: dict[str, str] = {}
        for word, part in _WINDOW_COLUMNS.items():
            name = next((item.name for item in self._items if item.expression == (word,)), None)
            if name is None:
                name = word
                end = self.tokens[self._end(1, "FROM") - 1].end
                self._insert(end, f", unix_millis({self._window_function}.{part}) AS {word}")
            names[word] = name
        outputs = self._group_outputs()
        if None in outputs:
            group = self._group_range()
            assert group is not None
            raise ParseError(
                self.tokens[group[0]].start, "every column of GROUP BY has to be in the SELECT: it is the key"
            )
        self.options["key"] = ", ".join([*(name for name in outputs if name), names["WINDOWSTART"]])

    # Words

    def _words(self) -> None:
        rewritten_until = 0
        for index, token in enumerate(self.tokens):
            if index < rewritten_until:
                continue
            word = token.text.upper() if token.kind == WORD else ""
            call = self._matches(index + 1, "(")
            if word in _TYPES and self._matches(index - 1, "AS") and self._matches(index + 1, ")"):
                self._replace(index, index, _TYPES[word])
            elif word in _WINDOW_COLUMNS and self._window_function and not self._matches(index - 1, "AS", "."):
                self._pseudo_column(index, index, f"unix_millis({self._window_function}.{_WINDOW_COLUMNS[word]})")
            elif word == "ROWTIME" and not self._matches(index - 1, "AS"):
                self._rowtime(index)
            elif token.matches("->"):
                self._field(index)
            elif word in _RECORD_PARTS and not self._matches(index - 1, "AS"):
                self._record_part(index)
            elif token.matches("=>"):
                self._lambda(index)
            elif word == "ARRAY" and self._matches(index + 1, "["):
                self._array(index)
            elif call and word in ("MAP", "STRUCT"):
                self._constructor(index, word)
            elif call and word not in self.functions and not self._matches(index - 1, "AS", "FROM", "JOIN", "WITH"):
                rewritten_until = self._call(index, word)

    def _call(self, index: int, word: str) -> int:
        """Rewrite the call of a function that Spark does not have; return until where nothing is left to do."""
        if word in RENAMED:
            self._replace(index, index, RENAMED[word])
        elif word in REFUSED:
            raise ParseError(self.tokens[index].start, f"Spark has no {word}: {REFUSED[word]}")
        elif word in _BY_OFFSET:
            self._by_offset(index, _BY_OFFSET[word])
            return closing_index(self.tokens, index + 1)
        elif word in WRAPPED:
            self._wrap(index, word)
        return 0

    def _pseudo_column(self, first: int, last: int, expression: str) -> None:
        alone = (self._matches(first - 1, "SELECT", ",") and not self._depths[first]) and (
            self._matches(last + 1, ",", "FROM")
        )
        in_list = last < self._end(1, "FROM")
        name = f" AS {self.tokens[last].text}" if alone and in_list else ""
        self._replace(first, last, expression + name)

    def _rowtime(self, index: int) -> None:
        qualified = self._matches(index - 1, ".")
        alias = self.tokens[index - 2].value.lower() if qualified else None
        sources = [source for source in self._sources if alias is None or source.alias.lower() == alias]
        if not sources or any(source.relation and "rowtime" in source.relation.columns for source in sources):
            return
        time = self._time(sources[0], index, qualified=qualified)
        self._pseudo_column(index - 2 if qualified else index, index, f"unix_millis({time})")

    def _record_part(self, index: int) -> None:
        token = self.tokens[index]
        qualified = self._matches(index - 1, ".")
        alias = self.tokens[index - 2].value.lower() if qualified else None
        sources = [source for source in self._sources if alias is None or source.alias.lower() == alias]
        name = token.text.lower()
        # A statement that selects from another one may have a column of this name.
        if not sources or any(source.relation and not source.relation.columns for source in sources):
            return
        if any(source.relation and name in source.relation.columns for source in sources):
            return
        relation = sources[0].relation
        part = _RECORD_PARTS[token.text.upper()]
        column = relation.parts.get(part) if relation is not None else None
        if column is None:
            raise ParseError(
                token.start,
                f"declare {name} BIGINT METADATA FROM '{part}' in {sources[0].alias}, or the column by another name",
            )
        self._pseudo_column(index, index, quote_name(column))

    def _field(self, index: int) -> None:
        # Spark's lambda has the same sign: it stands in a call of certain functions, behind a comma, after a name
        # without a qualifier.
        is_lambda = self._find_function(index) in HIGHER_ORDER and (
            self._matches(index - 2, ",") or self._matches(index - 1, ")")
        )
        if not is_lambda:
            self._replace(index, index, ".")

    def _find_function(self, index: int) -> str:
        """Return the function in whose call a token stands, in capitals; empty outside of calls."""
        opening = self._calls[index]
        return self.tokens[opening - 1].text.upper() if opening > 0 else ""

    def _lambda(self, index: int) -> None:
        function, opening = self._find_function(index), self._calls[index]
        # Spark's sign of a named argument.
        if function not in ("FILTER", "REDUCE", "TRANSFORM"):
            return
        names = 1
        if self._matches(index - 1, ")"):
            first = next(place for place in range(index - 2, -1, -1) if self._matches(place, "("))
            names += sum(self._matches(place, ",") for place in range(first, index))
        if function == "FILTER" and names > 1:
            self._replace(opening - 1, opening - 1, "map_filter")
        elif names > 1 + (function == "REDUCE"):
            other = "transform_values(m, (k, v) -> ...) or transform_keys" if function == "TRANSFORM" else "aggregate"
            raise ParseError(self.tokens[opening - 1].start, f"Spark's {function} takes an array: write {other}")
        self._replace(index, index, "->")

    def _array(self, index: int) -> None:
        known = [source.relation for source in self._sources if source.relation is not None]
        if any("array" in relation.columns for relation in known):
            return
        depth = 0
        for place in range(index + 1, len(self.tokens)):
            depth += self._matches(place, "[") - self._matches(place, "]")
            if not depth:
                self._replace(index, index + 1, "array(")
                self._replace(place, place, ")")
                return

    def _constructor(self, index: int, word: str) -> None:
        """Rewrite `MAP('a' := 1)` and `STRUCT(a := 1)`."""
        close = closing_index(self.tokens, index + 1)
        joints = [
            place
            for place in range(index + 2, close)
            if self._calls[place] == index + 1 and self._matches(place, ":") and self._matches(place + 1, "=")
        ]
        if not joints:
            return
        for place in joints:
            name = self.tokens[place - 1]
            if word == "STRUCT":
                text = name.value.replace("\\", "\\\\").replace("'", "\\'")
                self._replace(place - 1, place - 1, f"'{text}'")
            self._replace(place, place + 1, ",")
        if word == "STRUCT":
            self._replace(index, index, "named_struct")
        else:
            self._replace(index, index, "map")

    def _by_offset(self, index: int, function: str) -> None:
        close = closing_index(self.tokens, index + 1)
        token = self.tokens[index]
        parts = self.tokens[index + 2 : close]
        commas = [position for position, part in enumerate(parts) if part.matches(",")]
        name = token.text.upper()
        if any(part.matches("(", "[") for part in parts) or not parts or len(commas) > 1:
            raise ParseError(token.start, f"{name} takes a column, and whether nulls are left out: {name}(x, true)")
        skip_nulls = True
        last = close - 1
        if commas:
            if not parts[-1].matches("TRUE", "FALSE"):
                raise ParseError(token.start, f"{name} of several values: write {function}(x, offset, n)")
            skip_nulls, last = parts[-1].matches("TRUE"), close - 3
        relation = self._sources[0].relation if self._sources else None
        if relation is None or "offset" not in relation.parts:
            source = self._sources[0].alias if self._sources else "the stream"
            raise ParseError(
                token.start,
                f"{name} needs the offset: declare record_offset BIGINT METADATA FROM 'offset' in {source}",
            )
        column = self._source_text(index + 2, last).replace("->", ".")
        only = f" FILTER (WHERE {column} IS NOT NULL)" if skip_nulls else ""
        self._replace(index, close, f"{function}({column}, {quote_name(relation.parts['offset'])}){only}")

    def _wrap(self, index: int, word: str) -> None:
        wrapped = WRAPPED[word]
        close = closing_index(self.tokens, index + 1)
        commas = [
            place for place in range(index + 2, close) if self._matches(place, ",") and self._calls[place] == index + 1
        ]
        if len(commas) != wrapped.arguments - 1 or close == index + 2:
            raise ParseError(self.tokens[index].start, f"{word} takes {wrapped.takes}")
        self._replace(index, index, wrapped.head)
        self._insert(self.tokens[commas[0] if commas else close].start, wrapped.behind_first)
        if wrapped.tail:
            self._insert(self.tokens[close].end, wrapped.tail)


def _nesting(tokens: Sequence[Token]) -> tuple[list[int], list[int]]:
    """Return in how many parentheses and brackets each token is, and the index of the innermost one; -1 for none."""
    openings: list[int] = []
    depths, innermost = [], []
    for index, token in enumerate(tokens):
        if token.matches(")", "]") and openings:
            openings.pop()
        depths.append(len(openings))
        innermost.append(openings[-1] if openings else -1)
        if token.matches("(", "["):
            openings.append(index)
    return depths, innermost


def _normalize(token: Token) -> str:
    return token.value.upper() if token.kind in (WORD, NAME) else token.text


def _is_column(expression: Sequence[str]) -> bool:
    return len(expression) == 1 or (len(expression) == 3 and expression[1] == ".")

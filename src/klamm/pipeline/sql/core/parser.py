"""Parses statements. A statement with a syntax error is one problem, and parsing continues after it.

The forms:

    CREATE STREAM|TABLE name (column type [NOT NULL] [METADATA [FROM 'part']], ...) [WITH (option = value, ...)]
    CREATE STREAM|TABLE name [WITH (...)] AS select
    CREATE VIEW name AS select
    CREATE SINK name [WITH (...)] AS select
    CREATE SOURCE name [(columns)] WITH (...)
    CREATE FUNCTION name RETURNS type AS 'module:function'
    SET name = value
"""

from __future__ import annotations

from typing import Final

from klamm.pipeline.sql.core.column_types import parse_type
from klamm.pipeline.sql.core.problems import ParseError, SqlProblem, join_words, suggest
from klamm.pipeline.sql.core.statements import Column, Create, CreateFunction, Select, Set, Statement, Value
from klamm.pipeline.sql.core.tokens import NAME, NUMBER, STRING, WORD, Token, tokenize

_KINDS: Final = ("STREAM", "TABLE", "VIEW", "SINK", "SOURCE", "FUNCTION")
_BEGINNINGS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
METADATA: Final = ("headers", "key", "offset", "op", "partition", "timestamp", "topic")
"""The parts of a record that a METADATA column may be taken from."""


def parse(text: str) -> tuple[list[Statement], list[SqlProblem]]:
    """Return the statements of a text, and the problems of those that could not be parsed."""
    try:
        tokens = tokenize(text)
    except ParseError as refused:
        return [], [refused.problem]
    statements: list[Statement] = []
    problems: list[SqlProblem] = []
    start = 0
    for index in range(len(tokens) + 1):
        # A semicolon in a string or comment is no token.
        if index < len(tokens) and not tokens[index].matches(";"):
            continue
        statement_tokens = tokens[start:index]
        start = index + 1
        if not statement_tokens:
            continue
        try:
            statements.append(_StatementParser(text, statement_tokens).read())
        except ParseError as refused:
            problems.append(refused.problem)
    return statements, problems


class _StatementParser:
    """A recursive-descent parser over one statement's tokens."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._index = 0
        self._end = tokens[-1].end

    @property
    def _offset(self) -> int:
        """The offset of the next token, or of the statement's end."""
        return self._tokens[self._index].start if self._index < len(self._tokens) else self._end

    def _peek(self, *words: str) -> bool:
        return self._index < len(self._tokens) and self._tokens[self._index].matches(*words)

    def _take(self, *words: str) -> bool:
        matches = self._peek(*words)
        self._index += matches
        return matches

    def _next(self, kinds: tuple[str, ...], what: str) -> Token:
        if self._index >= len(self._tokens) or self._tokens[self._index].kind not in kinds:
            raise ParseError(self._offset, f"expected {what}")
        self._index += 1
        return self._tokens[self._index - 1]

    def _expect(self, sign: str, where: str) -> None:
        if not self._take(sign):
            raise ParseError(self._offset, f"expected {sign}, {where}")

    def _finish(self, expected: str) -> None:
        if self._index < len(self._tokens):
            token = self._tokens[self._index]
            raise ParseError(token.start, f"unexpected {token.text}: {expected}, or ; between statements")

    def read(self) -> Statement:
        """Parse the statement."""
        if self._take("SET"):
            return self._set()
        first = self._tokens[0]
        if not self._take("CREATE"):
            hint = suggest(first.text, ("CREATE", "SET"))
            if first.matches(*_BEGINNINGS):
                hint = ": a SELECT alone has no target; write CREATE STREAM name AS SELECT ..."
            raise ParseError(first.start, f"a statement begins with CREATE or SET, not {first.text}{hint}")
        if self._peek("OR", "IF"):
            raise ParseError(self._offset, "a pipeline file declares what exists: leave OR REPLACE and IF out")
        offset = self._offset
        kind = self._next((WORD,), f"one of {join_words(_KINDS)}")
        word = kind.text.upper()
        if word not in _KINDS:
            raise ParseError(
                offset, f"there is no CREATE {kind.text}{suggest(word, _KINDS) or f': {join_words(_KINDS)}'}"
            )
        if self._peek("IF"):
            raise ParseError(self._offset, "a pipeline file declares what exists: leave IF NOT EXISTS out")
        name = self._next((WORD, NAME), f"the {word.lower()}'s name")
        # The name was forgotten: the message is clearer than "unexpected AS".
        if name.matches("AS", "WITH", "SELECT"):
            raise ParseError(name.start, f"expected the {word.lower()}'s name")
        if word == "FUNCTION":
            return self._function(name)
        return self._create(word.lower(), name)

    def _set(self) -> Set:
        name, offset = self._parse_dotted("a setting's name")
        self._expect("=", "as in SET name = value")
        value = self._value(offset)
        self._finish("a SET ends after its value")
        return Set(name, value)

    def _function(self, name: Token) -> CreateFunction:
        if not self._take("RETURNS"):
            raise ParseError(self._offset, "expected RETURNS and a type")
        returns, self._index = parse_type(self._tokens, self._index, self._end)
        if not self._take("AS"):
            raise ParseError(self._offset, "expected AS 'module:function'")
        target = self._next((STRING,), "'module:function'")
        self._finish("a function ends after its target")
        module, colon, function = target.value.partition(":")
        if not (colon and all(part.isidentifier() for part in (*module.split("."), *function.split(".")))):
            raise ParseError(target.start, f"write 'module:function', e.g. 'bank.rules:risk', not {target.text}")
        return CreateFunction(name.value, name.start, returns, target.value, target.start)

    def _create(self, kind: str, name: Token) -> Create:
        columns = self._columns() if self._take("(") else ()
        options = self._options() if self._take("WITH") else {}
        select = None
        if self._take("AS"):
            select = self._select()
        else:
            following = "AS SELECT" if options else "(columns), WITH (options) or AS SELECT"
            self._finish(f"{following} may follow" if kind in ("stream", "table") else f"{following} follows")
        return Create(kind, name.value, name.start, columns, options, select)

    def _columns(self) -> tuple[Column, ...]:
        columns: dict[str, Column] = {}
        while True:
            name = self._next((WORD, NAME), "a column's name")
            kind, self._index = parse_type(self._tokens, self._index, self._end)
            nullable, metadata = True, None
            if self._take("NOT"):
                if not self._take("NULL"):
                    raise ParseError(self._offset, "expected NULL after NOT")
                nullable = False
            if self._take("METADATA"):
                metadata = self._metadata(name)
            if name.value.lower() in columns:
                raise ParseError(name.start, f"there are two columns {name.value}")
            columns[name.value.lower()] = Column(name.value, kind, name.start, nullable, metadata)
            if self._take(")"):
                return tuple(columns.values())
            self._expect(",", "or ) after the last column")

    def _metadata(self, name: Token) -> str:
        part, offset = name.value, name.start
        if self._take("FROM"):
            token = self._next((STRING,), "'timestamp' or another part of the record")
            part, offset = token.value, token.start
        if part.lower() not in METADATA:
            raise ParseError(offset, f"a record has no {part}{suggest(part, METADATA) or f': {join_words(METADATA)}'}")
        return part.lower()

    def _options(self) -> dict[str, Value]:
        self._expect("(", "as in WITH (topic = 'orders')")
        options: dict[str, Value] = {}
        if self._take(")"):
            return options
        while True:
            name, offset = self._parse_dotted("an option's name")
            self._expect("=", f"as in {name} = 'value'")
            if name in options:
                raise ParseError(offset, f"{name} is given twice")
            options[name] = self._value(offset)
            if self._take(")"):
                return options
            self._expect(",", "or ) after the last option")

    def _parse_dotted(self, what: str) -> tuple[str, int]:
        first = self._next((WORD, NAME, STRING), what)
        # A name in quotes may have characters that a word may not, such as a dash.
        if first.kind == STRING:
            return first.value, first.start
        parts = [first.value]
        while self._take("."):
            parts.append(self._next((WORD, NAME), what).value)
        return ".".join(parts), first.start

    def _value(self, name_offset: int) -> Value:
        # The tokenizer splits -1 into a sign and a number.
        negative = "-" if self._take("-") else ""
        token = self._next((STRING, NUMBER, WORD), "a value: 'text', a number, true or false")
        return Value(negative + token.value, token.start, name_offset)

    def _select(self) -> Select:
        if not self._peek(*_BEGINNINGS):
            raise ParseError(self._offset, "expected SELECT after AS")
        tokens = tuple(self._tokens[self._index :])
        start = tokens[0].start
        # The text as written: Spark parses it, and reports errors by its positions.
        return Select(self._text[start : self._end], start, tokens)

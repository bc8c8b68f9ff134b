"""Rewrites a pipeline file in ksqlDB's spelling to this one's; statements in this one's pass unchanged. Pure.

What maps is rewritten, and the rest is refused with the line to write instead. Positions of the new text map to the
file, so problems show what the file says.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.ksql_selects import Relation, SelectRewrite
from klamm.pipeline.sql.core.ksql_subscripts import parse_ksql_type
from klamm.pipeline.sql.core.problems import ParseError, SqlProblem
from klamm.pipeline.sql.core.rewritten_text import Edit, Piece, RewrittenText, apply_edits
from klamm.pipeline.sql.core.tokens import NAME, STRING, WORD, Token, closing_index, tokenize

_OPTIONS: Final = {
    "kafka_topic": "topic",
    "value_format": "format",
    "format": "format",
    "key_format": "key_format",
    "partitions": "partitions",
    "replicas": "replication",
    "timestamp": "timestamp",
    "timestamp_format": "timestamp_format",
    "key": "key",
}
_REFUSED_OPTIONS: Final = {
    "value_delimiter": "CSV has commas here",
    "key_delimiter": "a key of several columns is JSON here",
    "wrap_single_value": "for a bare value write format = 'string'",
    "retention_ms": "set it on the topic: klamm topic alter NAME retention.ms=...",
    "value_schema_id": "the subject's newest version is used: klamm schema show SUBJECT",
    "key_schema_id": "the subject's newest version is used: klamm schema show SUBJECT",
    "window_type": "declare the window's columns as they are in the value",
    "window_size": "declare the window's columns as they are in the value",
}
_FORMATS: Final = {"delimited": "csv", "json_sr": "json_schema", "kafka": "string", "none": "string"}
_REFUSED_STATEMENTS: Final = {
    "ALTER": "change the CREATE statement: klamm pipeline plan FILE shows what that means for the state",
    "ASSERT": "write a test: klamm.pipeline.testing",
    "DEFINE": "write the value itself, or a setting that --set NAME=VALUE replaces",
    "DESCRIBE": "klamm pipeline plan FILE shows the statements, klamm topic show NAME a topic",
    "DROP": "remove the CREATE statement; klamm topic delete NAME removes the topic",
    "EXPLAIN": "klamm pipeline plan FILE shows the queries",
    "LIST": "use klamm topic ls, klamm pipeline ls or klamm pipeline plan FILE",
    "PAUSE": "use klamm pipeline pause NAME",
    "PRINT": "use klamm consume TOPIC",
    "RESUME": "use klamm pipeline resume NAME",
    "RUN": "a pipeline is one file",
    "SHOW": "use klamm topic ls, klamm pipeline ls or klamm pipeline plan FILE",
    "TERMINATE": "klamm pipeline stop NAME stops the pipeline; without its CREATE statement a query does not run",
    "UNDEFINE": "write the value itself, or a setting that --set NAME=VALUE replaces",
    "UNSET": "leave the SET out",
}
_REFUSED_SETTINGS: Final = {
    "cache.max.bytes.buffering": "write SET trigger = '2 seconds': results are written that often",
    "commit.interval.ms": "write SET trigger = '2 seconds': results are written that often",
    "processing.guarantee": "leave it out: results are always written exactly once",
}
_TYPES: Final = {"VARCHAR": "STRING", "BYTES": "BINARY"}
_EPOCH_TYPES: Final = ("BIGINT", "INT", "INTEGER")


def rewrite(text: str) -> tuple[RewrittenText, list[SqlProblem]]:
    """Return the text in this spelling, and the problems, whose offsets are those of the new text.

    A statement with a problem is blank in the new text.
    """
    verbatim = RewrittenText([Piece(text, 0, True)])
    try:
        tokens = tokenize(text)
    except ParseError:
        return verbatim, []  # the parser reports it
    statements = [_KsqlStatement(text, part) for part in _split(tokens)]
    relations: dict[str, Relation] = {}
    refusals: dict[int, ParseError] = {}
    for number, statement in enumerate(statements):
        try:
            statement.read_head()
        except ParseError as refused:
            refusals[number] = refused
        if statement.relation is not None:
            relations.setdefault(statement.relation.name.lower(), statement.relation)
    functions = {statement.tokens[2].value.upper() for statement in statements if statement.declares_function()}
    targets = {statement.relation.name.lower(): statement for statement in statements if statement.relation}
    for number, statement in enumerate(statements):
        if number in refusals:
            continue
        try:
            statement.rewrite_select(relations, functions)
            statement.find_target(targets)
        except ParseError as refused:
            refusals[number] = refused
    # Last, as a SELECT may set the watermark of a stream that is declared before or after it.
    for number, statement in enumerate(statements):
        if number not in refusals:
            try:
                statement.finish()
            except ParseError as refused:
                refusals[number] = refused
    rewritten = RewrittenText(_assemble(text, statements, refusals))
    problems = [
        SqlProblem(rewritten.find(refused.problem.offset), refused.problem.message) for refused in refusals.values()
    ]
    return rewritten, problems


def _assemble(text: str, statements: Sequence[_KsqlStatement], refusals: Mapping[int, ParseError]) -> Iterator[Piece]:
    copied = 0
    for number, statement in enumerate(statements):
        start, end = statement.tokens[0].start, statement.tokens[-1].end
        yield Piece(text[copied:start], copied, True)
        if number in refusals:
            yield Piece(" " * (end - start), start, True)
        elif statement.target is None:
            yield from statement.pieces()
        copied = end
    yield Piece(text[copied:], copied, True)


def _split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    statement: list[Token] = []
    for token in tokens:
        if token.matches(";"):
            if statement:
                yield statement
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


@dataclass(slots=True)
class _KsqlColumn:
    name: Token
    type: Sequence[Token]


@dataclass(slots=True)
class _KsqlStatement:
    """One statement: its edits, and what other statements have to know of it."""

    text: str
    tokens: list[Token]
    relation: Relation | None = None
    target: _KsqlStatement | None = None
    """The statement that an INSERT INTO became a part of."""
    inserts: list[_KsqlStatement] = field(default_factory=list)
    is_ksql: bool = False
    """Whether what stands before the SELECT is only ksqlDB's."""
    edits: list[Edit] = field(default_factory=list)
    options: dict[str, Token] = field(default_factory=dict)
    """Values of its options, by their names in this spelling."""
    columns: list[_KsqlColumn] = field(default_factory=list)
    select: int | None = None
    """The index of the SELECT."""
    added: dict[str, str] = field(default_factory=dict)
    _options_offset: int | None = None
    _option_joint: str | None = None
    """What separates an added option from those before it; None without a list of options."""
    _columns_range: tuple[int, int] | None = None
    _insert_into: Token | None = None
    _group_names: tuple[str, ...] = ()
    _declared_watermark: bool = False
    _has_ksql_time: bool = False

    def _matches(self, index: int, *words: str) -> bool:
        return 0 <= index < len(self.tokens) and self.tokens[index].matches(*words)

    def _remove(self, first: int, last: int) -> None:
        self.edits.append(Edit(self.tokens[first].start, self.tokens[last].end, ""))

    def declares_function(self) -> bool:
        """Whether it is a CREATE FUNCTION."""
        return len(self.tokens) > 2 and self.tokens[0].matches("CREATE") and self.tokens[1].matches("FUNCTION")

    def read_head(self) -> None:
        """Read what stands before the SELECT."""
        first = self.tokens[0]
        word = first.text.upper()
        if first.matches("SELECT"):
            raise ParseError(
                first.start,
                'a pipeline file has no SELECT of its own: klamm pipeline query "SELECT ..." --watch follows a table,'
                ' klamm sql "SELECT ..." reads topics once; CREATE STREAM name AS SELECT ... keeps the rows in a topic',
            )
        if first.matches("SET"):
            self._read_setting()
        elif first.matches("INSERT"):
            self._read_insert()
        elif first.matches("CREATE"):
            self._read_create()
        elif first.kind == WORD and word in _REFUSED_STATEMENTS:
            raise ParseError(first.start, f"a pipeline file has no {word}: {_REFUSED_STATEMENTS[word]}")

    def _read_setting(self) -> None:
        if len(self.tokens) < 2 or self.tokens[1].kind != STRING:
            return
        name = self.tokens[1]
        setting = name.value.removeprefix("ksql.streams.")
        if setting == "auto.offset.reset":
            self.edits.append(Edit(name.start, name.end, "starting"))
        elif setting in _REFUSED_SETTINGS:
            raise ParseError(name.start, f"there is no setting {setting}: {_REFUSED_SETTINGS[setting]}")

    def _read_insert(self) -> None:
        if not self._matches(1, "INTO") or len(self.tokens) < 4 or self.tokens[2].kind not in (WORD, NAME):
            raise ParseError(self.tokens[0].start, "write INSERT INTO stream SELECT ...")
        self._insert_into = self.tokens[2]
        if not self._matches(3, "SELECT"):
            name = self._insert_into.value
            raise ParseError(
                self.tokens[3].start, f"rows are produced, not inserted: echo '{{...}}' | klamm produce {name}"
            )
        self.select = 3

    def _read_create(self) -> None:
        index = 1
        if self._matches(index, "OR") and self._matches(index + 1, "REPLACE"):
            # A file declares what exists, so it always replaces.
            self._remove(index, index + 1)
            index += 2
        if self._matches(index, "SOURCE", "SINK") and self._matches(index + 1, "CONNECTOR"):
            raise ParseError(
                self.tokens[index + 1].start,
                "connectors run in Kafka Connect, with this cluster as bootstrap.servers; or write"
                " CREATE SOURCE name WITH (connector = ...), CREATE SINK name WITH (format = ...) AS SELECT ...",
            )
        if self._matches(index, "TYPE") and index + 2 < len(self.tokens) and self._matches(index + 2, "AS"):
            raise ParseError(
                self.tokens[index].start, "there are no named types: write STRUCT<...> in each column that has it"
            )
        following = self.tokens[index + 2] if index + 2 < len(self.tokens) else None
        named = following is not None and following.kind in (WORD, NAME) and not following.matches("WITH", "AS")
        if self._matches(index, "SOURCE") and self._matches(index + 1, "STREAM", "TABLE") and named:
            # A source that is only read, as all are that have no SELECT.
            self._remove(index, index)
            self.is_ksql = True
            index += 1
        kind = self.tokens[index].text.lower() if index < len(self.tokens) else ""
        index += 1
        if self._matches(index, "IF") and self._matches(index + 1, "NOT") and self._matches(index + 2, "EXISTS"):
            self._remove(index, index + 2)
            index += 3
        if kind not in ("stream", "table", "view", "sink") or index >= len(self.tokens):
            return
        name = self.tokens[index]
        if name.kind not in (WORD, NAME) or name.matches("WITH", "AS", "SELECT"):
            return
        self.relation = Relation(kind, name.value)
        self._options_offset = name.end
        index += 1
        if self._matches(index, "("):
            close = closing_index(self.tokens, index)
            self._columns_range = (self.tokens[index].start, self.tokens[close].end)
            self._options_offset = self.tokens[close].end
            self._read_columns(index + 1, close)
            index = close + 1
        if self._matches(index, "WITH") and self._matches(index + 1, "("):
            close = closing_index(self.tokens, index + 1)
            self._options_offset = self.tokens[close].start
            self._option_joint = ", " if close > index + 2 else ""
            self._read_options(index + 2, close)
            index = close + 1
        if self._matches(index, "AS"):
            self.select = index + 1
        self._describe()

    def _describe(self) -> None:
        """Set what SELECTs have to know of this stream or table."""
        relation = self.relation
        assert relation is not None
        relation.is_ksql = self.is_ksql
        value = self.options.get("timestamp")
        relation.time = value.value if value is not None else None
        value = self.options.get("watermark")
        relation.watermark = value.value if value is not None else None
        self._declared_watermark = value is not None
        value = self.options.get("key")
        names = value.value if value is not None else self.added.get("key", "")
        relation.key = tuple(name.strip() for name in names.split(",") if name.strip())
        relation.columns = frozenset(column.name.value.lower() for column in self.columns)
        for column in self.columns:
            last = column.type[-1] if column.type else None
            if last is not None and last.kind == STRING and column.type[-2].matches("FROM"):
                relation.parts[last.value.lower()] = column.name.value
            relation.types[column.name.value.lower()] = parse_ksql_type(column.type)
        # ksqlDB's may be a number or a text; in the other spelling the graph's check says what is wrong.
        if self._has_ksql_time:
            self._check_time(relation.time)

    def _read_columns(self, start: int, end: int) -> None:
        keys: list[str] = []
        for first, last in _parts(self.tokens, start, end):
            name, words = self.tokens[first], self.tokens[first + 1 : last + 1]
            if name.kind not in (WORD, NAME) or not words:
                continue
            self.columns.append(_KsqlColumn(name, words))
            if words[-1].matches("HEADERS") or any(word.matches("HEADER") for word in words[1:]):
                raise ParseError(words[-1].start, f"write {name.text} MAP<STRING, BINARY> METADATA FROM 'headers'")
            if len(words) > 1 and words[-1].matches("KEY"):
                primary = len(words) > 2 and words[-2].matches("PRIMARY")
                self._remove(last - primary, last)
                self.is_ksql = True
                keys.append(name.value)
            for index in range(first + 1, last + 1):
                self._rewrite_type(index, last)
        if keys:
            self.added["key"] = ", ".join(keys)

    def _rewrite_type(self, index: int, last: int) -> None:
        token = self.tokens[index]
        replacement = _TYPES.get(token.text.upper()) if token.kind == WORD else None
        # A size follows VARCHAR(20), and a type follows a field that is called bytes.
        ends = index == last or self._matches(index + 1, ">", ",", "NOT", "KEY", "PRIMARY", "METADATA", "DEFAULT")
        if replacement is not None and ends:
            self.is_ksql = True
            self.edits.append(Edit(token.start, token.end, replacement))

    def _read_options(self, start: int, end: int) -> None:
        for first, last in _parts(self.tokens, start, end):
            name, value = self.tokens[first], self.tokens[last]
            if not self._matches(first + 1, "=") or name.kind != WORD:
                if last > first:
                    written = "".join(token.value for token in self.tokens[first : last - 1])
                    self.options[written] = value
                continue
            word = name.text.lower()
            if word in _REFUSED_OPTIONS:
                raise ParseError(name.start, f"there is no option {name.text}: {_REFUSED_OPTIONS[word]}")
            # Others are Klamm's too, in capitals.
            self.is_ksql = self.is_ksql or _OPTIONS.get(word, word) != word
            option = _OPTIONS.get(word, word if name.text.isupper() else name.text)
            if option != name.text:
                self.edits.append(Edit(name.start, name.end, option))
            self.options[option] = value
            self._has_ksql_time = self._has_ksql_time or name.text == "TIMESTAMP"
            if word in ("key_format", "format", "value_format"):
                mapped = _FORMATS.get(value.value.lower())
                if mapped is not None:
                    self.edits.append(Edit(value.start, value.end, f"'{mapped}'"))
            if name.text == "FORMAT":  # ksqlDB's is the format of the key, too
                self.options.setdefault("key_format", value)

    def _check_time(self, time: str | None) -> None:
        for column in self.columns:
            if time is None or column.name.value.lower() != time.lower() or not column.type:
                continue
            word = column.type[0].text.upper()
            if word in _EPOCH_TYPES:
                raise ParseError(
                    column.type[0].start,
                    f"a time is a TIMESTAMP: write {column.name.text} TIMESTAMP here, and TIMESTAMP_FORMAT = 'millis'",
                )
            if word in ("VARCHAR", "STRING"):
                raise ParseError(
                    column.type[0].start,
                    f"a time is a TIMESTAMP: write {column.name.text} TIMESTAMP here; TIMESTAMP_FORMAT parses it",
                )

    def rewrite_select(self, relations: Mapping[str, Relation], functions: Container[str]) -> None:
        """Rewrite the SELECT."""
        if self.select is None or self.select >= len(self.tokens):
            return
        kind = self.relation.kind if self.relation is not None else "stream"
        is_ksql = self.is_ksql or self._insert_into is not None
        rewritten = SelectRewrite(self.text, self.tokens[self.select :], kind, relations, functions, is_ksql)
        rewritten.run()
        if self.relation is not None:
            self.relation.is_ksql = rewritten.is_ksql
            self.relation.types.update(rewritten.output_types())
        self.edits += rewritten.edits
        self._group_names = rewritten.group_names
        for name, text in rewritten.options.items():
            if name not in self.options and (text or name != "key"):
                self.added[name] = text

    def find_target(self, targets: Mapping[str, _KsqlStatement]) -> None:
        """Make an INSERT INTO a part of the statement of its stream."""
        name = self._insert_into
        if name is None:
            return
        target = targets.get(name.value.lower())
        if target is None or target.relation is None:
            raise ParseError(
                name.start, f"there is no stream {name.value}: write CREATE STREAM {name.value} AS SELECT ..."
            )
        if target.relation.kind != "stream":
            raise ParseError(name.start, f"{name.value} is a {target.relation.kind}: INSERT INTO is for streams")
        self.target = target
        target.inserts.append(self)
        # The stream's rows are written here, so its SELECTs decide on its key where it has none.
        if "key" not in target.options and "key" in self.added:
            target.added.setdefault("key", self.added["key"])

    def finish(self) -> None:
        """Add the edits of options."""
        if self.relation is None:
            return
        if self.relation.watermark is not None and not self._declared_watermark and self.relation.time is not None:
            self.added["watermark"] = self.relation.watermark
        self._check_key_format()
        added = ", ".join(f"{name} = '{value}'" for name, value in self.added.items() if name not in self.options)
        if added and self._options_offset is not None:
            text = f" WITH ({added})" if self._option_joint is None else f"{self._option_joint}{added}"
            self.edits.append(Edit(self._options_offset, self._options_offset, text))

    def _check_key_format(self) -> None:
        value = self.options.get("key_format")
        if value is None:
            return
        declared = self.options.get("key")
        names = (declared.value if declared is not None else self.added.get("key", "")).split(",")
        keys = [name.strip().lower() for name in names if name.strip()] or [*self._group_names]
        if value.value.lower() == "json" and len(keys) == 1 and self.options.get("format") is not value:
            raise ParseError(
                value.start, "ksqlDB's JSON key of one column is a bare value: leave KEY_FORMAT out, the key is text"
            )
        if value.value.lower() == "kafka":
            for column in self.columns:
                if column.name.value.lower() in keys and column.type[0].text.upper() not in ("VARCHAR", "STRING"):
                    raise ParseError(
                        column.type[0].start,
                        f"a key of {column.type[0].text} is binary in ksqlDB's format KAFKA: declare"
                        f" {column.name.text} BINARY, or write the key as text",
                    )

    def pieces(self) -> Iterator[Piece]:
        """Yield the statement, with the SELECTs that are inserted into its stream."""
        start, end = self.tokens[0].start, self.tokens[-1].end
        if not self.inserts:
            yield from apply_edits(self.text, start, end, self.edits)
            return
        if self.select is not None:
            yield from apply_edits(self.text, start, end, self.edits)
            yield from self._selects(" UNION ALL ")
            return
        first, last = self._columns_range or (end, end)
        outside = [edit for edit in self.edits if not first <= edit.start < last]
        # Not those inside of the list, which is left out, but an option that is added right behind it.
        outside.append(Edit(first, last, ""))
        yield from apply_edits(self.text, start, end, sorted(outside, key=_order))
        casts = ", ".join(
            f"cast({quote_name(column.name.value)} AS {self._type(column)}) AS {quote_name(column.name.value)}"
            for column in self.columns
        )
        names = ", ".join(quote_name(column.name.value) for column in self.columns)
        yield Piece(f" AS SELECT {casts} FROM (", self.inserts[0].tokens[0].start)  # noqa: S608 - names are quoted
        yield from self._selects("")
        yield Piece(f") AS inserted ({names})", self.inserts[0].tokens[0].start)

    def _selects(self, joint: str) -> Iterator[Piece]:
        for statement in self.inserts:
            assert statement.select is not None
            start = statement.tokens[statement.select].start
            yield Piece(joint, start)
            yield from apply_edits(self.text, start, statement.tokens[-1].end, statement.edits)
            joint = " UNION ALL "

    def _type(self, column: _KsqlColumn) -> str:
        words = [token for token in column.type if not token.matches("PRIMARY", "KEY", "NOT", "NULL")]
        return " ".join(_TYPES.get(token.text.upper(), token.text) for token in words)


def _order(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.end


def _parts(tokens: Sequence[Token], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each part between commas outside of (...) and <...>."""
    depth, first = 0, start
    for index in range(start, end):
        token = tokens[index]
        depth += token.matches("(", "<") - token.matches(")", ">")
        if not depth and token.matches(","):
            if first < index:
                yield first, index - 1
            first = index + 1
    if first < end:
        yield first, end - 1

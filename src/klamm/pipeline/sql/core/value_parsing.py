"""Spark expressions that parse a value's JSON or CSV text into columns, and say why a value does not fit; pure text.

Spark's own parsers are lenient: they take the first of two JSON documents, single quotes, a number of any unit for a
time, and round decimals. Rows would change or disappear without a word. `parsing = 'strict'`, the default, finds these:

    more than one document, text behind it    the text is parsed as an element of an array, between two marks
    single quotes                             not allowed
    "1,25" in a DECIMAL                       Spark drops the comma and reads 125; the field's text is looked at
    1.239 in a DECIMAL(12,2)                  parsed with all its digits, and compared with the declared type
    1767225600000 in a TIMESTAMP              a number is a time only with timestamp_format = 'millis', ...
    the year 57971                            out of range: one such row would move a watermark past all others

`parsing = 'lenient'` leaves all of it to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.statements import Column

BROKEN: Final = "_broken"
"""The column in which Spark puts the text of a value that does not parse."""
EPOCH_FORMATS: Final = ("seconds", "millis", "micros")
_DOCUMENT: Final = "_document"
_MARK: Final = "_klamm_mark"
_LENIENT_OPTIONS: Final = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{BROKEN}')"
_STRICT_OPTIONS: Final = (
    f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{BROKEN}', 'allowSingleQuotes', 'false')"
)
_TIMESTAMPS: Final = ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_BYTES: Final = ("TINYINT", "BYTE")
_DECIMAL: Final = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\b(?:\((\d+)(?:,(\d+))?\))?")
_DECIMAL_OR_NAME: Final = re.compile(rf"`(?:[^`]|``)*`|\b{_DECIMAL.pattern}")
"""The name of a field may be a word of a type."""
_PRECISION_MAX: Final = 38
_PRECISION_DEFAULT: Final = 10
_QUOTED_COMMA: Final = r':[ \t\r\n]*"[-+.,0-9a-fA-Fu\\\x{80}-\x{10FFFF}]*(?:,|\\u002[cC])'
"""A string that begins as digits do, and has a comma. Any of its characters may be escaped, and digits of any alphabet
are digits for Java. What it matches beyond those costs a second look at the field, and is refused only by that."""
_ISO_DATE: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?$"
"""Spark would also take a year, or a time of day, which it completes with the current date."""
EVENT_YEARS: Final = (1900, 2200)
"""The years of a column that moves a watermark. 9999-12-31, a usual mark for `for ever`, would end every window."""
_YEARS: Final = (1, 9999)
_EPOCH_MICROS: Final = {
    1: -62135596800000000,
    1900: -2208988800000000,
    2200: 7258118400000000,
    9999: 253402300800000000,
}
"""Where the ranges begin and end: the first instant of these years, and for 9999 the first instant after it."""


def literal(text: str) -> str:
    """Return a text as a string literal of Spark."""
    # Spark's parser reads backslash escapes (spark.sql.parser.escapedStringLiterals is off by default).
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def is_strict(node: GraphNode) -> bool:
    """Whether values are parsed strictly."""
    return (node.option("parsing") or "strict").lower() == "strict"


def parsed_struct(node: GraphNode, kind: str, columns: Sequence[Column], text: str) -> str:
    """Return the expression that parses `text`, JSON or CSV by `kind`; read its fields with `field`."""
    if not is_strict(node):
        function = "from_json" if kind == "json" else "from_csv"
        return f"{function}({text}, {literal(f'{_ddl(columns)}, {BROKEN} STRING')}, {_LENIENT_OPTIONS})"
    names = ", ".join(f"{quote_name(column.name)} {_parsed_type(node, column)}" for column in columns)
    if kind == "csv":
        return f"from_csv({text}, {literal(f'{names}, {BROKEN} STRING')}, {_LENIENT_OPTIONS})"
    # A second document, or any text behind the first, adds an element to the array or ends it before the second mark.
    # The marks hold a hash of the text: a text that ends the array and writes a mark itself cannot hold its own hash.
    mark = f"concat('{{\"{_MARK}\":\"', {_hash(text)}, '\"}}')"
    wrapped = f"concat('{{\"{_DOCUMENT}\":[', {mark}, ',', {text}, ',', {mark}, ']}}')"
    fields = [f"{quote_name(column.name)}: {_parsed_type(node, column)}" for column in columns]
    # A string, as the record may have a field of this name: any value parses as a string.
    fields.append(f"{_MARK}: STRING")
    schema = literal(f"{_DOCUMENT} ARRAY<STRUCT<{', '.join(fields)}>>, {BROKEN} STRING")
    return f"from_json({wrapped}, {schema}, {_STRICT_OPTIONS})"


def parsed_field(node: GraphNode, kind: str, column: Column, row: str) -> str:
    """Return the expression of a column's value in its declared type."""
    parsed = _raw_field(node, kind, column, row)
    if not is_strict(node):
        return parsed
    if column.type in _TIMESTAMPS:
        return _time(node, column, parsed)
    if _parsed_type(node, column) != column.type:
        return f"try_cast({parsed} AS {column.type})"
    return parsed


def parse_errors(node: GraphNode, kind: str, columns: Sequence[Column], row: str, text: str) -> Iterator[str]:
    """Yield the WHEN branches of a value's error: it does not parse, or a column does not fit."""
    declared = ", ".join(f"{column.name} {column.type}" for column in columns)
    no_row = literal(f"the value is no {kind.upper()} of {declared}")
    if not is_strict(node):
        yield f"WHEN {row} IS NULL OR {row}.{BROKEN} IS NOT NULL THEN {no_row}"
        return
    if kind == "json":
        # Evaluated for values that failed only: Spark's lenient parser tells a strange text from a wrong type.
        lenient = f"from_json({text}, {literal(f'{_ddl(columns)}, {BROKEN} STRING')}, {_LENIENT_OPTIONS})"
        several = literal("the value is not one JSON document: text follows the first, or it has single quotes")
        failed = f"{row} IS NULL OR {row}.{BROKEN} IS NOT NULL"
        yield f"WHEN ({failed}) AND {lenient}.{BROKEN} IS NULL AND trim({text}) LIKE '{{%' THEN {several}"
        yield f"WHEN {failed} THEN {no_row}"
        first, last = (f"get({row}.{_DOCUMENT}, {index}).{_MARK} <=> {_hash(text)}" for index in (0, 2))
        yield f"WHEN NOT (size({row}.{_DOCUMENT}) <=> 3 AND {first} AND {last}) THEN {several}"
        yield f"WHEN get({row}.{_DOCUMENT}, 1) IS NULL THEN {no_row}"
    else:
        yield f"WHEN {row} IS NULL OR {row}.{BROKEN} IS NOT NULL THEN {no_row}"
    for column in columns:
        parsed, parsed_type = _raw_field(node, kind, column, row), _parsed_type(node, column)
        if kind == "json" and _DECIMAL.fullmatch(parsed_type):
            yield _comma_error(column, text)
        if column.type in _TIMESTAMPS:
            yield from _time_errors(node, column, parsed)
        elif parsed_type != column.type:
            yield _digits_error(column, parsed, parsed_type)
        elif kind == "json" and _DECIMAL.fullmatch(parsed_type):
            yield _rounding_error(column, text)


def typed_errors(node: GraphNode, column: Column, field: str) -> Iterator[str]:
    """Yield the WHEN branches for a field that a registry's schema has decoded: digits lost, a time out of range."""
    if not is_strict(node):
        return
    if column.type in _TIMESTAMPS:
        yield _range_error(node, column, f"try_cast({field} AS {column.type})")
    elif _widen(column.type) != column.type and "<" not in column.type:
        wide = _widen(column.type)
        yield _digits_error(column, f"try_cast({field} AS {wide})", wide)


def _raw_field(node: GraphNode, kind: str, column: Column, row: str) -> str:
    # get, not [0]: Spark may evaluate a field of a bad value before it is filtered out, and [0] would fail the query.
    inside = f"get({row}.{_DOCUMENT}, 1)" if kind == "json" and is_strict(node) else row
    return f"{inside}.{quote_name(column.name)}"


def _hash(text: str) -> str:
    return f"cast(xxhash64({text}) AS STRING)"


def _ddl(columns: Iterable[Column]) -> str:
    return ", ".join(f"{quote_name(column.name)} {column.type}" for column in columns)


def _parsed_type(node: GraphNode, column: Column) -> str:
    """Return the type that Spark's parser is given: one that loses nothing of what the text says."""
    if column.type in _TIMESTAMPS:
        unit = _time_format(node)
        # Seconds may have a fraction; a double could not hold microseconds.
        return {"millis": "BIGINT", "micros": "BIGINT", "seconds": "DECIMAL(20,6)"}.get(unit or "", "STRING")
    # Spark's JSON parser takes 128 to 255 for a TINYINT, as negative numbers.
    return "SMALLINT" if column.type in _BYTES else _widen(column.type)


def _widen(type_name: str) -> str:
    """Return a type whose decimals have all the digits that Spark can hold behind the point."""
    if "MAP<" in type_name:  # maps cannot be compared, so a difference would not be found
        return type_name
    return _DECIMAL_OR_NAME.sub(_wide_decimal, type_name)


def _wide_decimal(match: re.Match[str]) -> str:
    if match[0].startswith("`"):
        return match[0]
    precision, scale = int(match[1] or _PRECISION_DEFAULT), int(match[2] or 0)
    # The digits before the point stay as declared: a number that is too large fails to parse.
    return f"DECIMAL({_PRECISION_MAX},{_PRECISION_MAX - (precision - scale)})"


def _digits_error(column: Column, parsed: str, wide: str) -> str:
    narrow = f"cast(try_cast({parsed} AS {column.type}) AS {wide})"
    message = literal(f"{column.name} has more digits than {column.type} holds")
    return f"WHEN NOT ({parsed} <=> {narrow}) THEN {message}"


def _rounding_error(column: Column, text: str) -> str:
    """Return the branch for a decimal of the largest precision: no type is wider, so the digits are looked at.

    Those of a number behind its 38th are not seen.
    """
    match = _DECIMAL.fullmatch(column.type)
    assert match is not None
    scale = int(match[2] or 0)
    name = quote_name(column.name)
    # A VARIANT keeps the digits of a number; parsed as STRING it would pass a double.
    digits = f"cast(from_json({text}, {literal(f'{name} VARIANT')}).{name} AS STRING)"
    # Of the scales that leave room for the digits before the point the largest shows all behind it; others are null.
    lost = " OR ".join(
        f"NOT (try_cast(digits AS {wide}) <=> try_cast(try_cast(digits AS {column.type}) AS {wide}))"
        for wide in (f"DECIMAL({_PRECISION_MAX},{wider})" for wider in range(scale + 1, _PRECISION_MAX + 1))
    )
    message = literal(f"{column.name} has more digits than {column.type} holds")
    many = literal(rf"[.][0-9]{{{scale + 1}}}|:[ \t\r\n]*\"?[-+.0-9]+[eE]")
    # In a function of one item the document is parsed once.
    return f"WHEN {text} RLIKE {many} AND exists(array({digits}), digits -> {lost}) THEN {message}"


def _comma_error(column: Column, text: str) -> str:
    # Parsed as STRING, the field is the one that the first parser took, also of a name that is there twice. The text is
    # only searched for a comma: as a value it could have lost digits, as a number passes a double.
    name = quote_name(column.name)
    field = f"from_json({text}, {literal(f'{name} STRING')}).{name}"
    message = literal(f"{column.name} has a comma: write its digits with a point and without separators")
    return f"WHEN {text} RLIKE {literal(_QUOTED_COMMA)} AND {field} LIKE '%,%' THEN {message}"


def _time_format(node: GraphNode) -> str | None:
    text = node.option("timestamp_format")
    return text.lower() if text is not None and text.lower() in (*EPOCH_FORMATS, "iso") else text


def _time(node: GraphNode, column: Column, parsed: str) -> str:
    time_format = _time_format(node)
    if time_format == "millis":
        instant = f"timestamp_millis({parsed})"
    elif time_format == "micros":
        instant = f"timestamp_micros({parsed})"
    elif time_format == "seconds":
        instant = f"timestamp_micros(cast({parsed} * 1000000 AS BIGINT))"
    elif time_format in (None, "iso"):
        return f"CASE WHEN {parsed} RLIKE {literal(_ISO_DATE)} THEN try_cast({parsed} AS {column.type}) END"
    else:
        instant = f"try_to_timestamp({parsed}, {literal(time_format or '')})"
    return instant if column.type != "TIMESTAMP_NTZ" else f"cast({instant} AS TIMESTAMP_NTZ)"


def _time_errors(node: GraphNode, column: Column, parsed: str) -> Iterator[str]:
    time = _time(node, column, parsed)
    time_format = _time_format(node)
    if time_format in ("millis", "micros"):
        # timestamp_millis raises an error for what does not fit; it must not be evaluated then.
        limit = 9_223_372_036_854_775_807 // (1000 if time_format == "millis" else 1)
        yield f"WHEN abs({parsed}) > {limit} THEN {literal(_range_message(node, column))}"
    elif time_format is None or time_format == "iso":
        number = literal(f"{column.name} is a number: set timestamp_format to 'seconds', 'millis' or 'micros'")
        yield f"WHEN {parsed} RLIKE '^-?[0-9]+([.][0-9]+)?$' THEN {number}"
        yield f"WHEN {parsed} IS NOT NULL AND {time} IS NULL THEN {literal(f'{column.name} is no {column.type}')}"
    elif time_format != "seconds":
        message = literal(f"{column.name} is no {column.type} in the format {time_format}")
        yield f"WHEN {parsed} IS NOT NULL AND {time} IS NULL THEN {message}"
    yield _range_error(node, column, time)


def _range_error(node: GraphNode, column: Column, time: str) -> str:
    first, last = _years(node, column)
    instant = f"unix_micros(cast({time} AS TIMESTAMP))"
    outside = f"{instant} < {_EPOCH_MICROS[first]} OR {instant} >= {_EPOCH_MICROS[last]}"
    return f"WHEN {outside} THEN {literal(_range_message(node, column))}"


def _range_message(node: GraphNode, column: Column) -> str:
    first, last = _years(node, column)
    return f"{column.name} is not between the years {first} and {last}"


def _years(node: GraphNode, column: Column) -> tuple[int, int]:
    is_event_time = column.name.lower() == (node.option("timestamp") or "").lower()
    return EVENT_YEARS if is_event_time else _YEARS

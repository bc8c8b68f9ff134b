"""Spark expressions that turn a bad record into a dead letter: its bytes and headers, its origin and its error.

A letter must never be what stops a query, so one that is larger than its topic takes is cut: it keeps the beginning of
the value, and a header has the size of the whole. The record itself can still be read where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.row_expressions import ERROR
from klamm.pipeline.sql.core.value_parsing import literal

CUT: Final = "dead_letter.cut"
"""The header of a letter that was cut; its value is the record's size in bytes."""
_NO_HEADERS: Final = "cast(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
_ERROR_CHARS_MAX: Final = 1000
_OVERHEAD_BYTES: Final = 4096
"""For the letter's own headers, a record's framing and a batch's header."""
_ROOM_BYTES_MIN: Final = 1024
_HEADER_BYTES: Final = 10
"""What a header takes beside its key and value, at most."""

RECORD_ORIGIN: Final[Mapping[str, str]] = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "unix_millis(timestamp)",
}
FILE_ORIGIN: Final[Mapping[str, str]] = {
    "topic": "_file",
    "partition": "0",
    "offset": "0",
    "timestamp": "unix_millis(_written)",
}
"""The file takes the place of the topic."""


def letter_expressions(
    pipeline: str, node: GraphNode, bytes_max: int, origin: Mapping[str, str] = RECORD_ORIGIN
) -> list[str]:
    """Return key, value and headers of a dead letter, made of `key`, `value`, `headers` and the record's error."""
    room = max(bytes_max - _OVERHEAD_BYTES, _ROOM_BYTES_MIN)
    headers = f"coalesce(headers, {_NO_HEADERS})"
    headers_size = (
        f"aggregate({headers}, 0, (total, header) -> total + octet_length(header.key)"
        f" + coalesce(octet_length(header.value), 0) + {_HEADER_BYTES})"
    )
    size = f"coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) + {headers_size}"
    is_large = f"{size} > {room}"
    # A quarter each for key and headers, a half for the value: together they fit.
    kept_key = f"CASE WHEN {is_large} AND octet_length(key) > {room // 4} THEN NULL ELSE key END"
    kept_value = f"CASE WHEN {is_large} THEN substring(value, 1, {room // 2}) ELSE value END"
    kept_headers = f"CASE WHEN {is_large} AND {headers_size} > {room // 4} THEN {_NO_HEADERS} ELSE {headers} END"
    cut = f"CASE WHEN {is_large} THEN array({_header(CUT, size)}) ELSE {_NO_HEADERS} END"
    return [
        f"{kept_key} AS key",
        f"{kept_value} AS value",
        f"concat({kept_headers}, {_letter_headers(pipeline, node, origin)}, {cut}) AS headers",
    ]


ROW_ORIGIN: Final[Mapping[str, str]] = {
    "partition": "-1",
    "offset": "-1",
    "timestamp": "unix_millis(current_timestamp())",
}
"""A row that could not be written has no place; its topic is the one it was meant for."""


def routed_expressions(pipeline: str, node: GraphNode, letters: str, encoded: str, row: str, headers: str) -> list[str]:
    """Return value, headers and topic of a row: of its own topic, or of `letters` when `encoded` has an error.

    A dead letter has the row as JSON, `row`; other records have the constant `headers`.
    """
    origin = {"topic": literal(node.topic), **ROW_ORIGIN}
    letter_headers = _letter_headers(pipeline, node, origin, f"{encoded}.error")
    refused = f"{encoded}.error IS NOT NULL"
    return [
        f"CASE WHEN {refused} THEN cast({row} AS BINARY) ELSE {encoded}.value END AS value",
        f"CASE WHEN {refused} THEN {letter_headers} ELSE {headers or _NO_HEADERS} END AS headers",
        f"CASE WHEN {refused} THEN {literal(letters)} ELSE {literal(node.topic)} END AS topic",
    ]


def _letter_headers(pipeline: str, node: GraphNode, origin: Mapping[str, str], error: str = ERROR) -> str:
    error = f"substring({error}, 1, {_ERROR_CHARS_MAX})"
    values = {"pipeline": literal(pipeline), "stream": literal(node.name), **origin, "error": error}
    return f"array({', '.join(_header(f'dead_letter.{name}', text) for name, text in values.items())})"


def _header(name: str, value: str) -> str:
    return f"named_struct('key', {literal(name)}, 'value', cast(cast({value} AS STRING) AS BINARY))"

"""Cuts a body into JSON objects that follow one another, however the network has cut it into chunks.

    stream = RecordStream(size_max=1 << 20)
    stream.feed(b'{"value": 1} {"val')    # [{"value": 1}]
    stream.feed(b'ue": 2}')               # [{"value": 2}]
    stream.finish()

Work and memory are linear in the bytes that arrive: an unfinished object is scanned once, and parsed when it is whole.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from typing import Any, Final, NoReturn

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_BRACKET_OR_QUOTE: Final = re.compile(r'["{}\[\]]')
_QUOTE_OR_ESCAPE: Final = re.compile(r'["\\]')


class BadStream(Exception):
    """The body is not a sequence of JSON objects; `records` are those that its last bytes completed."""

    def __init__(self, message: str, records: list[dict[str, Any]] | None = None, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.records = records or []
        self.too_large = too_large


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Python's parser takes NaN and Infinity, which no other parser of the record's readers does.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str) -> Any:
    """Parse one JSON text; ValueError when it is not one, also for one nested too deeply."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


class RecordStream:
    """A scanner whose state survives the end of a chunk; after BadStream it is not used again."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._unfinished = io.StringIO()
        self._unfinished_size = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the objects that these bytes complete, in order."""
        records: list[dict[str, Any]] = []
        try:
            self._decode(data, records)
        except BadStream as error:
            error.records = records
            raise
        return records

    def finish(self) -> None:
        """Raise when the body ends inside an object."""
        if self._depth or self._decoder.getstate()[0]:
            raise BadStream("the body ends inside a record")

    def _decode(self, data: bytes, records: list[dict[str, Any]]) -> None:
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError as error:
            # `object` has the bytes that the decoder kept of the last chunk, too.
            self._feed(error.object[: error.start].decode(), records)
            raise BadStream("the body is not UTF-8") from None
        self._feed(text, records)

    def _feed(self, text: str, records: list[dict[str, Any]]) -> None:
        at = 0
        while True:
            if not self._depth:
                match = _BLANK.match(text, at)
                assert match is not None
                at = match.end()
                if at == len(text):
                    return
                if text[at] != "{":
                    raise BadStream(f"a record is a JSON object, which does not begin with {text[at]!r}")
                end = self._parse_whole(text, at, records)
                if end:
                    at = end
                    continue
            end = self._scan(text, at)
            piece = text[at:] if end < 0 else text[at:end]
            self._check_size(self._unfinished_size + len(piece))
            if end < 0:
                self._unfinished.write(piece)
                self._unfinished_size += len(piece)
                return
            records.append(self._parse(self._unfinished.getvalue() + piece))
            self._unfinished = io.StringIO()
            self._unfinished_size = 0
            at = end

    def _parse_whole(self, text: str, at: int, records: list[dict[str, Any]]) -> int:
        """Parse an object that is whole in this chunk, and return its end; 0 if it is not whole, or not JSON."""
        # The usual case, without the scan. It is tried once per object, so that chunks of one byte stay linear.
        try:
            record, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return 0
        self._check_size(end - at)
        records.append(record)
        return end

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = parse_json(text)
        except ValueError as error:
            raise BadStream(f"a record is not JSON: {error}") from None
        return record

    def _check_size(self, size: int) -> None:
        if size > self._size_max:
            raise BadStream(f"a record is longer than {self._size_max} bytes", too_large=True)

    def _scan(self, text: str, at: int) -> int:
        """Return the end of the object that `at` is in or begins, or -1 when the text ends before it."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_QUOTE_OR_ESCAPE if self._in_string else _BRACKET_OR_QUOTE).search(text, at)
            if match is None:
                return -1
            at = match.end()
            character = match.group()
            if character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = not self._in_string
            else:
                # Brackets need not match: the parser refuses the text when it is whole.
                self._depth += 1 if character in "{[" else -1
                if not self._depth:
                    return at
        return -1

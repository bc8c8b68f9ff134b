"""The fields of a record's value in CSV, as Spark's `to_csv` writes them and `from_csv` reads them."""

from __future__ import annotations

from klamm.pipeline.tables.core.text_values import BadValue


def split_fields(text: str) -> list[str | None]:
    """Return the fields; one with nothing in it is null, with quotes or without: Spark reads both so."""
    fields: list[str | None] = []
    position = 0
    while True:
        if text[position : position + 1] == '"':
            field, position = _parse_quoted(text, position + 1)
            fields.append(field or None)
        else:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            fields.append(text[position:end] or None)
            position = end
        if position >= len(text):
            return fields
        if text[position] != ",":
            raise BadValue("the value is no CSV: text follows a closing quote")
        position += 1


def _parse_quoted(text: str, position: int) -> tuple[str, int]:
    parts: list[str] = []
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        # Spark escapes a quote by a backslash; it does not read two quotes as one, as other programs do.
        if character == "\\" and following in ('"', "\\"):
            parts.append(following)
            position += 2
        elif character == '"':
            return "".join(parts), position + 1
        else:
            parts.append(character)
            position += 1
    raise BadValue("the value is no CSV: a quote is not closed")

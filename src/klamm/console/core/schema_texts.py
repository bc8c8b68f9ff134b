"""Texts of schemas: indented, and compared line by line."""

from __future__ import annotations

import difflib
import json
from typing import Final, NamedTuple

_CONTEXT_LINES: Final = 3


class DiffLine(NamedTuple):
    """One line of a comparison; `kind` is same, added, removed or gap."""

    kind: str
    text: str


def format_schema(kind: str, text: str) -> str:
    """Return a schema as people read it: JSON indented, Protobuf as it is."""
    if kind == "PROTOBUF":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def compare_schemas(before: str, after: str) -> list[DiffLine]:
    """Return what changed between two formatted schemas, with some lines around it."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=_CONTEXT_LINES)
    kinds = {"+": "added", "-": "removed", " ": "same", "@": "gap"}
    # The first two lines are file names.
    return [DiffLine(kinds[line[:1]], line if line.startswith("@") else line[1:]) for line in list(lines)[2:]]

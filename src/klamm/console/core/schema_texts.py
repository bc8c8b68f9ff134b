"""Texts of schemas: indented, and compared line by line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Final, NamedTuple

_CONTEXT_LINES: Final = 3


class DiffLine(NamedTuple):
    """One line of a comparison; `kind` is same, added, removed or gap."""

    kind: str
    text: str


class ReferenceRow(NamedTuple):
    """Another schema that one uses: the name it has there, and where it is registered."""

    name: str
    subject: str
    version: int


def format_references(references: Iterable[ReferenceRow]) -> str:
    """Return references as a form has them: name, subject and version, one in a line."""
    return "\n".join(f"{reference.name} {reference.subject} {reference.version}" for reference in references)


def parse_references(text: str) -> tuple[ReferenceRow, ...]:
    """Parse the lines of a form; ValueError says which one is no reference."""
    references = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        subject, _, version = rest.strip().rpartition(" ")
        if not subject or not version.isascii() or not version.isdecimal() or len(version) > 9:
            raise ValueError(f"{line[:80]!r} is no reference: write its name, the subject and the version")
        references.append(ReferenceRow(name, subject.strip(), int(version)))
    return tuple(references)


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

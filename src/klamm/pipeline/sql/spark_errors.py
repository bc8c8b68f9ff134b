"""Finds where in a statement Spark reports an error, and what of its text is for a reader."""

from __future__ import annotations

import re
from typing import Any


def error_position(error: Any, text: str) -> tuple[int, str]:
    """Return where in a SELECT Spark found an error, and its message without the query plan."""
    # Spark 4 has a structured message and context; older errors only text.
    message = str(error.getMessage() if hasattr(error, "getMessage") else error) or str(error)
    contexts = error.getQueryContext() if hasattr(error, "getQueryContext") else []
    offset = 0
    for context in contexts or []:
        start = context.startIndex()
        if 0 <= start < len(text):
            offset = start
            break
    else:
        position = re.search(r"\(line (\d+), pos (\d+)\)", str(error))
        if position is not None:
            lines = text.split("\n")
            offset = sum(len(line) + 1 for line in lines[: int(position[1]) - 1]) + int(position[2])
    return min(offset, max(len(text) - 1, 0)), message.split("SQLSTATE")[0].split(";\n")[0].strip().rstrip(".;")

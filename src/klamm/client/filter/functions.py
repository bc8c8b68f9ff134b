"""The functions of a filter, by name: `len(value.items) > 3`. Pure.

UNKNOWN where a value has not the type that a function needs.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from klamm.client.filter.record_view import UNKNOWN


def is_number(value: Any) -> bool:
    """Whether a value is a number; true and false are none."""
    # bool is a subclass of int in Python; true + 1 is a mistake here.
    return isinstance(value, int | float) and not isinstance(value, bool)


def contains(owner: Any, item: Any) -> bool:
    """Whether text contains text, an object has a field, or a list has an item."""
    if isinstance(owner, str | Mapping):
        return isinstance(item, str) and item in owner
    return isinstance(owner, list | tuple) and item in owner


def _number(value: Any) -> Any:
    if is_number(value):
        return value
    try:
        # Bounds the work: float() parses text of any length.
        return float(value) if isinstance(value, str) and len(value) <= 64 else UNKNOWN
    except ValueError:
        return UNKNOWN


def _both(test: Callable[[str, str], bool]) -> Callable[[Any, Any], Any]:
    def test_texts(one: Any, other: Any) -> Any:
        return test(one, other) if isinstance(one, str) and isinstance(other, str) else UNKNOWN

    return test_texts


def _of_text(act: Callable[[str], str]) -> Callable[[Any], Any]:
    def act_on_text(value: Any) -> Any:
        return act(value) if isinstance(value, str) else UNKNOWN

    return act_on_text


def _length(value: Any) -> Any:
    return len(value) if isinstance(value, str | list | Mapping) else UNKNOWN


def _as_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _exists(value: Any) -> bool:
    return value is not None


def _holds_item(owner: Any, item: Any) -> Any:
    return UNKNOWN if owner is None else contains(owner, item)


FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, _length),
    "lower": (1, _of_text(str.lower)),
    "upper": (1, _of_text(str.upper)),
    "number": (1, _number),
    "text": (1, _as_text),
    "exists": (1, _exists),
    "startswith": (2, _both(str.startswith)),
    "endswith": (2, _both(str.endswith)),
    "contains": (2, _holds_item),
    "like": (2, _both(fnmatch.fnmatchcase)),
}
"""Name to the number of arguments and the function."""

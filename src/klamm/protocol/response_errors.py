"""Reads the error codes of a response, wherever its API has them: for the request, a topic, a partition, a group.

As Kafka's `errorCounts`, without NONE.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from klamm.protocol.schema import Array, declaration

ELEMENTS_MAX: Final = 1000
"""Elements of one list that are read: a response may describe every partition of a cluster."""

# Not topic_config_error_code of CreateTopics: it says why configs are not described, and Kafka does not count it.
_NAMES: Final = frozenset({"error_code", "partition_error_code", "acknowledge_error_code"})

_CodeGetter = Callable[[Any], int]


class _ErrorFields(NamedTuple):
    """Where a class has error codes."""

    own: tuple[_CodeGetter, ...]
    structs: tuple[tuple[str, _ErrorFields], ...]
    leaves: tuple[tuple[str, tuple[_CodeGetter, ...]], ...]
    """Lists whose elements have error codes and nothing with one below them."""
    lists: tuple[tuple[str, _ErrorFields], ...]


def find_errors(response: Any) -> list[int]:
    """Return the code of every error in a response."""
    codes: list[int] = []
    _add_errors(response, _error_fields(type(response)), codes)
    return codes


def _add_errors(part: Any, fields: _ErrorFields, codes: list[int]) -> None:
    own, structs, leaves, lists = fields
    for get_code in own:
        code = get_code(part)
        if code:
            codes.append(code)
    for name, below in structs:
        inner = getattr(part, name)
        if inner is not None:
            _add_errors(inner, below, codes)
    for name, getters in leaves:
        # Most elements are partitions: a call of Python for each would take most of the time.
        elements = (getattr(part, name) or ())[:ELEMENTS_MAX]
        for get_code in getters:
            codes += filter(None, map(get_code, elements))
    for name, below in lists:
        for element in (getattr(part, name) or ())[:ELEMENTS_MAX]:
            _add_errors(element, below, codes)


_known: dict[type[Any], _ErrorFields] = {}


def _error_fields(cls: type[Any]) -> _ErrorFields:
    """Return where a class has error codes, from its declaration the first time."""
    fields = _known.get(cls)
    if fields is None:
        fields = _known[cls] = _find_error_fields(cls)
    return fields


def _find_error_fields(cls: type[Any]) -> _ErrorFields:
    structs: list[tuple[str, _ErrorFields]] = []
    leaves: list[tuple[str, tuple[_CodeGetter, ...]]] = []
    lists: list[tuple[str, _ErrorFields]] = []
    own: list[_CodeGetter] = []
    for field in declaration(cls).fields:
        if field.name in _NAMES:
            own.append(attrgetter(field.name))
        element = field.type.element if isinstance(field.type, Array) else field.type
        if not isinstance(element, type):
            continue
        below = _error_fields(element)
        is_leaf = not below.structs and not below.leaves and not below.lists
        if is_leaf and not below.own:
            continue
        if element is field.type:
            structs.append((field.name, below))
        elif is_leaf:
            leaves.append((field.name, below.own))
        else:
            lists.append((field.name, below))
    return _ErrorFields(tuple(own), tuple(structs), tuple(leaves), tuple(lists))

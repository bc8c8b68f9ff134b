"""Arguments of public methods, converted and checked before anything is sent. Pure.

A string is an iterable of strings: `delete_topics("ab")` would delete the topics `a` and `b`. So every method that
takes several items refuses a single one with a TypeError that shows the list to write. `argument_checks` applies these
checks to whole classes by the annotations of their methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from klamm.model.ids import TopicPartition

T = TypeVar("T")
ArgumentCheck = Callable[[Any, str], Any]
"""(value, name for errors) -> the value in the wanted type; raises TypeError or ValueError."""


def text(given: Any, what: str) -> str:
    """A name."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a text, not {given!r}")
    return given


def whole(given: Any, what: str) -> int:
    """A whole number; those of NumPy too."""
    # A bool is an int in Python, but as an offset or a count it is a mistake.
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is a whole number, not {given!r}")
    return int(given.__index__())


def seconds(given: Any, what: str) -> float:
    """A number of seconds."""
    if isinstance(given, bool) or not (hasattr(given, "__float__") or hasattr(given, "__index__")):
        raise TypeError(f"{what} is a number of seconds, not {given!r}")
    number = float(given)
    if math.isnan(number) or number < 0:
        raise ValueError(f"{what} is a number of seconds from 0 on, not {given!r}")
    return number


def yes_or_no(given: Any, what: str) -> bool:
    """True or False."""
    if not isinstance(given, bool):
        raise TypeError(f"{what} is True or False, not {given!r}")
    return given


def binary(given: Any, what: str) -> bytes:
    """Bytes."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is bytes, not {given!r}")
    return bytes(given)


def function(given: Any, what: str) -> Any:
    """A callable."""
    if not callable(given):
        raise TypeError(f"{what} is a function, not {given!r}")
    return given


def mapping(given: Any, what: str) -> Any:
    """A mapping; its content is checked by the method."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} takes a mapping, not {given!r}")
    return given


def texts(given: Iterable[str], what: str) -> list[str]:
    """Several names (of topics, groups, users), each once, in their order."""
    return list(dict.fromkeys(several(given, str, what)))


def several(given: Iterable[T], kind: type[T], what: str, example: str | None = None) -> list[T]:
    """A list of items of one type; `example` is used in errors where the repr does not show how to write one."""
    if isinstance(given, str | bytes | kind):
        raise TypeError(f"{what} takes several: write [{example or repr(given)}], not {example or repr(given)}")
    if not isinstance(given, Iterable):
        raise TypeError(f"{what} takes a list, not {given!r}")
    items = list(given)
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{what} takes a list of {example or kind.__name__}; {item!r} is none")
    return items


def places(given: Any, what: str) -> list[TopicPartition]:
    """Partitions, as TopicPartition or (topic, partition)."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'{what} takes a list of partitions: write [("orders", 0)], not {given!r}')
    if isinstance(given, tuple) and _is_place(given):
        topic, partition = given
        raise TypeError(f"{what} takes several: write [({topic!r}, {partition!r})]")
    return [place(item, what) for item in given]


def place(given: Any, what: str) -> TopicPartition:
    """One partition."""
    if not _is_place(given):
        raise TypeError(f'{what} takes partitions as (topic, partition), e.g. ("orders", 0), not {given!r}')
    return TopicPartition(*given)


def by_place(given: Mapping[TopicPartition, T], what: str) -> dict[TopicPartition, T]:
    """A mapping with partitions as keys."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} takes a mapping from (topic, partition), not {given!r}")
    return {place(key, what): value for key, value in given.items()}


def _is_place(given: Any) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], int)
        and not isinstance(given[1], bool)
    )


def config_texts(configs: Mapping[str, Any], what: str) -> Iterator[tuple[str, str | None]]:
    """Settings as text, as the protocol has them; None stays None, which the broker interprets."""
    if not isinstance(configs, Mapping):
        raise TypeError(f'{what} takes configs as a mapping, e.g. {{"retention.ms": 60000}}, not {configs!r}')
    from klamm.client.config import value_text  # noqa: PLC0415 - the definitions of all settings, for few callers

    for name, value in configs.items():
        yield name, None if value is None else value_text(name, value)

"""What an admin is given, looked at before anything is asked of a cluster. Pure.

A text is a sequence of texts to Python: `delete_topics("ab")` would delete the topics `a` and `b`. So whatever takes
several things refuses a single one with a TypeError that shows the list to write, in every method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from klamm.client.config import value_text
from klamm.client.types import TopicPartition

T = TypeVar("T")


def texts(given: Iterable[str], what: str) -> list[str]:
    """Several names (of topics, groups, users), each once, in their order."""
    return list(dict.fromkeys(several(given, str, what)))


def several(given: Iterable[T], kind: type[T], what: str, example: str | None = None) -> list[T]:
    """A list of things of one kind; `example` shows one where its repr does not say how to write it."""
    if isinstance(given, str | bytes | kind):
        raise TypeError(f"{what} takes several: write [{example or repr(given)}], not {example or repr(given)}")
    if not isinstance(given, Iterable):
        raise TypeError(f"{what} takes a list, not {given!r}")
    found = list(given)
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{what} takes a list of {example or kind.__name__}; {each!r} is none")
    return found


def places(given: Any, what: str) -> list[TopicPartition]:
    """Partitions, as TopicPartition or (topic, partition)."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f'{what} takes a list of partitions: write [("orders", 0)], not {given!r}')
    if isinstance(given, tuple) and _is_place(given):
        topic, partition = given
        raise TypeError(f"{what} takes several: write [({topic!r}, {partition!r})]")
    return [place(each, what) for each in given]


def place(given: Any, what: str) -> TopicPartition:
    """One partition."""
    if not _is_place(given):
        raise TypeError(f'{what} takes partitions as (topic, partition), e.g. ("orders", 0), not {given!r}')
    return TopicPartition(*given)


def by_place(given: Mapping[TopicPartition, T], what: str) -> dict[TopicPartition, T]:
    """What is said of each partition."""
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
    """Settings as the wire has them; None stays, for the broker to judge."""
    if not isinstance(configs, Mapping):
        raise TypeError(f'{what} takes configs as a mapping, e.g. {{"retention.ms": 60000}}, not {configs!r}')
    for name, value in configs.items():
        yield name, None if value is None else value_text(name, value)

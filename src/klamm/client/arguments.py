"""What methods are given, looked at before anything is asked of a cluster. Pure.

`checked` makes every public method of a class look at its arguments by their annotations, so that a wrong one is a
TypeError or ValueError that names the method and the argument, not one from somewhere inside.

A text is a sequence of texts to Python: `delete_topics("ab")` would delete the topics `a` and `b`. So whatever takes
several things refuses a single one with a TypeError that shows the list to write, in every method.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from klamm.client.types import TopicPartition

T = TypeVar("T")
Check = Callable[[Any, str], Any]
"""What was given and what to call it -> the same in the type that is wanted; TypeError or ValueError otherwise."""


def text(given: Any, what: str) -> str:
    """A name."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a text, not {given!r}")
    return given


def whole(given: Any, what: str) -> int:
    """A whole number; those of NumPy too."""
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
    """Something that can be called."""
    if not callable(given):
        raise TypeError(f"{what} is a function, not {given!r}")
    return given


def mapping(given: Any, what: str) -> Any:
    """A dict or what is like one; what is in it is for the method to look at."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} takes a mapping, not {given!r}")
    return given


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
    from klamm.client.config import value_text  # noqa: PLC0415 - the definitions of all settings, for few callers

    for name, value in configs.items():
        yield name, None if value is None else value_text(name, value)


_CHECKS: Final[dict[str, Check]] = {
    "str": text,
    "int": whole,
    "float": seconds,
    "bool": yes_or_no,
    "bytes": binary,
    "Callback": function,
    "Place": place,
    "TopicPartition": place,
    "Iterable[Place]": places,
}
"""How an annotation is looked at; what is not here is for the method itself."""

_Class = TypeVar("_Class", bound=type)


def checked(cls: _Class) -> _Class:
    """Have every public method of a class, also inherited ones, look at what it is given."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        checks = {} if name.startswith("_") or name in _UNCHECKED else _checks_of(method)
        if checks:
            setattr(cls, name, _checking(method, name, checks))
    return cls


_UNCHECKED: Final = frozenset({"send", "send_and_wait", "append", "send_arrow"})
"""Called for every record, or with checks of their own."""


def _checks_of(method: Callable[..., Any]) -> dict[str, tuple[Check, bool]]:
    """For each argument that can be looked at: how, and whether it may be None."""
    checks = {}
    for argument in inspect.signature(method).parameters.values():
        words = str(argument.annotation)
        kind = words.removesuffix(" | None")
        check = _check_of(kind, method.__globals__)
        if check is not None:
            checks[argument.name] = (check, kind != words)
    return checks


def _check_of(kind: str, names: Mapping[str, Any]) -> Check | None:
    """How an annotation is looked at; None leaves it to the method."""
    if kind in _CHECKS:
        return _CHECKS[kind]
    if kind.startswith("Mapping[") and kind.endswith("]"):
        key, value = _split(kind.removeprefix("Mapping[")[:-1])
        return functools.partial(_mapping_of, key=_check_inside(key, names), value=_check_inside(value, names))
    named = names.get(kind)
    if isinstance(named, type) and named is not Any:
        return functools.partial(_instance, kind=named)
    return None


def _check_inside(kind: str, names: Mapping[str, Any]) -> Check | None:
    """The same for what is in a mapping: of what has words of its own in the methods, only the outside."""
    if kind.endswith(" | None"):
        check = _check_inside(kind.removesuffix(" | None"), names)
        return None if check is None else functools.partial(_optional, check=check)
    if isinstance(names.get(kind), type) and kind not in _CHECKS:
        return None
    if kind.startswith("tuple[") or kind == "QuotaEntity":
        return functools.partial(_instance, kind=tuple)
    if kind.startswith(("Iterable[", "Sequence[")):
        return functools.partial(_instance, kind=Iterable)
    return mapping if kind.startswith("Mapping[") and kind != "Mapping[str, Change]" else _CHECKS.get(kind)


def _split(inside: str) -> tuple[str, str]:
    """Kind of keys and kind of values of `Mapping[keys, values]`."""
    depth = 0
    for at, letter in enumerate(inside):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            return inside[:at], inside[at + 1 :].strip()
    return inside, ""


def _mapping_of(given: Any, what: str, key: Check | None, value: Check | None) -> Any:
    for name, content in mapping(given, what).items():
        if key is not None:
            key(name, what if key in (place, places) else f"a name in the mapping that {what} takes")
        if value is not None:
            value(content, f"the value of {name!r} that {what} takes")
    return given


def _optional(given: Any, what: str, check: Check) -> Any:
    return given if given is None else check(given, what)


def _instance(given: Any, what: str, kind: type) -> Any:
    if isinstance(given, kind):
        return given
    if issubclass(kind, enum.Enum):
        with contextlib.suppress(ValueError):
            return kind(given)
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise TypeError(f"{what} is one of {members}, not {given!r}")
    raise TypeError(f"{what} is of type {kind.__name__}, not {given!r}")


def _is_mapping(check: Check) -> bool:
    return isinstance(check, functools.partial) and check.func is _mapping_of


def _checking(method: Callable[..., Any], name: str, checks: dict[str, tuple[Check, bool]]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    variadic = {
        parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_POSITIONAL
    }

    def look(args: tuple[Any, ...], keywords: dict[str, Any]) -> inspect.BoundArguments | None:
        try:
            bound = signature.bind(*args, **keywords)
        except TypeError:
            return None  # the method itself says best which argument it lacks
        for argument, (check, optional) in checks.items():
            if argument not in bound.arguments:
                continue
            value = bound.arguments[argument]
            words = f"{argument} of {name}" if check not in (place, places) and not _is_mapping(check) else name
            if argument in variadic:
                bound.arguments[argument] = tuple(check(item, words) for item in value)
            elif value is not None or not optional:
                bound.arguments[argument] = check(value, words)
        return bound

    @functools.wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        bound = look(args, keywords)
        return method(*args, **keywords) if bound is None else method(*bound.args, **bound.kwargs)

    @functools.wraps(method)
    async def call_async(*args: Any, **keywords: Any) -> Any:
        return await call(*args, **keywords)

    return call_async if inspect.iscoroutinefunction(method) else call  # mocks and frameworks ask which it is

"""`checked`: every public method of a class checks its arguments by their annotations.

A wrong argument is then a TypeError or ValueError that names the method and the argument, not one from inside.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from klamm.client.core.arguments import (
    ArgumentCheck,
    binary,
    function,
    mapping,
    place,
    places,
    seconds,
    text,
    whole,
    yes_or_no,
)

_CHECKS: Final[dict[str, ArgumentCheck]] = {
    "str": text,
    "int": whole,
    "float": seconds,
    "bool": yes_or_no,
    "bytes": binary,
    "BlockingRebalanceCallback": function,
    "RebalanceCallback": function,
    "PartitionLike": place,
    "TopicPartition": place,
    "Iterable[PartitionLike]": places,
}
"""The check of an annotation, by its text; a type that is not here is checked by the method itself."""

_Class = TypeVar("_Class", bound=type)


def check_arguments(cls: _Class) -> _Class:
    """Let every public method of a class, inherited ones included, check its arguments."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        checks = {} if name.startswith("_") or name in _UNCHECKED else _checks_of(method)
        if checks:
            setattr(cls, name, _checking(method, name, checks))
    return cls


_UNCHECKED: Final = frozenset({"send", "send_and_wait", "append", "send_arrow"})
"""Methods called for every record, where a check would cost more than the call, or with checks of their own."""


def _checks_of(method: Callable[..., Any]) -> dict[str, tuple[ArgumentCheck, bool]]:
    """The check of every argument that has one, and whether it may be None."""
    checks = {}
    for argument in inspect.signature(method).parameters.values():
        # Annotations are text (`from __future__ import annotations`): types of extras need not be importable.
        annotation = str(argument.annotation)
        kind = annotation.removesuffix(" | None")
        check = _check_of(kind, method.__globals__)
        if check is not None:
            checks[argument.name] = (check, kind != annotation)
    return checks


def _check_of(kind: str, names: Mapping[str, Any]) -> ArgumentCheck | None:
    """The check of an annotation; None leaves it to the method."""
    if kind in _CHECKS:
        return _CHECKS[kind]
    if kind.startswith("Mapping[") and kind.endswith("]"):
        key, value = _split(kind.removeprefix("Mapping[")[:-1])
        return functools.partial(_mapping_of, key=_check_inside(key, names), value=_check_inside(value, names))
    named = names.get(kind)
    if isinstance(named, type) and named is not Any:
        return functools.partial(_instance, kind=named)
    return None


def _check_inside(kind: str, names: Mapping[str, Any]) -> ArgumentCheck | None:
    """The same for keys and values of a mapping; of types that methods check themselves, only the outer type."""
    if kind.endswith(" | None"):
        check = _check_inside(kind.removesuffix(" | None"), names)
        return None if check is None else functools.partial(_optional, check=check)
    if isinstance(names.get(kind), type) and kind not in _CHECKS:
        return None
    if kind.startswith("tuple[") or kind == "QuotaEntity":
        return functools.partial(_instance, kind=tuple)
    if kind.startswith(("Iterable[", "Sequence[")):
        return functools.partial(_instance, kind=Iterable)
    return mapping if kind.startswith("Mapping[") and kind != "Mapping[str, ConfigAlteration]" else _CHECKS.get(kind)


def _split(inside: str) -> tuple[str, str]:
    """Kind of keys and kind of values of `Mapping[keys, values]`."""
    depth = 0
    for index, letter in enumerate(inside):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            return inside[:index], inside[index + 1 :].strip()
    return inside, ""


def _mapping_of(given: Any, what: str, key: ArgumentCheck | None, value: ArgumentCheck | None) -> Any:
    for name, content in mapping(given, what).items():
        if key is not None:
            key(name, what if key in (place, places) else f"a name in the mapping that {what} takes")
        if value is not None:
            value(content, f"the value of {name!r} that {what} takes")
    return given


def _optional(given: Any, what: str, check: ArgumentCheck) -> Any:
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


def _is_mapping(check: ArgumentCheck) -> bool:
    return isinstance(check, functools.partial) and check.func is _mapping_of


def _checking(
    method: Callable[..., Any], name: str, checks: dict[str, tuple[ArgumentCheck, bool]]
) -> Callable[..., Any]:
    signature = inspect.signature(method)
    variadic = {
        parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_POSITIONAL
    }

    def bind(args: tuple[Any, ...], keywords: dict[str, Any]) -> inspect.BoundArguments | None:
        try:
            bound = signature.bind(*args, **keywords)
        except TypeError:
            return None  # calling the method raises Python's own error, which names the argument
        for argument, (check, optional) in checks.items():
            if argument not in bound.arguments:
                continue
            value = bound.arguments[argument]
            what = f"{argument} of {name}" if check not in (place, places) and not _is_mapping(check) else name
            if argument in variadic:
                bound.arguments[argument] = tuple(check(item, what) for item in value)
            elif value is not None or not optional:
                bound.arguments[argument] = check(value, what)
        return bound

    @functools.wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        bound = bind(args, keywords)
        return method(*args, **keywords) if bound is None else method(*bound.args, **bound.kwargs)

    @functools.wraps(method)
    async def call_async(*args: Any, **keywords: Any) -> Any:
        return await call(*args, **keywords)

    # A coroutine function must stay one: mocks and frameworks inspect it.
    return call_async if inspect.iscoroutinefunction(method) else call

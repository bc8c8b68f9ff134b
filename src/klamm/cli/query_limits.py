"""Options that bound what a query may take: `--max-rows`, `--max-time`, `--max-memory`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _time(_: click.Context, __: click.Parameter, value: str) -> float:
    from klamm.model.units import parse_duration_ms

    try:
        time_ms = parse_duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if time_ms <= 0:
        raise click.BadParameter(f"{value!r} leaves no time for an answer; write 30s")
    return time_ms / 1000


def _memory(_: click.Context, __: click.Parameter, value: str) -> int:
    from klamm.model.units import parse_size_bytes

    try:
        size = parse_size_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size < 16 << 20:
        raise click.BadParameter(f"{value!r} is too little; write 16MiB or more")
    return size


_OPTIONS = (
    click.option(
        "--max-rows", default=10_000, show_default=True, type=click.IntRange(1), metavar="N", help="Rows of an answer."
    ),
    click.option(
        "--max-time", default="30s", show_default=True, callback=_time, metavar="TIME", help="Time of a query."
    ),
    click.option(
        "--max-memory",
        default="1GiB",
        show_default=True,
        callback=_memory,
        metavar="SIZE",
        help="Memory of queries and of rows in memory.",
    ),
)


def limit_options(command: F) -> F:
    """Give a command these options; it is called with `limits`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from klamm.pipeline.tables.queries import QueryLimits

        limits = QueryLimits(kwargs.pop("max_rows"), kwargs.pop("max_time"), kwargs.pop("max_memory"))
        return command(*args, limits=limits, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]

"""A person's mistake is answered with one sentence and exit code 1, never with a traceback."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from typing import IO, Any, ParamSpec, TypeVar

import click

from klamm.model.errors import ConfigError, KlammError

P = ParamSpec("P")
R = TypeVar("R")


class Refusal(click.ClickException):
    """One sentence on standard error, exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence."""
        click.echo(f"klamm: {self.format_message()}", file=file, err=file is None)


def refuses(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a room refuses into a Refusal; bugs keep their traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ConfigError, KlammError) as error:
            raise Refusal(str(error)) from None
        except OSError as error:
            raise Refusal(explain(error)) from None

    return wrapped


def explain(error: OSError) -> str:
    """An operating system's refusal in words; the sentence the error carries when it has no number."""
    if error.errno is None:
        return str(error)
    reason = error.strerror or errno.errorcode.get(error.errno, str(error.errno))
    if error.filename is None:
        return reason[0].lower() + reason[1:]
    return f"{error.filename}: {reason[0].lower() + reason[1:]}"

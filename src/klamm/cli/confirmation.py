"""Confirmation of changes: show the difference first, prompt where it matters, honour `--yes`.

A plan is a list of lines: what is removed (`-`), added (`+`) or changed (`~`). `--dry-run` prints it and exits.
Otherwise a destructive change is confirmed at a prompt and needs `--yes` in a script; in a protected context every
change is confirmed with the context's name, typed or as `--confirm NAME`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.output import printable
from klamm.cli.target import Target

F = TypeVar("F", bound=Callable[..., Any])

_COLOURS: Final = {"+": "green", "-": "red", "~": "yellow"}
NOTHING: Final = "Nothing to change."
DRY_RUN_NOTE: Final = "Nothing was changed: this was a dry run."


@dataclass(slots=True)
class ConfirmationPlan:
    """The difference a command would make."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    destructive: bool = False

    def adds(self, text: str) -> None:
        """Something new."""
        self.lines.append(("+", text))

    def removes(self, text: str) -> None:
        """Something is removed for good."""
        self.lines.append(("-", text))
        self.destructive = True

    def changes(self, what: str, before: object, after: object) -> None:
        """Something becomes something else."""
        self.lines.append(("~", f"{what}: {_word(before)} -> {_word(after)}"))

    def __bool__(self) -> bool:
        return bool(self.lines)

    def text(self) -> list[str]:
        """Lines as they are printed."""
        return [f"{sign} {printable(text)}" for sign, text in self.lines]


def _word(value: object) -> str:
    # An empty value is a value; without quotes it would look like a missing one.
    return "unset" if value is None else str(value) or '""'


@dataclass(frozen=True, slots=True)
class Consent:
    """The options of the command line about changes."""

    dry_run: bool
    yes: bool
    confirm: str | None

    def to(self, plan: ConfirmationPlan, target: Target) -> bool:
        """Whether to go on. False after a dry run or when nothing would change; CommandRefusal without confirmation."""
        if not plan:
            click.echo(NOTHING, err=True)
            return False
        if self.dry_run:
            show_dry_run(plan)
            return False
        # After the dry run, which changes nothing: finding the protected context may take a request.
        target = target.resolve_protection()
        # --yes is not enough here: it is written by habit, while the name shows which cluster is meant.
        if target.protected:
            self._prompt_for_name(plan, target)
        elif plan.destructive and not self.yes:
            _prompt(plan)
        return True

    def _prompt_for_name(self, plan: ConfirmationPlan, target: Target) -> None:
        name = target.context or target.bootstrap
        given = self.confirm
        if given is None and _can_prompt():
            _print(plan, err=True)
            given = click.prompt(
                f"{name} is protected. Type its name to go on", err=True, default="", show_default=False
            )
        if given != name:
            raise CommandRefusal(
                f"the context {name} is protected and was not named; nothing was changed."
                f" Write --confirm {name} where it cannot be typed",
                code=exit_codes.NOT_AGREED,
            )


def show_dry_run(plan: ConfirmationPlan) -> None:
    """Print the plan on standard output."""
    _print(plan, err=False)
    # On standard error, so that the output of a dry run is the plan alone.
    click.echo(DRY_RUN_NOTE if plan else NOTHING, err=True)


def _can_prompt() -> bool:
    # Prompts go to standard error, since standard output may be a pipe while a person sits at the terminal.
    return sys.stdin.isatty() and sys.stderr.isatty()


def _prompt(plan: ConfirmationPlan) -> None:
    if not _can_prompt():
        raise CommandRefusal(
            "this change is destructive and there is no terminal to confirm it on; nothing was changed."
            " Look with --dry-run, then write --yes",
            code=exit_codes.NOT_AGREED,
        )
    _print(plan, err=True)
    if not click.confirm("Go on?", err=True):
        raise CommandRefusal("nothing was changed", code=exit_codes.NOT_AGREED)


def _print(plan: ConfirmationPlan, *, err: bool) -> None:
    for line in plan.text():
        click.secho(line, fg=_COLOURS[line[0]], err=err)


def consent_options(command: F) -> F:
    """Give a changing command `--dry-run`, `--yes` and `--confirm`; it is called with `consent`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        consent = Consent(kwargs.pop("dry_run"), kwargs.pop("yes"), kwargs.pop("confirm"))
        return command(*args, consent=consent, **kwargs)

    # The option applied last is listed first in help, hence the reverse order.
    for option in (
        click.option("--confirm", metavar="NAME", help="Confirm a change in the protected context of that name."),
        click.option("-y", "--yes", is_flag=True, help="Do not prompt."),
        click.option("--dry-run", is_flag=True, help="Show the difference and change nothing."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]

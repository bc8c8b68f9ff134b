"""The group of a noun's verbs, with aliases from other tools."""

from __future__ import annotations

from typing import Final

import click

ALIASES: Final = {
    "list": "ls",
    "describe": "show",
    "info": "show",
    "get": "show",
    "rm": "delete",
    "remove": "delete",
    "add": "create",
    "edit": "alter",
    "set": "alter",
    "reset": "seek",
}
"""Verbs of other tools, and the verb here."""
_SHORT: Final = {"create": "add", "delete": "rm", "remove": "rm"}
"""The same for nouns whose own verbs are the short ones."""


class Noun(click.Group):
    """Finds verbs by name or alias; an unknown one is an error that suggests the nearest."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name or alias."""
        # An own verb wins over an alias: `ctx add` and `config set` are verbs of their nouns.
        names = (cmd_name, ALIASES.get(cmd_name, cmd_name), _SHORT.get(cmd_name, cmd_name))
        commands = (super(Noun, self).get_command(ctx, name) for name in names)
        return next((command for command in commands if command is not None), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which was probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            verbs = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], verbs, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(verbs)}."
            raise click.UsageError(f"There is no {ctx.command_path} {args[0]!r}. {hint}", ctx) from None

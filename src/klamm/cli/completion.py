"""`klamm completion`: the Tab key in bash, zsh and fish."""

from __future__ import annotations

from typing import Final

import click

_HOW: Final = {
    "bash": 'Write `eval "$(klamm completion bash)"` into ~/.bashrc.',
    "zsh": 'Write `eval "$(klamm completion zsh)"` into ~/.zshrc.',
    "fish": "Write `klamm completion fish | source` into ~/.config/fish/config.fish.",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(*, shell: str) -> None:
    """Print what makes SHELL complete commands, options, topics and groups.

    \b
    bash:  eval "$(klamm completion bash)"      in ~/.bashrc
    zsh:   eval "$(klamm completion zsh)"       in ~/.zshrc
    fish:  klamm completion fish | source       in config.fish
    """  # noqa: D301 - click wants the character itself
    from click.shell_completion import get_completion_class

    from klamm.cli.main import cli

    kind = get_completion_class(shell)
    # click has classes for exactly the shells of the choice.
    assert kind is not None
    # The variable's name is click's convention for a program called klamm; main() reads it through click.
    click.echo(kind(cli, {}, "klamm", "_KLAMM_COMPLETE").source())
    # As a comment of the shell: the output is evaluated as a whole.
    click.echo(f"# {_HOW[shell]}")

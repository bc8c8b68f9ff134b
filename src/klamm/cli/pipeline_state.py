"""The option by which commands about pipelines find state."""

from __future__ import annotations

import click

# `--home` is the name that older versions had.
state_option = click.option(
    "--state",
    "--home",
    "state",
    metavar="DIR",
    help="Where pipelines keep state, each in DIR/<name>.  [default: by cluster, in the user's data folder]",
)

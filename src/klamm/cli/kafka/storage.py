"""kafka-storage: `klamm storage` by another name; it has the same commands and flags."""

from __future__ import annotations

import sys


def main(args: list[str]) -> int:
    """Run kafka-storage."""
    import click

    from klamm.cli.storage import storage

    try:
        storage.main(args, prog_name="kafka-storage", standalone_mode=False)
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    return 0

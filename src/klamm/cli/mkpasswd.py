"""`klamm mkpasswd`: a user for the authfile of an HTTP service."""

from __future__ import annotations

import json
import secrets
from typing import TextIO

import click

from klamm.cli.command_errors import refuses
from klamm.cli.user import password_option, read_password


@click.command()
@click.argument("user")
@password_option
@refuses
def mkpasswd(*, user: str, password_file: TextIO | None) -> None:
    """Print the entry of a user for an authfile: the password as a salted scrypt hash.

    \b
    klamm mkpasswd ada --password-file ada.password
    {"users": [ENTRY], "permissions": [{"username": "ada", "operation": "Write", "resource": "Subject:orders-.*"}]}
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with the character \b
    from klamm.http.authfile import format_user

    if ":" in user:
        raise click.UsageError("a user's name has no colon: it ends the name in basic authentication")
    password = read_password(password_file)
    click.echo(json.dumps(format_user(user, password, secrets.token_urlsafe(16)), indent=4))

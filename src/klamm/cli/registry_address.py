"""Which registry of schemas a command uses: from `--registry`, the environment, or this machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal

if TYPE_CHECKING:
    from klamm.registry.client import Registry, RegistryError

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_URL: Final = "http://127.0.0.1:8081"


class RegistryRefused(CommandRefusal):
    """Raised for what a registry refused; `status` is that of its answer, None without one."""

    status: int | None = None


class RegistryAddress(NamedTuple):
    """The registry of a command: an address and credentials, from options or the environment."""

    url: str
    user: str | None
    ca: str | None

    def connect(self) -> Registry:
        """Return a client."""
        from klamm.registry.client import Registry, parse_settings

        settings = {"schema.registry.url": self.url, "basic.auth.user.info": self.user, "ssl.ca.location": self.ca}
        return Registry(parse_settings(settings))


def registry_address_options(command: F) -> F:
    """Give a command `--registry`, `--registry-user` and `--registry-ca`; it is called with `registry`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        url = kwargs.pop("registry_url") or os.environ.get("KLAMM_REGISTRY") or _DEFAULT_URL
        user = kwargs.pop("registry_user") or os.environ.get("KLAMM_REGISTRY_USER")
        return command(*args, registry=RegistryAddress(url, user, kwargs.pop("registry_ca")), **kwargs)

    for option in (
        click.option("--registry-ca", metavar="FILE", help="PEM file of the authority that signed its certificate."),
        click.option(
            "--registry-user", metavar="USER:PASSWORD", help="Basic authentication.  [default: $KLAMM_REGISTRY_USER]"
        ),
        click.option(
            "--registry",
            "registry_url",
            metavar="URL,...",
            help=f"The registry of schemas.  [default: $KLAMM_REGISTRY, or {_DEFAULT_URL}]",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def refuse_call(error: RegistryError) -> CommandRefusal:
    """Return the refusal of a command whose registry failed or did not answer."""
    from klamm.registry.client import RegistryUnreachable

    if isinstance(error, RegistryUnreachable):
        reason = f"{error.message}; is a registry running there? `klamm registry` runs one, --registry names another"
        return CommandRefusal(reason, code=exit_codes.NO_ANSWER)
    refused = RegistryRefused(error.message or "the registry refused it")
    refused.status = error.status
    return refused

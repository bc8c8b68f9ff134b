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


class RegistryLogin(NamedTuple):
    """How to log in to a registry, from options or the environment."""

    user: str | None = None
    token: str | None = None
    token_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether it is a login at all."""
        return any((self.user, self.token, self.token_file, self.certificate))

    def settings(self, url: str) -> dict[str, str]:
        """Return the settings of a client of the registry."""
        settings = {
            "schema.registry.url": url,
            "basic.auth.user.info": self.user,
            "bearer.auth.token": self.token,
            "bearer.auth.token.file": self.token_file,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": os.environ.get("KLAMM_REGISTRY_KEY_PASSWORD"),
        }
        return {name: value for name, value in settings.items() if value}


class RegistryAddress(NamedTuple):
    """The registry of a command: an address and a login, from options or the environment."""

    url: str
    login: RegistryLogin

    def connect(self) -> Registry:
        """Return a client."""
        from klamm.registry.client import Registry, parse_settings

        return Registry(parse_settings(self.login.settings(self.url)))


_LOGIN_OPTIONS: Final = (
    click.option(
        "--registry-user",
        "registry_user",
        metavar="USER:PASSWORD",
        help="Login to the registry by password.  [default: $KLAMM_REGISTRY_USER]",
    ),
    click.option(
        "--registry-token-file",
        "registry_token_file",
        metavar="FILE",
        help="Login by the bearer token in a file, which may be replaced.  [default: the token $KLAMM_REGISTRY_TOKEN]",
    ),
    click.option(
        "--registry-ca",
        "registry_ca",
        metavar="FILE",
        help="PEM file of the authority that signed the registry's certificate.",
    ),
    click.option(
        "--registry-cert",
        "registry_certificate",
        metavar="FILE",
        help="Login to the registry by certificate: its chain (PEM).",
    ),
    click.option(
        "--registry-key",
        "registry_key",
        metavar="FILE",
        help="Private key of that certificate; $KLAMM_REGISTRY_KEY_PASSWORD decrypts it.",
    ),
)
_LOGIN_NAMES: Final = ("user", "token_file", "ca", "certificate", "key")


def registry_login_options(command: F) -> F:
    """Give a command the options of a login to a registry; it is called with `registry_login`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        login = _read_login({name: kwargs.pop(f"registry_{name}") for name in _LOGIN_NAMES})
        return command(*args, registry_login=login, **kwargs)

    # click lists options in the reverse order of their decorators.
    for option in reversed(_LOGIN_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _read_login(given: dict[str, str | None]) -> RegistryLogin:
    login = RegistryLogin(**given)
    if login.user and login.token_file:
        raise click.UsageError("--registry-user and --registry-token-file exclude each other; set one of them")
    if login.user or login.token_file:
        return login
    # The environment has no say beside a login of the command line. A token is never written there: `ps` shows it.
    user = os.environ.get("KLAMM_REGISTRY_USER") or None
    token = os.environ.get("KLAMM_REGISTRY_TOKEN") or None
    return login._replace(user=user, token=None if user else token)


def registry_address_options(command: F) -> F:
    """Give a command `--registry` and the options of a login to it; it is called with `registry`."""

    @functools.wraps(command)
    def wrapped(*args: Any, registry_login: RegistryLogin, **kwargs: Any) -> Any:
        url = kwargs.pop("registry_url") or os.environ.get("KLAMM_REGISTRY") or _DEFAULT_URL
        return command(*args, registry=RegistryAddress(url, registry_login), **kwargs)

    address = click.option(
        "--registry",
        "registry_url",
        metavar="URL,...",
        help=f"The registry of schemas.  [default: $KLAMM_REGISTRY, or {_DEFAULT_URL}]",
    )
    return address(registry_login_options(wrapped))  # type: ignore[return-value]


def refuse_call(error: RegistryError) -> CommandRefusal:
    """Return the refusal of a command whose registry failed or did not answer."""
    from klamm.registry.client import RegistryUnreachable

    if isinstance(error, RegistryUnreachable):
        reason = f"{error.message}; is a registry running there? `klamm registry` runs one, --registry names another"
        return CommandRefusal(reason, code=exit_codes.NO_ANSWER)
    refused = RegistryRefused(error.message or "the registry refused it")
    refused.status = error.status
    return refused

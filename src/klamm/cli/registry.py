"""`klamm registry`: a schema registry over a cluster."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.http_options import HttpOptions, http_options
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.http.login import WatchedAuthFile
    from klamm.registry.rights import SubjectRights
    from klamm.registry.service import RegistryConfig

F = TypeVar("F", bound=Callable[..., Any])

_COMPATIBILITY: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Options of a registry, whether it runs alone or beside the REST proxy."""

    advertised_host: str | None
    topic: str
    group: str
    compatibility: str
    follower: bool
    authorizer: str | None
    super_users: tuple[str, ...]

    def make_config(self, http: HttpOptions, port: int, client: dict[str, str]) -> RegistryConfig:
        """Return the settings of a registry that listens on a port."""
        from klamm.registry.service import RegistryConfig
        from klamm.registry.store.election import RegistryIdentity

        host = self.advertised_host or http.advertised_host()
        identity = RegistryIdentity(host, port, eligible=not self.follower, scheme=http.scheme)
        return RegistryConfig(client, identity, self.topic, self.group, self.compatibility.upper())

    def make_rights(
        self, http: HttpOptions, authfile: WatchedAuthFile | None, client: dict[str, str]
    ) -> SubjectRights | None:
        """Return the rights per subject; None when requests need no login, or no rights."""
        from klamm.registry.rights import AclRights, FileRights
        from klamm.security.core.principal import parse_principal

        if not http.has_login:
            if self.authorizer in ("file", "acl"):
                raise click.UsageError(
                    f"--authorizer {self.authorizer} needs logins: add --authfile or the keys of tokens"
                )
            return None
        chosen = self.authorizer or ("acl" if authfile is None else "file")
        if chosen == "none":
            return None
        if chosen == "file":
            if authfile is None:
                raise click.UsageError("--authorizer file needs --authfile")
            return FileRights(authfile)
        try:
            return AclRights(client, [str(parse_principal(name)) for name in self.super_users])
        except ValueError as error:
            raise click.UsageError(f"--super-user: {error}") from None


_OPTIONS: Final = (
    click.option(
        "--advertised-host", metavar="HOST", help="Where other registries forward changes to.  [default: --host]"
    ),
    click.option(
        "--topic", default="_schemas", show_default=True, help="Topic of the schemas; made when it is not there."
    ),
    click.option(
        "--group", default="schema-registry", show_default=True, help="Group in which registries elect a leader."
    ),
    click.option(
        "--compatibility",
        type=click.Choice(_COMPATIBILITY, case_sensitive=False),
        default="BACKWARD",
        show_default=True,
        help="Level of subjects without one.",
    ),
    click.option("--follower", is_flag=True, help="Never lead: answer reads, and forward changes."),
    click.option(
        "--authorizer",
        type=click.Choice(("file", "acl", "none")),
        help="Rights per subject: permissions of the authfile, ACLs of the cluster's topics, or none."
        "  [default: file with --authfile, else acl]",
    ),
    click.option("--super-user", "super_users", multiple=True, metavar="User:NAME", help="May do everything (acl)."),
)


def registry_options(command: F) -> F:
    """Give a command the options of a registry; it is called with `options`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        options = RegistryOptions(**{name: kwargs.pop(name) for name in RegistryOptions.__dataclass_fields__})
        return command(*args, options=options, **kwargs)

    # click lists options in the reverse order of their decorators.
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


@click.command()
@cluster_options
@http_options(8081)
@registry_options
@refuses
def registry(*, target: Target, http: HttpOptions, options: RegistryOptions) -> None:
    """Run a schema registry with Confluent's HTTP interface over a cluster.

    Prints a line when it serves; stops on Ctrl-C or SIGTERM. Several registries over one cluster elect one that writes,
    also together with Confluent's or Karapace. The first schema:

    \b
    curl -X POST http://127.0.0.1:8081/subjects/orders-value/versions \\
      -H 'Content-Type: application/vnd.schemaregistry.v1+json' \\
      -d '{"schema": "{\\"type\\": \\"string\\"}"}'
    curl http://127.0.0.1:8081/subjects/orders-value/versions/latest
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with the character \b
    import asyncio

    http.prepare("registry")
    try:
        from klamm.http.server import serve_until_signal
        from klamm.registry import schemas
        from klamm.registry.server import make_registry
    except ModuleNotFoundError as error:
        raise CommandRefusal(f"{error.name} is not installed: pip install 'klamm[http,registry]'") from None

    client = {"bootstrap.servers": target.bootstrap, "bootstrap.timeout.ms": str(int(target.timeout_s * 1000))}
    client |= target.settings
    authfile = http.open_authfile()
    login = http.make_login(authfile, "schema registry")
    rights = options.make_rights(http, authfile, client)
    tls, forward_tls = http.server_tls(), http.client_tls()
    with http.bind() as listening:
        config = options.make_config(http, listening.getsockname()[1], client)
        served = make_registry(config, schemas, listening, login=login, rights=rights, tls=tls, forward_tls=forward_tls)
        served.app.hosts = http.names_of(config.advertised.url)
        announce = functools.partial(_announce, config.advertised.url, target.bootstrap)
        asyncio.run(serve_until_signal([served], announce))


def _announce(url: str, bootstrap: str) -> None:
    click.echo(f"Klamm registry is ready on {url}, over {bootstrap}")
    # Scripts and tests wait for this line, and a pipe is block-buffered.
    sys.stdout.flush()

"""`klamm services`: the schema registry and the REST proxy in one process."""

from __future__ import annotations

import dataclasses
import sys

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.http_options import HttpOptions, http_options
from klamm.cli.registry import RegistryOptions, registry_options
from klamm.cli.registry_address import RegistryLogin, registry_login_options
from klamm.cli.target import Target, cluster_options


@click.command("services")
@cluster_options
@http_options(8081)
@click.option(
    "--rest-port",
    type=click.IntRange(0, 65535),
    default=8082,
    show_default=True,
    help="Port of the REST proxy; --port is that of the registry.",
)
@click.option("--rest-listen-fd", type=int, hidden=True, help="As --listen-fd, for the REST proxy.")
@click.option(
    "--registry-url",
    metavar="URL",
    help="Another registry for the REST proxy.  [default: the one of this process]",
)
@registry_login_options
@registry_options
@refuses
def services(
    *,
    target: Target,
    http: HttpOptions,
    options: RegistryOptions,
    rest_port: int,
    rest_listen_fd: int | None,
    registry_url: str | None,
    registry_login: RegistryLogin,
) -> None:
    """Run a schema registry and a REST proxy over a cluster, in one process.

    Address, TLS and logins are those of both; `klamm rest` has more options of the proxy. Prints a line when both
    serve; stops on Ctrl-C or SIGTERM. The first schema, and a record with one:

    \b
    curl -X POST http://127.0.0.1:8081/subjects/orders-value/versions \\
      -H 'Content-Type: application/vnd.schemaregistry.v1+json' \\
      -d '{"schema": "{\\"type\\": \\"string\\"}"}'
    curl http://127.0.0.1:8082/topics/orders \\
      -H 'Content-Type: application/vnd.kafka.avro.v2+json' \\
      -d '{"value_schema": "\\"string\\"", "records": [{"value": "tea"}]}'
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with the character \b
    import asyncio
    import functools

    http.prepare("registry and the REST proxy")
    login = _login_of_proxy(http, registry_url, registry_login)
    try:
        from klamm.http.server import serve_until_signal
        from klamm.registry import schemas
        from klamm.registry.server import make_registry
        from klamm.rest.server import make_rest
        from klamm.rest.service import RestConfig
    except ModuleNotFoundError as error:
        raise CommandRefusal(f"{error.name} is not installed: pip install 'klamm[http,registry]'") from None

    timeout = {"bootstrap.timeout.ms": str(int(target.timeout_s * 1000))}
    client = {"bootstrap.servers": target.bootstrap, **timeout, **target.settings}
    authfile = http.open_authfile()
    rights = options.make_rights(http, authfile, client)
    tls = http.server_tls()
    rest_http = dataclasses.replace(http, port=rest_port, listen_fd=rest_listen_fd)
    with http.bind() as of_registry, rest_http.bind() as of_rest:
        config = options.make_config(http, of_registry.getsockname()[1], client)
        registry = make_registry(
            config,
            schemas,
            of_registry,
            login=http.make_login(authfile, "schema registry"),
            rights=rights,
            tls=tls,
            forward_tls=http.client_tls(),
        )
        rest = make_rest(
            RestConfig(
                {**timeout, **target.client("admin")},
                target.client("producer"),
                target.client("consumer"),
                registry=login.settings(registry_url or config.advertised.url),
            ),
            of_rest,
            login=http.make_login(authfile, "REST proxy"),
            tls=tls,
        )
        rest_url = f"{http.scheme}://{http.advertised_host()}:{of_rest.getsockname()[1]}"
        registry.app.hosts, rest.app.hosts = http.names_of(config.advertised.url), http.names_of(rest_url)
        announce = functools.partial(_announce, config.advertised.url, rest_url, target.bootstrap)
        asyncio.run(serve_until_signal([registry, rest], announce))


def _login_of_proxy(http: HttpOptions, registry_url: str | None, login: RegistryLogin) -> RegistryLogin:
    """Return how the proxy logs in to the registry beside it: it trusts the authority of their own certificate."""
    login = login._replace(ca=login.ca or http.cafile)
    if registry_url is not None:
        return login
    if http.takes_certificates and login.certificate is None:
        # As registries do that forward a change to another one.
        login = login._replace(certificate=http.certfile, key=http.keyfile)
    if http.has_login and not login.has_credentials:
        raise click.UsageError(
            "the REST proxy has to log in to the registry: add --registry-user or --registry-token-file"
        )
    return login


def _announce(registry_url: str, rest_url: str, bootstrap: str) -> None:
    click.echo(f"Klamm registry is ready on {registry_url}, REST proxy on {rest_url}, over {bootstrap}")
    # Scripts and tests wait for this line, and a pipe is block-buffered.
    sys.stdout.flush()

"""`klamm rest`: a REST proxy over a cluster."""

from __future__ import annotations

import sys
from typing import Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.http_options import HttpOptions, http_options
from klamm.cli.registry_address import RegistryLogin, registry_login_options
from klamm.cli.target import Target, cluster_options, parse_addresses

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@click.command("rest")
@cluster_options
@http_options(8082)
@click.option(
    "--registry-url",
    metavar="URL",
    help="Schema registry, for records in Avro, JSON Schema and Protobuf; several separated by commas.",
)
@registry_login_options
@click.option(
    "--advertised-url", metavar="URL", help="Address in links of answers.  [default: the one that a request used]"
)
@click.option(
    "--instances-max", type=click.IntRange(1), default=500, show_default=True, help="Consumer instances at a time."
)
@click.option(
    "--instance-timeout-ms",
    type=click.IntRange(1000),
    default=300_000,
    show_default=True,
    help="Idle consumer instances are closed after so long.",
)
@click.option(
    "--body-bytes-max",
    type=click.IntRange(1024),
    default=16 << 20,
    show_default=True,
    help="Largest body, streams aside.",
)
@click.option(
    "--rest-authorization",
    is_flag=True,
    help="Log every caller in to the cluster with the password or token of its requests; the cluster's ACLs decide.",
)
@click.option(
    "--sasl-bootstrap-uri",
    metavar="HOST:PORT,...",
    help="Listener of the cluster for the logins of callers.  [default: that of -b]",
)
@click.option(
    "--caller-sasl-mechanism",
    type=click.Choice(MECHANISMS),
    help="Mechanism for the passwords of callers.  [default: sasl.mechanism of -X, else PLAIN]",
)
@click.option(
    "--callers-max",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Callers whose clients are open at a time.",
)
@refuses
def rest(
    *,
    target: Target,
    http: HttpOptions,
    registry_url: str | None,
    registry_login: RegistryLogin,
    advertised_url: str | None,
    instances_max: int,
    instance_timeout_ms: int,
    body_bytes_max: int,
    rest_authorization: bool,
    sasl_bootstrap_uri: str | None,
    caller_sasl_mechanism: str | None,
    callers_max: int,
) -> None:
    """Run a REST proxy with Kafka REST's HTTP interfaces (v2 and v3) over a cluster.

    Prints a line when it serves; stops on Ctrl-C or SIGTERM. The first record:

    \b
    curl -X POST http://127.0.0.1:8082/topics/orders \\
      -H 'Content-Type: application/vnd.kafka.json.v2+json' \\
      -d '{"records": [{"value": {"item": "tea"}}]}'
    curl http://127.0.0.1:8082/openapi.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with the character \b
    import asyncio
    import functools

    if rest_authorization and http.has_login:
        raise click.UsageError(
            "with --rest-authorization the cluster checks logins: remove --authfile,"
            " --sasl-oauthbearer-jwks-endpoint-url and --ssl-client-auth"
        )
    if not rest_authorization and (sasl_bootstrap_uri or caller_sasl_mechanism):
        raise click.UsageError("--sasl-bootstrap-uri and --caller-sasl-mechanism need --rest-authorization")
    if sasl_bootstrap_uri:
        parse_addresses(sasl_bootstrap_uri)
    http.prepare("REST proxy", delegated=rest_authorization)
    try:
        from klamm.http.server import serve_until_signal
        from klamm.rest.core.callers import CallerLogin
        from klamm.rest.server import make_rest
        from klamm.rest.service import RestConfig
    except ModuleNotFoundError as error:
        raise CommandRefusal(f"{error.name} is not installed: pip install 'klamm[http,registry]'") from None

    # Settings of -X go to the clients that have them.
    config = RestConfig(
        {"bootstrap.timeout.ms": str(int(target.timeout_s * 1000)), **target.client("admin")},
        target.client("producer"),
        target.client("consumer"),
        registry=registry_login.settings(registry_url) if registry_url else None,
        advertised_url=advertised_url,
        instances_max=instances_max,
        instance_timeout_ms=instance_timeout_ms,
        body_bytes_max=body_bytes_max,
        caller_login=CallerLogin(sasl_bootstrap_uri, caller_sasl_mechanism) if rest_authorization else None,
        callers_max=callers_max,
    )
    login = http.make_login(http.open_authfile(), "REST proxy")
    tls = http.server_tls()
    with http.bind() as listening:
        bound = listening.getsockname()[1]
        url = advertised_url or f"{http.scheme}://{http.advertised_host()}:{bound}"
        announce = functools.partial(_announce, url, target.bootstrap)
        served = make_rest(config, listening, login=login, tls=tls)
        served.app.hosts = http.names_of(url)
        asyncio.run(serve_until_signal([served], announce))


def _announce(url: str, bootstrap: str) -> None:
    click.echo(f"Klamm REST proxy is ready on {url}, over {bootstrap}")
    # Scripts and tests wait for this line, and a pipe is block-buffered.
    sys.stdout.flush()

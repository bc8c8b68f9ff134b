"""`klamm console`: a web console for any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.http_options import HttpOptions
from klamm.cli.node_runner import LEVELS, set_log_level, stop_at_eof
from klamm.cli.target import Target, cluster_options
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    from klamm.console.clusters import ConsoleCluster
    from klamm.console.settings import ConsoleSettings

_LOOPBACK: Final = ("127.", "::1", "localhost")


@click.command()
@cluster_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--config", "file", metavar="FILE", help="Users, roles, masks and audit, in TOML.")
@click.option("--all-contexts", is_flag=True, help="Show every context of `klamm ctx ls`, not only one cluster.")
@click.option(
    "--registry",
    "registries",
    metavar="[CONTEXT=]URL",
    multiple=True,
    envvar="KLAMM_REGISTRY",
    help="Its schema registry; with a name that of a context. Repeatable.",
)
@click.option("--data", metavar="DIR", help="Where 24 hours of samples are kept.  [default: $XDG_STATE_HOME/klamm]")
@click.option("--state", metavar="DIR", help="Where pipelines keep state, each in DIR/<name>, as for `klamm pipeline`.")
@click.option("--read-only", is_flag=True, help="Refuse all changes, for every user.")
@click.option("--allow-insecure-bind", is_flag=True, help="Let --host be reachable by others without a login.")
@click.option("--server-tls-certfile", "certfile", metavar="FILE", help="Certificate chain (PEM): serve HTTPS.")
@click.option("--server-tls-keyfile", "keyfile", metavar="FILE", help="Private key, unless it is in that file.")
@click.option("--no-history", is_flag=True, help="Keep samples in memory only.")
@click.option(
    "--until-eof", is_flag=True, help="Stop when standard input ends, as it does when the parent process ends."
)
@click.option("--listen-fd", type=int, hidden=True, help="A socket that the parent process has bound.")
@click.option("--hash-password", is_flag=True, help="Prompt for a password, print its hash for the file, and end.")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="Lines to log.")
@refuses
def console(
    *,
    target: Target,
    host: str,
    port: int,
    file: str | None,
    all_contexts: bool,
    registries: tuple[str, ...],
    data: str | None,
    state: str | None,
    read_only: bool,
    allow_insecure_bind: bool,
    certfile: str | None,
    keyfile: str | None,
    no_history: bool,
    until_eof: bool,
    listen_fd: int | None,
    hash_password: bool,
    log_level: str,
) -> None:
    """Run a web console: topics, records, groups, brokers, rights.

    Prints its address when it serves; stops on Ctrl-C or SIGTERM. A client of the cluster, so that it works with Apache
    Kafka too.

    \b
    klamm console
    klamm console -b kafka-1:9092 --read-only
    klamm console --all-contexts --config console.toml --host 0.0.0.0
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with the character \b
    try:
        if hash_password:
            from klamm.console.login.passwords import hash_password as make_hash

            click.echo(make_hash(click.prompt("Password", hide_input=True, confirmation_prompt=True)))
            return
        settings = _read_settings(file, read_only=read_only)
        if not allow_insecure_bind and not settings.needs_login and not host.startswith(_LOOPBACK):
            raise CommandRefusal(
                f"{host}:{port} opens the console to other machines, and it has no users: name a file with --config,"
                " or add --allow-insecure-bind if that is meant"
            )
        # The logins of the other services are for programs; the console has its own, with sessions.
        http = HttpOptions(
            host,
            port,
            allow_insecure_bind,
            certfile,
            keyfile,
            None,
            None,
            None,
            None,
            (),
            "",
            log_level,
            access_log=False,
            until_eof=until_eof,
            listen_fd=listen_fd,
        )
        clusters = _add_registries(_list_clusters(target, all_contexts=all_contexts), registries)
        _serve(clusters, settings, http, ":memory:" if no_history else _history_path(data), state)
    except ModuleNotFoundError as error:
        raise CommandRefusal(f"{error.name} is not installed: pip install 'klamm[console]'") from None
    except ConfigError as error:
        raise CommandRefusal(str(error)) from None


def _serve(
    clusters: list[ConsoleCluster], settings: ConsoleSettings, http: HttpOptions, history_path: str, state: str | None
) -> None:
    import asyncio
    import functools

    from klamm.console.service import ConsoleConfig, ConsoleService
    from klamm.http.server import ServedApp, serve_until_signal

    set_log_level(http.log_level)
    if http.until_eof:
        stop_at_eof()
    tls = http.server_tls()
    # Bound first: a port in use must not open the file of a console that runs.
    with http.bind() as listening:
        config = ConsoleConfig(
            tuple(clusters), settings, history_path, secure_cookies=tls is not None, pipeline_root=state
        )
        service = ConsoleService(config)
        host = f"[{http.host}]" if ":" in http.host else http.host
        address = f"{http.scheme}://{host}:{listening.getsockname()[1]}"
        on_ready = functools.partial(_report_ready, address, ", ".join(cluster.bootstrap for cluster in clusters))
        asyncio.run(serve_until_signal([ServedApp(service.app, service, listening, tls)], on_ready))


def _report_ready(address: str, bootstrap: str) -> None:
    click.echo(f"Klamm console is ready on {address}, over {bootstrap}")
    # Scripts and tests wait for this line, and a pipe is block-buffered.
    sys.stdout.flush()


def _read_settings(file: str | None, *, read_only: bool) -> ConsoleSettings:
    from klamm.console.settings import ConsoleSettings, parse_settings

    settings = ConsoleSettings()
    if file is not None:
        with open(file, encoding="utf-8") as text:
            settings = parse_settings(text.read())
    return dataclasses.replace(settings, read_only=True) if read_only else settings


def _list_clusters(target: Target, *, all_contexts: bool) -> list[ConsoleCluster]:
    """The clusters to show: that of the command line, or all contexts, the one in use first."""
    from klamm.cli import context_file

    if not all_contexts:
        name = target.context or "cluster"
        return [_make_cluster(name, target.bootstrap, target.context, target.settings, protected=target.protected)]
    held = context_file.load()
    if not held.contexts:
        raise CommandRefusal("there are no contexts; `klamm ctx add NAME -b HOST:PORT` makes one")
    names = sorted(held.contexts)
    if held.current in names:
        names.remove(held.current)
        names.insert(0, held.current)
    return [
        _make_cluster(name, context.bootstrap, name, context.settings, protected=context.protected)
        for name in names
        for context in (held.contexts[name],)
    ]


def _add_registries(clusters: list[ConsoleCluster], registries: Sequence[str]) -> list[ConsoleCluster]:
    """Give clusters their registries; one without a name is that of the cluster named, or of the context in use."""
    urls: dict[str, str] = {}
    for text in registries:
        name, equals, url = text.partition("=")
        # An address may have an equals sign of its own, and no context has a slash.
        if not equals or "/" in name:
            name, url = clusters[0].name, text
        if name not in {cluster.name for cluster in clusters}:
            known = ", ".join(cluster.name for cluster in clusters)
            raise CommandRefusal(f"--registry {text}: the console shows no cluster {name}; it shows {known}")
        urls[name] = url
    return [dataclasses.replace(cluster, registry_url=urls.get(cluster.name)) for cluster in clusters]


def _make_cluster(
    name: str, bootstrap: str, context: str | None, given: Mapping[str, str], *, protected: bool
) -> ConsoleCluster:
    from klamm.cli.client_settings import ADMIN, CONSUMER, PRODUCER, taken_by
    from klamm.console.clusters import ConsoleCluster

    settings = {role: taken_by(role, given) for role in (ADMIN, PRODUCER, CONSUMER)}
    return ConsoleCluster(name, bootstrap, context, protected, settings)


def _history_path(data: str | None) -> str:
    home = os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = data or os.path.join(os.environ.get("XDG_STATE_HOME") or home, "klamm")
    # Names of topics and groups are not for other users of the machine.
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, "console.sqlite")

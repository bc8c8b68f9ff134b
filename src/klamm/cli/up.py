"""`klamm up`: a node without a configuration file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.node_runner import LEVELS, refuse_exposure, serve, set_log_level

if TYPE_CHECKING:
    from klamm.cli.child_service import ChildService
    from klamm.cli.up_services import ServicesProcess

DATA = ".klamm"
_DATA_HELP = f"Folder of the data, made when it is not there.  [default: ./{DATA}, or ./{DATA}-N with --nodes N]"
METRICS_PORT = 9404
"""Where Prometheus' exporters for Java are usually found; another one if it is taken."""
_OTHER_PORT = "choose another with --port (0 takes a free one)"
_ANOTHER_FOLDER = "or choose another folder with --data"


@click.command()
@click.option("--data", metavar="DIR", help=_DATA_HELP)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-insecure-bind", is_flag=True, help="Let --host be an address other machines reach.")
@click.option("--ephemeral", is_flag=True, help="Keep the data in a temporary folder and remove it at the end.")
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Processes of a local cluster.")
@click.option("--secure", is_flag=True, help="TLS, passwords and rights; commands then use the context `secure`.")
@click.option("--registry", is_flag=True, help="A schema registry too, on port 8081 of this machine or a free one.")
@click.option("--rest", is_flag=True, help="A REST proxy too, on port 8082 of this machine or a free one.")
@click.option(
    "--console/--no-console",
    default=True,
    envvar="KLAMM_CONSOLE",
    help="Serve the web console on 127.0.0.1:8080, or a free port, if klamm[console] is installed; not with --secure.",
)
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting unlike the built-in one.")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="Lines to log.")
@click.option("--quiet", is_flag=True, help="Log errors only.")
@refuses
def up(
    *,
    data: str | None,
    port: int,
    host: str,
    allow_insecure_bind: bool,
    ephemeral: bool,
    nodes: int,
    secure: bool,
    registry: bool,
    rest: bool,
    console: bool,
    overrides: tuple[str, ...],
    log_level: str,
    quiet: bool,
) -> None:
    """Run one node, or with --nodes a cluster of several processes, with built-in settings.

    Prints a line when it serves; stops on Ctrl-C or SIGTERM. Node N of a cluster listens on --port plus 2(N-1), keeps
    everything in node-N of the data folder, and is started again when it dies. --registry and --rest serve this machine
    only, without a login; with --secure they use the cluster as its admin.
    """
    from klamm.server.boot.config import embedded_properties, parse_config
    from klamm.server.boot.listener_security import authenticates
    from klamm.server.boot.listeners import Listener

    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral and --data exclude each other; write one of them")
    # --quiet wins over --log-level, in whatever order they are written.
    level = "error" if quiet else log_level
    set_log_level(level)
    services = None
    if registry or rest:
        from klamm.cli.up_services import ServicesProcess

        services = ServicesProcess(registry=registry, rest=rest, log_level=level)
    if secure:
        if ephemeral or nodes > 1:
            raise click.UsageError("--secure runs one node that keeps its data; leave --ephemeral and --nodes out")
        _run_secure(data, _find_option("host"), _find_option("port"), overrides, services)
        return
    with _folder(data, nodes, ephemeral=ephemeral) as folder:
        children = _list_children(services, None if ephemeral else folder, console=console)
        if nodes > 1:
            from klamm.cli.up_cluster import run_cluster

            # Before anything is written: a refused command leaves nothing behind.
            if not allow_insecure_bind:
                refuse_exposure([Listener("PLAINTEXT", host, port)])
            refuse_foreign_cluster_folder(folder)
            run_cluster(folder, nodes, host=host, port=port, overrides=overrides, log_level=level, children=children)
            if not ephemeral and not quiet:
                again = f"klamm up --nodes {nodes}"
                print_data_folders([folder], again if data is None else f"{again} --data {data}")
            return
        properties = embedded_properties(folder, port=port, host=host)
        config = parse_config(properties, with_metrics(overrides), source="the built-in settings")
        if not allow_insecure_bind:
            refuse_exposure([listener for listener in config.listeners if not authenticates(config, listener)])
        for path in config.log_dirs:
            refuse_foreign_folder(path)
        serve(
            config,
            other_port=_OTHER_PORT,
            preferred_metrics_port=_preferred_metrics_port(overrides),
            children=children,
        )
        if not ephemeral and not quiet:
            print_data_folders(config.log_dirs, "klamm up" if data is None else f"klamm up --data {data}")


def _list_children(services: ServicesProcess | None, data: str | None, *, console: bool) -> list[ChildService]:
    from klamm.cli.up_console import ConsoleProcess, is_console_installed

    children: list[ChildService] = [] if services is None else [services]
    if console and is_console_installed():
        children.append(ConsoleProcess(data, services))
    return children


def _find_option(name: str) -> Any:
    """Return the value of an option of this command, or None if it is the default."""
    context = click.get_current_context()
    is_default = context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT
    return None if is_default else context.params[name]


def _run_secure(
    data: str | None,
    host: str | None,
    port: int | None,
    overrides: tuple[str, ...],
    services: ServicesProcess | None,
) -> None:
    from klamm.cli.context_file import load
    from klamm.cli.up_secure import FOLDER, client_file, override_listeners, prepare, save_context
    from klamm.server.boot.config import load_config

    # Contexts that cannot be read are refused before the node starts, not once it serves.
    load()
    folder = data or FOLDER
    path = prepare(folder, host=host, port=port)
    config = load_config(path, with_metrics((*override_listeners(path, host=host, port=port), *overrides)))
    listener = config.broker_listeners[0]
    # No console: without users of its own it would give every user of the machine the rights of the administrator.
    if services is not None:
        services.settings_file = client_file(folder)
    serve(
        config,
        other_port="choose another with --port",
        preferred_metrics_port=_preferred_metrics_port(overrides),
        # Not before: a node that cannot start leaves the context in use as it was.
        before_announcement=partial(save_context, folder, host=listener.host, port=listener.port),
        children=[] if services is None else [services],
    )


def with_metrics(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the overrides with a metrics listener on this machine, unless they name one or none."""
    from klamm.model.broker_catalog.own import METRICS_LISTENERS
    from klamm.net.free_ports import usual_or_free

    if not _preferred_metrics_port(overrides):
        return overrides
    port = usual_or_free("127.0.0.1", METRICS_PORT)
    return (f"{METRICS_LISTENERS}=127.0.0.1:{port}", *overrides)


def _preferred_metrics_port(overrides: tuple[str, ...]) -> int:
    """Return the port of metrics that is used if it is free; 0 if the overrides decide about metrics."""
    from klamm.model.broker_catalog.own import METRICS_LISTENERS

    decided = any(override.partition("=")[0].strip() == METRICS_LISTENERS for override in overrides)
    return 0 if decided else METRICS_PORT


def print_data_folders(folders: Sequence[str], again: str) -> None:
    """Print where the data is, at a terminal only."""
    if sys.stderr.isatty():
        click.echo(f"Klamm has stopped. The data is in {', '.join(folders)}; `{again}` goes on with it.", err=True)


def refuse_foreign_folder(path: str) -> None:
    """Refuse a folder that holds a cluster, a node of one, or other files."""
    from klamm.server.boot.local_cluster import cluster_size, read_membership

    if not os.path.isdir(path):
        return
    if size := cluster_size(path):
        raise CommandRefusal(
            f"{path} holds a cluster of {size} nodes; start it with `klamm up --nodes {size} --data {path}`,"
            f" {_ANOTHER_FOLDER}"
        )
    # Started alone, the node would wait for a quorum that never forms.
    if (member := read_membership(path)) is not None:
        raise CommandRefusal(
            f"{path} belongs to node {member.node_id} of a cluster of {member.size}; start all of them with"
            f" `klamm up --nodes {member.size} --data {member.cluster_folder}`, {_ANOTHER_FOLDER}"
        )
    # Formatting would mix log directories with files of the user, and `rm -r` of the data would delete both.
    if not _is_formatted(path) and _has_other_files(path):
        raise CommandRefusal(
            f"{path} holds other files and no node's data; choose an empty folder or one that does not exist"
        )


def refuse_foreign_cluster_folder(path: str) -> None:
    """The same for the folder of a cluster, whose size is checked where it is prepared."""
    from klamm.server.boot.local_cluster import cluster_size

    if not os.path.isdir(path) or cluster_size(path):
        return
    if _is_formatted(path):
        raise CommandRefusal(
            f"{path} holds the data of one node; start it with `klamm up --data {path}`, {_ANOTHER_FOLDER}"
        )
    if _has_other_files(path):
        raise CommandRefusal(
            f"{path} holds other files and no cluster; choose an empty folder or one that does not exist"
        )


def _is_formatted(path: str) -> bool:
    return os.path.exists(os.path.join(path, "meta.properties"))


def _has_other_files(path: str) -> bool:
    from klamm.server.boot.format import IGNORED_IN_EMPTY

    return bool(set(os.listdir(path)) - IGNORED_IN_EMPTY)


def _default_folder(nodes: int) -> str:
    """One node and clusters of each size have folders of their own, so that all can be kept side by side."""
    if nodes == 1:
        return DATA
    from klamm.server.boot.local_cluster import cluster_size

    folder = f"{DATA}-{nodes}"
    # Earlier versions kept a cluster of any size in the folder of one node.
    return DATA if not os.path.exists(folder) and cluster_size(DATA) == nodes else folder


@contextlib.contextmanager
def _folder(data: str | None, nodes: int, *, ephemeral: bool) -> Iterator[str]:
    if not ephemeral:
        yield data if data is not None else _default_folder(nodes)
        return
    folder = tempfile.mkdtemp(prefix="klamm-")
    try:
        yield folder
    finally:
        # Errors are ignored: a node that is killed may still write while its folder is removed.
        shutil.rmtree(folder, ignore_errors=True)

"""`klamm up`: a node without a configuration file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.node_runner import LEVELS, refuse_exposure, serve, set_log_level

DATA = ".klamm"
_DATA_HELP = f"Folder of the data, made when it is not there.  [default: ./{DATA}, or ./{DATA}-N with --nodes N]"
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
    overrides: tuple[str, ...],
    log_level: str,
    quiet: bool,
) -> None:
    """Run one node, or with --nodes a cluster of several processes, with built-in settings.

    Prints a line when it serves; stops on Ctrl-C or SIGTERM. Node N of a cluster listens on --port plus 2(N-1), keeps
    everything in node-N of the data folder, and is started again when it dies.
    """
    from klamm.server.boot.config import embedded_properties, parse_config
    from klamm.server.boot.listener_security import authenticates
    from klamm.server.boot.listeners import Listener

    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral and --data exclude each other; write one of them")
    # --quiet wins over --log-level, in whatever order they are written.
    level = "error" if quiet else log_level
    set_log_level(level)
    if secure:
        if ephemeral or nodes > 1:
            raise click.UsageError("--secure runs one node that keeps its data; leave --ephemeral and --nodes out")
        _run_secure(data, host, port, overrides)
        return
    with _folder(data, nodes, ephemeral=ephemeral) as folder:
        if nodes > 1:
            from klamm.cli.up_cluster import run_cluster

            # Before anything is written: a refused command leaves nothing behind.
            if not allow_insecure_bind:
                refuse_exposure([Listener("PLAINTEXT", host, port)])
            refuse_foreign_cluster_folder(folder)
            run_cluster(folder, nodes, host=host, port=port, overrides=overrides, log_level=level)
            if not ephemeral and not quiet:
                again = f"klamm up --nodes {nodes}"
                print_data_folders([folder], again if data is None else f"{again} --data {data}")
            return
        properties = embedded_properties(folder, port=port, host=host)
        config = parse_config(properties, overrides, source="the built-in settings")
        if not allow_insecure_bind:
            refuse_exposure([listener for listener in config.listeners if not authenticates(config, listener)])
        for path in config.log_dirs:
            refuse_foreign_folder(path)
        serve(config, other_port=_OTHER_PORT)
        if not ephemeral and not quiet:
            print_data_folders(config.log_dirs, "klamm up" if data is None else f"klamm up --data {data}")


def _run_secure(data: str | None, host: str, port: int, overrides: tuple[str, ...]) -> None:
    from klamm.cli.up_secure import FOLDER, prepare, save_context
    from klamm.server.boot.config import load_config

    folder = data or FOLDER
    config = load_config(prepare(folder, host=host, port=port), overrides)
    listener = config.broker_listeners[0]
    save_context(folder, host=listener.host, port=listener.port)
    serve(config, other_port=_OTHER_PORT)


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

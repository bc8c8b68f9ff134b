"""`klamm up`: a node that needs no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

import click

from klamm.cli.refusal import Refusal, refuses
from klamm.cli.serving import LEVELS, refuse_exposure, serve, set_log_level

DATA = ".klamm"


@click.command()
@click.option("--data", metavar="DIR", help=f"Folder of the data, made when it is not there.  [default: ./{DATA}]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="Port; 0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-insecure-bind", is_flag=True, help="Let --host be an address other machines reach.")
@click.option("--ephemeral", is_flag=True, help="Keep the data in a temporary folder and remove it at the end.")
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Processes of a local cluster.")
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
    overrides: tuple[str, ...],
    log_level: str,
    quiet: bool,
) -> None:
    """Run one node, or with --nodes a cluster of several processes, with built-in settings.

    Prints a line when it serves; stops on Ctrl-C or SIGTERM. Node N of a cluster listens on --port plus 2(N-1), keeps
    everything in node-N of the data folder, and is started again when it dies.
    """
    from klamm.server.config import embedded_properties, parse_config
    from klamm.server.listeners import Listener

    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral and --data exclude each other; write one of them")
    level = "error" if quiet else log_level
    set_log_level(level)
    with _folder(data, ephemeral=ephemeral) as folder:
        if nodes > 1:
            from klamm.cli.up_cluster import run_cluster

            if not allow_insecure_bind:
                refuse_exposure([Listener("PLAINTEXT", host, port)])
            refuse_foreign_folder(folder, "node-1")
            run_cluster(folder, nodes, host=host, port=port, overrides=overrides, log_level=level)
            return
        properties = embedded_properties(folder, port=port, host=host)
        config = parse_config(properties, overrides, source="the built-in settings")
        if not allow_insecure_bind:
            refuse_exposure(config.listeners)
        for path in config.log_dirs:
            refuse_foreign_folder(path)
        serve(config)


def refuse_foreign_folder(path: str, sign: str = "meta.properties") -> None:
    """Keep a node from pouring its files into a folder that holds something else; `sign` shows that it is its own."""
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, sign)):
        return
    if set(os.listdir(path)) - {".lock", "lost+found"}:
        raise Refusal(f"{path} holds other files and no node's data; choose an empty folder or one that does not exist")


@contextlib.contextmanager
def _folder(data: str | None, *, ephemeral: bool) -> Iterator[str]:
    if not ephemeral:
        yield data if data is not None else DATA
        return
    folder = tempfile.mkdtemp(prefix="klamm-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

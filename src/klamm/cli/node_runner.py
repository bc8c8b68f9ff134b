"""What `klamm up` and `klamm server` share: the log level, the checks before the start, and running the node."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from klamm.cli.command_errors import CommandRefusal
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.cli.child_service import ChildService
    from klamm.server.boot.config import NodeConfig
    from klamm.server.boot.listeners import Listener

LEVELS = ("debug", "info", "warning", "error")
# Lines of standard output, which the supervisor of a local cluster reads.
READY_LINE = "Klamm is ready on "
METRICS_LINE = "  metrics  http://"


def set_log_level(level: str) -> None:
    """Choose which lines reach standard error."""
    from klamm.telemetry import Level, capture_stdlib, configure

    configure(Level[level.upper()])
    capture_stdlib()


def serve(
    config: NodeConfig,
    *,
    other_port: str = "choose another port in `listeners`",
    preferred_metrics_port: int = 0,
    before_announcement: Callable[[], None] | None = None,
    children: Sequence[ChildService] = (),
) -> None:
    """Run a node until a signal stops it; exit with its code when that is not 0.

    `other_port` is the advice where the port is taken. With a preferred port of metrics another one is used if it is
    taken, and the line about metrics says so. `before_announcement` is called once the node serves, before it is
    announced as ready. `children` are started once it is announced, and ended before the node stops.
    """
    from klamm.cli.child_service import stop_children
    from klamm.records import INTERPRETED_NOTICE, kernels_compiled
    from klamm.server.boot.format import all_folders, check_folders, check_voters, read_identities
    from klamm.server.metrics.service import MetricsPortTakenError
    from klamm.server.node import run_node

    # All checks before the node starts: each of them fails with a sentence, and nothing on disk has changed.
    check_folders(all_folders(config))
    read_identities(config)
    check_voters(config)
    # A node without compiled kernels works, but so slowly that it looks like a bug.
    if not kernels_compiled():
        click.echo(f"klamm: {INTERPRETED_NOTICE}", err=True)

    def announce(address: str) -> None:
        if before_announcement is not None:
            before_announcement()
        _announce(config, preferred_metrics_port, address)
        for child in children:
            child.start(address)

    before_stop = partial(stop_children, children) if children else None
    try:
        try:
            code = run_node(config, on_ready=announce, before_stop=before_stop)
        except MetricsPortTakenError:
            if not preferred_metrics_port:
                raise
            # Another process took it after it was found free.
            config = _move_metrics(config)
            code = run_node(config, on_ready=announce, before_stop=before_stop)
    except ConfigError as error:
        from klamm.cli.port_owner import name_holder

        complaint = name_holder(str(error), other_port)
        # Not about a port: the message of the ConfigError stands.
        if complaint == str(error):
            raise
        raise CommandRefusal(complaint) from None
    finally:
        # For a node that ended by an error; otherwise they have ended.
        stop_children(children)
    if code:
        sys.exit(code)


def _move_metrics(config: NodeConfig) -> NodeConfig:
    from klamm.net.free_ports import free_port

    listeners = (replace(listener, port=free_port(listener.host)) for listener in config.metrics_listeners)
    return replace(config, metrics_listeners=tuple(listeners))


def stop_at_eof() -> None:
    """Stop this process as SIGTERM does once standard input ends: its parent is gone."""
    import os
    import signal
    import threading

    def wait() -> None:
        # What arrives is ignored; only the end matters.
        while os.read(0, 4096):
            pass
        # A signal, not an exit: the node flushes its logs and leaves the cluster in order.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="until-eof", daemon=True).start()


def refuse_exposure(listeners: Iterable[Listener]) -> None:
    """Stop a node from being open to other machines by accident; `listeners` are those without authentication."""
    for listener in listeners:
        if not listener.loopback:
            raise CommandRefusal(
                f"{listener} opens the node to other machines, and it has no authentication;"
                " add --allow-insecure-bind if that is meant"
            )


def _announce(config: NodeConfig, preferred_metrics_port: int, address: str) -> None:
    click.echo(f"{READY_LINE}{address}")
    for listener in config.metrics_listeners:
        other = preferred_metrics_port and listener.port != preferred_metrics_port
        note = f"  (port {preferred_metrics_port} is taken)" if other else ""
        click.echo(f"{METRICS_LINE}{listener.host}:{listener.port}/metrics{note}")
    # Scripts and tests wait for this line, and a pipe is block-buffered.
    sys.stdout.flush()

"""`klamm server`: a node from Kafka's own server.properties."""

from __future__ import annotations

import click

from klamm.cli.command_errors import refuses
from klamm.cli.node_runner import LEVELS, serve, set_log_level, stop_at_eof


@click.command()
@click.argument("file", metavar="FILE.properties")
@click.option("--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting that wins over the file.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Lines to log.")
@click.option(
    "--until-eof", is_flag=True, help="Stop when standard input ends, as it does when the parent process ends."
)
@click.option(
    "--other-metrics-port", is_flag=True, help="Serve metrics on a free port if the one of metrics.listeners is taken."
)
@refuses
def server(file: str, overrides: tuple[str, ...], log_level: str, *, until_eof: bool, other_metrics_port: bool) -> None:
    """Run a node from a server.properties written for Kafka 4.

    The file may contain any of Kafka's settings; those without meaning here are listed once in the log. The data folder
    of a node that is its cluster's only controller is formatted at the first start.

    A listener that other machines can reach needs authentication (SASL, or SSL with client certificates), unless
    klamm.insecure.listeners names it.
    """
    from klamm.server.boot.config import load_config
    from klamm.server.boot.config_checks import refuse_open_listeners

    # Before the file is read: settings without meaning are logged while it is parsed.
    set_log_level(log_level)
    if until_eof:
        stop_at_eof()
    config = load_config(file, overrides)
    refuse_open_listeners(config)
    may_move = other_metrics_port and config.metrics_listeners
    serve(config, preferred_metrics_port=config.metrics_listeners[0].port if may_move else 0)

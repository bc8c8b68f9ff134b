"""`klamm top`: the traffic, the lag and the slow requests of a cluster, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.output import output_option, show_one
from klamm.cli.top_listeners import read_listeners
from klamm.cli.watch import read_pause

if TYPE_CHECKING:
    from klamm.cli.top_nodes import WatchedNode

DEFAULT_ADDRESS: Final = "127.0.0.1:9404"
TIMEOUT_SHARE: Final = 0.8
"""How much of the time between two looks a node may take to answer."""
TIMEOUT_MIN_S: Final = 1.0
"""How long a node may take at least, also where the looks follow each other more quickly."""


@click.command()
@click.option(
    "--metrics",
    "addresses",
    multiple=True,
    default=(DEFAULT_ADDRESS,),
    show_default=True,
    metavar="ADDRESS",
    callback=read_listeners,
    help="Metrics listener of a node, HOST:PORT or http://HOST:PORT; once for each.",
)
@click.option("--every", "pause_s", default="2s", show_default=True, metavar="TIME", callback=read_pause,
              help="Time between two looks, over which rates are computed.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, print once, and end.")
@output_option
@refuses
def top(*, addresses: tuple[str, ...], pause_s: float, once: bool, output: str) -> None:
    """Show rates of nodes and topics, the lag of groups and slow requests, until Ctrl-C.

    It reads the metrics listeners of nodes: `klamm up` has one on 127.0.0.1:9404, others where metrics.listeners says.
    """
    # Here, as in other commands: `klamm --help` must not import an HTTP client.
    from klamm.cli.top_nodes import WatchedNodes
    from klamm.cli.top_samples import FETCH_SECONDS_MAX

    watched = WatchedNodes(addresses)
    watched.fetch_all(FETCH_SECONDS_MAX)
    # Only at the start: wrong addresses must fail, not be waited for.
    if all(node.pair is None for node in watched.nodes):
        errors = ", ".join(f"{node.address}: {node.error}" for node in watched.nodes)
        raise CommandRefusal(f"no metrics at {errors}; write the address of a node's metrics.listeners with --metrics")
    # A node that does not answer must not hold back the next look at the others.
    timeout_s = FETCH_SECONDS_MAX if once else min(max(TIMEOUT_SHARE * pause_s, TIMEOUT_MIN_S), FETCH_SECONDS_MAX)
    try:
        next_s = time.monotonic() + pause_s
        while True:
            time.sleep(max(next_s - time.monotonic(), 0))
            next_s = time.monotonic() + pause_s
            watched.fetch_all(timeout_s)
            _print(watched.nodes, output, clear=sys.stdout.isatty() and not once)
            if once:
                return
    # Ctrl-C is how it ends, so it is a success.
    except KeyboardInterrupt:
        if once:
            raise


def _print(nodes: Sequence[WatchedNode], output: str, *, clear: bool) -> None:
    from klamm.cli.top_samples import group_rows, request_rows, topic_rows

    pairs = [node.pair for node in nodes if node.pair is not None and node.no_answer_since_ms is None]
    tables: dict[str, list[dict[str, Any]]] = {
        "nodes": [_node_row(node) for node in nodes],
        "topics": topic_rows(pairs),
        "groups": group_rows([after for _, after in pairs]),
        "requests": request_rows(pairs),
    }
    show_one(tables, output, partial(_print_tables, tables, clear=clear))
    sys.stdout.flush()


def _node_row(node: WatchedNode) -> dict[str, Any]:
    from klamm.cli.top_samples import node_rows, silent_node_row

    if node.pair is None or node.no_answer_since_ms is not None:
        assert node.no_answer_since_ms is not None, "a node has a scrape or a failure after the first fetch"
        return silent_node_row(node.address, node.pair[1] if node.pair else None, node.no_answer_since_ms)
    return node_rows([node.pair])[0]


def _print_tables(tables: Mapping[str, Sequence[dict[str, Any]]], *, clear: bool) -> None:
    from klamm.cli.top_screen import screen_lines

    width = height = None
    if sys.stdout.isatty():
        import shutil

        width, lines = shutil.get_terminal_size()
        # The cursor needs the last line; output that is not cleared may be longer than the terminal.
        height = lines - 1 if clear else None
    # In one piece: a screen that is cleared and filled line by line flickers.
    text = "\n".join(
        click.style(line.text, bold=line.is_title, fg="red" if line.is_alarm else None)
        if line.is_title or line.is_alarm
        else line.text
        for line in screen_lines(tables, width, height)
    )
    if clear:
        click.clear()
    click.echo(text)

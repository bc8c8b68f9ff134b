"""A broker's process for a test: serves, and does what it is told over a `Link`.

`ChildBroker` starts it as a program of its own; nodes of a cluster are forked, by `nursery`, into the same `live`.
"""

import json
import shutil
import signal
import socket
import sys
import threading
from typing import Final

from klamm.server.config import NodeConfig, embedded_properties, parse_config
from klamm.testing.node_thread import NodeThread
from klamm.testing.orders import Gone, Link, Parting, obey

ABANDONED_S: Final = 2.0
"""How long after a SIGTERM that nobody announced to see whether the test has ended as well."""


def main(descriptor: str, data: str, port: str, overrides: str, log_level: str, temporary: str) -> int:
    """Serve one broker by itself; a temporary folder goes when the test, which would remove it, ended before."""
    link = Link(socket.socket(fileno=int(descriptor)))
    try:
        pairs = [f"{key}={value}" for key, value in json.loads(overrides).items()]
        config = parse_config(embedded_properties(data, int(port)), pairs, source="the test's settings")
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        link.say(error=f"{type(error).__name__}: {error}")
        return 1
    parting = Parting()
    code = live(config, link, log_level, parting)
    if temporary and parting.known.wait(ABANDONED_S) and parting.gone:
        shutil.rmtree(data, ignore_errors=True)
    return code


def live(config: NodeConfig, link: Link, log_level: str, parting: Parting) -> int:
    """Serve until SIGTERM, or until whoever started this has gone; says its port once it serves. The exit code."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which then ends this
    life = NodeThread(config, log_level=log_level, on_end=ended.set)
    life.launch()
    announced = threading.Event()
    threading.Thread(target=_serve_orders, args=(life, link, announced, ended, parting), daemon=True).start()
    ended.wait()
    life.stop()
    announced.wait()
    return 1 if life.failure is not None else 0


def _serve_orders(
    life: NodeThread, link: Link, announced: threading.Event, ended: threading.Event, parting: Parting
) -> None:
    try:
        try:
            link.say(port=life.wait_ready(None))
        except Gone:
            raise
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            link.say(error=f"{type(error).__name__}: {error}")
        else:
            announced.set()
            obey(life, link, parting)
    except Gone:
        parting.without_a_word()
    announced.set()
    ended.set()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:7]))

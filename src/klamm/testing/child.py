"""The process behind `ChildBroker`: a node that takes orders for faults on standard input, one JSON line each."""

import contextlib
import json
import signal
import sys
import threading
from typing import Any

from klamm.testing.node_thread import NodeThread


def main(data: str, port: str, config: str, log_level: str) -> int:
    """Serve until SIGTERM, or until whoever started this has gone."""
    life = NodeThread(data, int(port), json.loads(config), log_level=log_level)
    try:
        taken = life.start()
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        _say(error=f"{type(error).__name__}: {error}")
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    _say(port=taken)
    threading.Thread(target=_obey, args=(life, ended), daemon=True).start()
    ended.wait()
    life.stop()
    return 0


def _obey(life: NodeThread, ended: threading.Event) -> None:
    for line in sys.stdin:
        try:
            _act(life, json.loads(line))
            _say(done=True)
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            _say(error=f"{type(error).__name__}: {error}")
    ended.set()  # the test has gone: a broker nobody can reach any more must not stay


def _act(life: NodeThread, order: dict[str, Any]) -> None:
    if order["do"] == "slow":
        life.slow(order["seconds"], order["api"])
    elif order["do"] == "refuse":
        life.refuse(order["error"], order["api"], order["times"])
    else:
        life.heal()


def _say(**words: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))

"""Scrapes the nodes that `klamm top` shows, all at a time, and records since when a node does not answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from klamm.cli.top_samples import Scrape, fetch


@dataclass(eq=False, slots=True)
class WatchedNode:
    """The last two scrapes of a node; the same twice after the first one."""

    address: str
    pair: tuple[Scrape, Scrape] | None = None
    no_answer_since_ms: int | None = None
    error: str = ""
    is_fetching: bool = False

    def record_scrape(self, scrape: Scrape) -> None:
        """Take a scrape for the newest."""
        self.pair = (scrape if self.pair is None else self.pair[1], scrape)
        self.no_answer_since_ms = None
        self.error = ""

    def record_failure(self, error: str, now_ms: int) -> None:
        """Record that the node does not answer, unless that is recorded."""
        self.error = error
        if self.no_answer_since_ms is None:
            self.no_answer_since_ms = now_ms


class WatchedNodes:
    """The nodes behind some addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        # An address that is written twice must not count its traffic twice.
        self.nodes = [WatchedNode(address) for address in dict.fromkeys(addresses)]
        self._results: queue.SimpleQueue[tuple[WatchedNode, Scrape | Exception]] = queue.SimpleQueue()

    def fetch_all(self, timeout_s: float) -> None:
        """Scrape all nodes; returns when all have answered or failed, at the latest after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        for node in self.nodes:
            # A scrape that missed the last deadline still runs; its result is as good as that of another.
            if not node.is_fetching:
                node.is_fetching = True
                # Daemons: the command ends without waiting for a node that does not answer.
                threading.Thread(target=self._fetch, args=(node,), name=f"fetch {node.address}", daemon=True).start()
        while any(node.is_fetching for node in self.nodes):
            try:
                node, result = self._results.get(timeout=max(deadline_s - time.monotonic(), 0))
            except queue.Empty:
                break
            node.is_fetching = False
            if isinstance(result, Scrape):
                node.record_scrape(result)
            else:
                node.record_failure(str(result), _now_ms())
        for node in self.nodes:
            if node.is_fetching:
                node.record_failure("timed out", _now_ms())

    def _fetch(self, node: WatchedNode) -> None:
        try:
            self._results.put((node, fetch(node.address, time.monotonic())))
        except Exception as error:  # noqa: BLE001 - without a result the node would be waited for forever
            self._results.put((node, error))


def _now_ms() -> int:
    return int(time.time() * 1000)

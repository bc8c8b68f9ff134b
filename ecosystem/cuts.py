"""Three nodes whose clients come through proxies: replies get lost and connections are reset, while the nodes
themselves talk to each other undisturbed."""

import random
from pathlib import Path
from typing import Self

from compat.brokers import free_port
from ecosystem.cluster import Cluster
from harness.proxy import CuttingProxy


class CutCluster(Cluster):
    """Each node has one more listener, `CUT`, whose advertised address is a proxy's."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, folder)
        self.proxies = [CuttingProxy(seed) for seed, _ in enumerate(self.nodes)]
        for node, proxy in zip(self.nodes, self.proxies, strict=True):
            proxy.target_port = free_port()
            node.overrides |= {
                "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CUT://127.0.0.1:{proxy.target_port},"
                f"CONTROLLER://127.0.0.1:{node.controller_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{node.port},CUT://127.0.0.1:{proxy.port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            }

    @property
    def cut_bootstrap(self) -> str:
        """The addresses of the proxies; `bootstrap` leads past them."""
        return ",".join(proxy.bootstrap for proxy in self.proxies)

    def lose_replies(self, chance: float) -> None:
        """From now on each reply to a Produce is lost, with its connection, with this chance."""
        for proxy in self.proxies:
            proxy.chance = chance

    def reset_connections(self, source: random.Random) -> int:
        """Reset all connections to one node or to all."""
        proxies = self.proxies if source.random() < 0.3 else [source.choice(self.proxies)]
        return sum(proxy.reset_connections() for proxy in proxies)

    def restore(self) -> None:
        self.lose_replies(0.0)
        super().restore()

    def __enter__(self) -> Self:
        self.start()
        return self

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        super().close()

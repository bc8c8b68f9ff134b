"""Brokers for tests: in this process or in a child process, as a cluster of three, with injected faults.

    with klamm.testing.broker() as b:           # a whole broker, listening on a free port of 127.0.0.1
        producer = Producer(bootstrap_servers=b.bootstrap)

    brokers, clusters   start and stop                  faults, fault_names    delays and errors; parsing of their names
    plugin              pytest fixtures (entry point)   fork_server            forks the nodes of a cluster

Works from pytest, unittest and notebooks with a running event loop: a broker in this process has a thread and a loop of
its own. Names are imported when they are first used, so that the pytest plugin costs nothing until then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.testing.brokers import Broker, ChildBroker, InProcessBroker, broker
    from klamm.testing.clusters import Cluster, ClusterNode, cluster
    from klamm.testing.names import unique

_HOMES = {
    "Broker": "brokers",
    "ChildBroker": "brokers",
    "Cluster": "clusters",
    "ClusterNode": "clusters",
    "InProcessBroker": "brokers",
    "broker": "brokers",
    "cluster": "clusters",
    "unique": "names",
}

__all__ = ["Broker", "ChildBroker", "Cluster", "ClusterNode", "InProcessBroker", "broker", "cluster", "unique"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

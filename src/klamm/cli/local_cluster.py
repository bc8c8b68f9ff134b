"""Where `klamm.server.local_cluster` was looked for before the test helpers needed it too."""

from klamm.server.local_cluster import LocalNode, free_ports, node_properties, plan_cluster, prepare_cluster

__all__ = ["LocalNode", "free_ports", "node_properties", "plan_cluster", "prepare_cluster"]

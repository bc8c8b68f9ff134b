"""A cluster on one machine: the ports, configurations and folders of its nodes.

`klamm up --nodes` and the test helpers use the same layout: one folder per node with its server.properties, its data
and its log, so that any node can also be started by hand with `klamm server`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from klamm.model.errors import ConfigError
from klamm.model.ids import Uuid, uuid_to_str
from klamm.model.properties import format_properties, parse_properties
from klamm.net.free_ports import free_ports
from klamm.server.boot.config import load_config
from klamm.server.boot.format import format_folders, random_uuid
from klamm.storage.disk import Disk
from klamm.storage.meta_properties import read_meta_properties

NODES_MAX = 9
PROPERTIES = "server.properties"
DATA = "data"
_NODE_FOLDER = re.compile(r"node-\d")


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node of the cluster: its id, its ports and its folder."""

    node_id: int
    host: str
    port: int
    controller_port: int
    folder: str

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self.host}:{self.port}"

    @property
    def properties(self) -> str:
        """The path of its server.properties."""
        return os.path.join(self.folder, PROPERTIES)

    @property
    def log(self) -> str:
        """The path of its log file."""
        return os.path.join(self.folder, "node.log")


def plan_cluster(folder: str, nodes: int, *, host: str = "127.0.0.1", port: int = 0) -> list[LocalNode]:
    """Choose the ports of each node: two consecutive ones per node from `port` on, or free ones when it is 0."""
    if not 1 <= nodes <= NODES_MAX:
        raise ConfigError(f"{nodes} nodes do not fit on one machine; write a number from 1 to {NODES_MAX}")
    ports = free_ports(host, 2 * nodes) if port == 0 else list(range(port, port + 2 * nodes))
    if ports[-1] > 65535:
        raise ConfigError(f"port {port} leaves too few ports for {nodes} nodes; write one below {65536 - 2 * nodes}")
    return [
        LocalNode(number, host, ports[2 * number - 2], ports[2 * number - 1], os.path.join(folder, f"node-{number}"))
        for number in range(1, nodes + 1)
    ]


def node_properties(node: LocalNode, nodes: Sequence[LocalNode], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the configs of one node; `overrides` take precedence."""
    # Kafka's defaults, 3 replicas and for transactions 2 in sync, cannot be met by fewer brokers.
    replication_factor = str(min(3, len(nodes)))
    min_isr = str(min(2, len(nodes)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(
            f"{voter.node_id}@{voter.host}:{voter.controller_port}" for voter in nodes
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{node.host}:{node.controller_port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": os.path.join(node.folder, DATA),
        "default.replication.factor": replication_factor,
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": replication_factor,
        "share.coordinator.state.topic.min.isr": min_isr,
        "group.initial.rebalance.delay.ms": "0",
        **overrides,
    }


def prepare_cluster(
    nodes: Sequence[LocalNode], overrides: Callable[[LocalNode], Mapping[str, str]] | None = None
) -> str:
    """Write every node's properties and format new folders; returns the cluster's id.

    Folders of a cluster of another size are refused before anything is written: with other static voters, committed
    records could be lost.
    """
    _refuse_other_size(os.path.dirname(nodes[0].folder), len(nodes))
    configs = []
    for node in nodes:
        os.makedirs(node.folder, exist_ok=True)
        with open(node.properties, "w", encoding="utf-8") as file:
            file.write(
                format_properties(node_properties(node, nodes, overrides(node) if overrides is not None else {}))
            )
        configs.append(load_config(node.properties))
    known = {meta.cluster_id for config in configs if (meta := read_meta_properties(Disk(), config.log_dirs[0]))}
    if len(known) > 1:
        raise ConfigError(f"the nodes' folders belong to different clusters: {', '.join(sorted(known))}")
    # A cluster that was formed earlier keeps its id; only its new folders are formatted.
    cluster_id = known.pop() if known else uuid_to_str(Uuid(random_uuid()))
    for config in configs:
        format_folders(config, cluster_id, ignore_formatted=True)
    return cluster_id


@dataclass(frozen=True, slots=True)
class Membership:
    """The node of a local cluster that a folder belongs to."""

    node_id: int
    size: int
    cluster_folder: str


def cluster_size(folder: str) -> int | None:
    """Return the number of nodes that the cluster in a folder was formed with; None when there is none."""
    sizes = [membership.size for path in _node_folders(folder) if (membership := read_membership(path))]
    return max(sizes, default=None)


def read_membership(folder: str) -> Membership | None:
    """Return the node that a folder, or its data folder, belongs to; None when it is not of a local cluster."""
    # The data folder is one level below the node's.
    for path in (os.path.abspath(folder), os.path.dirname(os.path.abspath(folder))):
        if not _NODE_FOLDER.fullmatch(os.path.basename(path)):
            continue
        try:
            with open(os.path.join(path, PROPERTIES), encoding="utf-8") as file:
                values = {entry.key: entry.value for entry in parse_properties(file.read())}
            voters = values["controller.quorum.voters"].split(",")
            return Membership(int(values["node.id"]), len(voters), os.path.dirname(path))
        except (OSError, ConfigError, KeyError, ValueError):
            continue
    return None


def _node_folders(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if _NODE_FOLDER.fullmatch(name)]


def node_data_folders(folder: str) -> list[str]:
    """Return the data folders of a local cluster or of one of its nodes; any other folder as it is."""
    nodes = [path for path in (_node_folders(folder) or [folder]) if read_membership(path) is not None]
    inside = [os.path.join(path, DATA) for path in nodes if os.path.isdir(os.path.join(path, DATA))]
    return inside or [folder]


def _refuse_other_size(folder: str, size: int) -> None:
    formed = cluster_size(folder)
    if formed is None:
        return
    start = f"`klamm up --nodes {formed} --data {folder}`"
    if formed != size:
        raise ConfigError(
            f"{folder} holds a cluster of {formed} nodes, not {size}; start it with {start},"
            " or choose another folder with --data"
        )
    left = [path for path in _node_folders(folder) if read_membership(path)]
    # Fewer than a majority may lack what was committed, and new members would outvote them.
    if len(left) <= formed // 2:
        raise ConfigError(
            f"{folder} has {len(left)} of the {formed} nodes of its cluster left; bring the others back,"
            " or choose another folder with --data"
        )

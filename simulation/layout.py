"""Which node of a simulated cluster is what, and the settings each of them starts with."""

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.model.replica_selectors import RACK_AWARE
from klamm.server.boot.config import NodeConfig, parse_config
from simulation.users import LISTENER, secured_settings

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
DATA = "/data"
BOTH, BROKER, CONTROLLER = "broker,controller", "broker", "controller"

LAYOUTS: dict[str, tuple[str, ...]] = {
    "one": (BOTH,),
    "combined": (BOTH, BOTH, BOTH),
    "extra": (BOTH, BOTH, BOTH, BROKER),
    "apart": (BROKER, BROKER, BROKER, CONTROLLER, CONTROLLER, CONTROLLER),
}
"""The roles of nodes 1, 2, ..."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a cluster and how its quorum is made."""

    roles: dict[int, str]
    dynamic: bool = False
    """Whether voters may change (kraft.version 1)."""
    racks: bool = False
    """Whether every broker has a rack of its own, and consumers are sent to the replica in theirs."""
    secured: bool = False
    """Whether nodes have an authorizer, and all listeners require logins."""
    tls: bool = False
    """Whether these listeners are encrypted."""

    @classmethod
    def by_name(
        cls, name: str, *, dynamic: bool = False, racks: bool = False, secured: bool = False, tls: bool = False
    ) -> "Layout":
        """A layout of `LAYOUTS`."""
        return cls(dict(enumerate(LAYOUTS[name], 1)), dynamic, racks, secured, tls)

    @property
    def brokers(self) -> list[int]:
        """Who keeps partitions."""
        return [node for node, roles in self.roles.items() if "broker" in roles]

    @property
    def controllers(self) -> list[int]:
        """Who votes at first."""
        return [node for node, roles in self.roles.items() if "controller" in roles]

    def config(self, node: int, host: str, overrides: Mapping[str, str]) -> NodeConfig:
        """The settings of one node; parsed once per process, they do not change."""
        roles = self.roles[node]
        kind = (str(sorted(self.roles.items())), self.dynamic, self.racks, self.secured, self.tls)
        key = (*kind, node, host, tuple(sorted(overrides.items())))
        if key not in _CONFIGS:
            text = "".join(f"{name}={value}\n" for name, value in self._settings(node, host, roles, overrides).items())
            _CONFIGS[key] = parse_config(text)
        return _CONFIGS[key]

    def _settings(self, node: int, host: str, roles: str, overrides: Mapping[str, str]) -> dict[str, str]:
        factor = str(min(len(self.brokers), 3))
        replicated = factor == "3"
        listeners = []
        broker_listener = LISTENER if self.secured else "PLAINTEXT"
        if "broker" in roles:
            listeners.append(f"{broker_listener}://{host}:{BROKER_PORT}")
        if "controller" in roles:
            listeners.append(f"CONTROLLER://{host}:{CONTROLLER_PORT}")
        settings = {
            "process.roles": roles,
            "node.id": str(node),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "log.dirs": DATA,
            "offsets.topic.replication.factor": factor,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "2" if replicated else "1",
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "min.insync.replicas": "2" if replicated else "1",
            "default.replication.factor": factor,
            "replica.lag.time.max.ms": "3000",
            "group.consumer.session.timeout.ms": "4000",
            "group.consumer.min.session.timeout.ms": "4000",
            "group.consumer.heartbeat.interval.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "unclean.leader.election.enable": "false",
            "log.message.timestamp.after.max.ms": str(2**63 - 1),
        }
        quorum = [(i, host_of(i)) for i in self.controllers]
        if self.dynamic:
            settings["controller.quorum.bootstrap.servers"] = ",".join(f"{h}:{CONTROLLER_PORT}" for _, h in quorum)
        else:
            settings["controller.quorum.voters"] = ",".join(f"{i}@{h}:{CONTROLLER_PORT}" for i, h in quorum)
        if "broker" in roles:
            settings["advertised.listeners"] = f"{broker_listener}://{host}:{BROKER_PORT}"
            settings["inter.broker.listener.name"] = broker_listener
        if self.secured:
            settings |= secured_settings(roles, tls=self.tls)
        if self.racks and "broker" in roles:
            settings["broker.rack"] = rack_of(node)
            settings["replica.selector.class"] = RACK_AWARE
        return {**settings, **overrides}


def host_of(node: int) -> str:
    """The address of a node's machine."""
    return f"10.0.0.{node}"


def rack_of(node: int) -> str:
    """The rack a broker stands in, where there are racks."""
    return f"rack-{node}"


_CONFIGS: dict[tuple[object, ...], NodeConfig] = {}

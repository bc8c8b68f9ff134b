"""The health of a node and of the cluster, as load balancers, kubelets and people ask for it.

/health           the process works: its loop answers and no failure stops it
/ready            clients can be sent here: the broker is unfenced, or the controller has a leader
/health/cluster   no partition is without a leader or below min.insync.replicas
/ready/cluster    the quorum has a leader, a broker is active and every partition has a leader
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.metadata.image import MetadataImage
from klamm.server.cluster.lifecycle import BrokerLifecycle, BrokerState

if TYPE_CHECKING:
    from klamm.server.services import Services


@dataclass(slots=True)
class Health:
    """A verdict with its reasons and the numbers behind it."""

    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def require(self, good: bool, problem: str) -> None:
        """Note a problem unless the condition holds."""
        if not good:
            self.problems.append(problem)


def node_health(services: "Services", lifecycle: BrokerLifecycle | None, failure: BaseException | None) -> Health:
    """Return whether the node works; called on the loop, so an answer shows that the loop runs."""
    health = Health(facts=_node_facts(services, lifecycle))
    health.require(failure is None, f"the node stops: {failure}")
    health.require(services.raft.running, "the metadata log has failed")
    for log_dir in services.logs.dirs:
        health.require(log_dir.failure is None, f"log directory {log_dir.path} failed: {log_dir.failure}")
    return health


def node_readiness(services: "Services", lifecycle: BrokerLifecycle | None, failure: BaseException | None) -> Health:
    """Return whether the node serves what it is there for."""
    health = Health(facts=_node_facts(services, lifecycle))
    health.require(failure is None, f"the node stops: {failure}")
    health.require(services.raft.leader[0] is not None, "the metadata quorum has no known leader")
    if lifecycle is not None:
        broker = services.image.cluster.get(services.node_id)
        health.require(lifecycle.state is BrokerState.RUNNING, f"the broker is {lifecycle.state.name.lower()}")
        health.require(broker is not None and not broker.fenced, "the controller has fenced this broker")
    return health


class ClusterView(NamedTuple):
    """What a node knows of its cluster at one moment. It does not change, so a thread can walk its partitions."""

    cluster_id: str
    image: MetadataImage
    leader: int | None
    leader_epoch: int


def view_cluster(services: "Services") -> ClusterView:
    """Return the view of this node; called on the loop, so an answer shows that the loop runs."""
    return ClusterView(services.cluster_id, services.image, *services.raft.leader)


def cluster_health(view: ClusterView) -> Health:
    """Return whether every partition has a leader and enough replicas; for a thread, as it takes milliseconds."""
    health = cluster_readiness(view)
    image = view.image
    under_replicated = under_min_isr = 0
    for topic, _, partition in image.topics.partitions():
        under_replicated += len(partition.isr) < len(partition.replicas)
        required = image.topic_values(topic.name).get("min.insync.replicas", 1)
        if isinstance(required, int) and len(partition.isr) < min(required, len(partition.replicas)):
            under_min_isr += 1
    fenced = [broker.id for broker in image.cluster.brokers.values() if broker.fenced]
    health.facts |= {
        "under_replicated_partitions": under_replicated,
        "under_min_isr_partitions": under_min_isr,
        "fenced_brokers": fenced,
    }
    health.require(not under_min_isr, f"partitions below min.insync.replicas: {under_min_isr}")
    health.require(not under_replicated, f"partitions with replicas that are not in sync: {under_replicated}")
    health.require(not fenced, f"brokers are fenced: {', '.join(map(str, fenced))}")
    return health


def cluster_readiness(view: ClusterView) -> Health:
    """Return whether the cluster can serve every partition; for a thread, as it takes milliseconds."""
    image, leader = view.image, view.leader
    partitions = offline = 0
    for _, _, partition in image.topics.partitions():
        partitions += 1
        offline += not partition.has_leader
    active = sum(broker.active for broker in image.cluster.brokers.values())
    health = Health(
        facts={
            "cluster_id": view.cluster_id,
            "controller": leader,
            "controller_epoch": view.leader_epoch,
            "brokers": len(image.cluster.brokers),
            "active_brokers": active,
            "topics": len(image.topics),
            "partitions": partitions,
            "offline_partitions": offline,
        }
    )
    health.require(leader is not None, "the metadata quorum has no known leader")
    health.require(active > 0, "no broker is active")
    health.require(not offline, f"partitions without a leader: {offline}")
    return health


def _node_facts(services: "Services", lifecycle: BrokerLifecycle | None) -> dict[str, Any]:
    return {
        "node_id": services.node_id,
        "cluster_id": services.cluster_id,
        "roles": sorted(services.config.roles),
        "broker_state": lifecycle.state.name.lower() if lifecycle is not None else None,
        "metadata_offset": services.image.provenance.offset,
    }

"""Who loads the cluster of a run."""

from typing import TYPE_CHECKING, Any

from simulation.classic import SimClassicMember
from simulation.consumers import SimConsumer
from simulation.copiers import Copier
from simulation.eager import EagerTransactionalProducer, PipelinedProducer
from simulation.guests import Guest
from simulation.keyed import KeyedProducer
from simulation.layout import rack_of
from simulation.members import SimConsumerMember
from simulation.producers import SimProducer
from simulation.rights import VAULT
from simulation.transactions import TransactionalProducer
from simulation.users import GUESTS

if TYPE_CHECKING:
    from simulation.run import Run

KEYS_TOPIC = "keys"
COPY_TOPIC = "copy"


def topics_of(run: "Run") -> list[tuple[str, int, int, dict[str, str]]]:
    """The topics of a run: name, partitions, replication factor, settings."""
    plan, factor = run.plan, run.factor
    safe = {"min.insync.replicas": "2" if factor == 3 else "1"}
    topics = [("t", plan.partitions, factor, safe)]
    if plan.copiers:
        topics.append((COPY_TOPIC, plan.partitions, factor, safe))
    if plan.keyed:
        topics.append((KEYS_TOPIC, 1, factor, {**safe, "cleanup.policy": "compact"}))
    if plan.secured:
        topics.append((VAULT, 1, factor, safe))
    return topics


def make_load(run: "Run") -> list[Any]:
    """The clients of a run."""
    plan, cluster, ledger = run.plan, run.cluster, run.ledger
    count, pace = plan.partitions, plan.pace
    brokers = cluster.layout.brokers
    clients: list[Any] = [
        SimProducer(cluster, ledger, f"producer-{i}", "t", count, pace) for i in range(plan.producers)
    ]
    clients += [
        SimConsumer(
            cluster,
            ledger,
            f"consumer-{i}",
            "t",
            count,
            committed_only=bool(i % 2),
            rack=rack_of(brokers[i % len(brokers)]) if plan.racks else "",
        )
        for i in range(plan.consumers)
    ]
    clients += [TransactionalProducer(cluster, ledger, i, "t", count, 3 * pace) for i in range(plan.transactional)]
    clients += [
        EagerTransactionalProducer(cluster, ledger, i, "t", count, 3 * pace, name="eager") for i in range(plan.eager)
    ]
    clients += [PipelinedProducer(cluster, ledger, f"pipelined-{i}", "t", count, pace) for i in range(plan.pipelined)]
    clients += [
        Copier(cluster, ledger, (plan.seed + i) % 2, "t", COPY_TOPIC, count, 3 * pace) for i in range(plan.copiers)
    ]
    clients += [SimConsumerMember(cluster, ledger, i, "t") for i in range(plan.members)]
    clients += [SimClassicMember(cluster, ledger, i, "t", count) for i in range(plan.classic)]
    clients += [KeyedProducer(cluster, ledger, run.keyed, i, KEYS_TOPIC, 1, pace) for i in range(plan.keyed)]
    if plan.secured:
        clients += [*(Guest(run, user) for user in GUESTS), run.rights_admin]
    return clients

"""A cluster that has converged: every replica leads or follows, replicas are equal, partitions are owned."""

from typing import TYPE_CHECKING

from simulation.groups import GroupMember

if TYPE_CHECKING:
    from simulation.run import Run


def not_serving(run: "Run") -> list[int]:
    """Nodes that should run and do not."""
    return [machine.id for machine in run.cluster.machines.values() if not machine.serving]


def refusing(run: "Run") -> list[str]:
    """Partitions that have not taken a record since everything healed."""
    if not run.plan.producers:
        return []
    return [f"t-{index}" for index in range(run.partitions) if ("t", index) not in run.ledger.accepted]


def find_unowned(run: "Run") -> list[str]:
    """What is wrong with the way groups have shared out their partitions."""
    unowned_groups = []
    members = [client for client in run.clients if isinstance(client, GroupMember)]
    for group in sorted({member.group for member in members}):
        owned = sorted(index for member in members if member.group == group for index in member.owned)
        if owned != list(range(run.partitions)):
            unowned_groups.append(f"{group}: {owned} of {run.partitions}")
    return unowned_groups


def find_unsettled(run: "Run") -> str:
    """What is not yet as it should be in a cluster at rest."""
    for machine in run.cluster.machines.values():
        if not machine.serving or machine.node is None:
            return f"node {machine.id} does not serve"
    ends: dict[tuple[bytes, int], set[tuple[int, int]]] = {}
    leaders: dict[tuple[bytes, int], int] = {}
    for machine in run.cluster.machines.values():
        assert machine.node is not None
        for replica in machine.node.services.replicas:
            key = (replica.topic_id, replica.index)
            ends.setdefault(key, set()).add((replica.log.log_end_offset, replica.log.high_watermark))
            if replica.leads:
                leaders[key] = machine.id
                if replica.log.last_stable_offset < replica.log.high_watermark:
                    return f"{replica.topic}-{replica.index} has an open transaction"
                if len(replica.state.isr) < len(replica.state.replicas):
                    return f"{replica.topic}-{replica.index} has only {replica.state.isr} in sync"
    for key, replica_ends in ends.items():
        if key not in leaders:
            return f"{key[1]} of {key[0].hex()} has no leader"
        if len(replica_ends) > 1 or any(end != mark for end, mark in replica_ends):
            return f"{key[1]} of {key[0].hex()} ends at {sorted(replica_ends)}"
    return ""


def partition_ends(run: "Run", topic: str) -> dict[int, int]:
    """Where the partitions of a topic end, as their leaders say."""
    return {
        replica.index: replica.log.log_end_offset
        for machine in run.cluster.machines.values()
        if machine.node is not None
        for replica in machine.node.services.replicas
        if replica.topic == topic and replica.leads
    }


def note_state(run: "Run") -> None:
    """Add to the story how things stand."""
    for machine in (*run.cluster.machines.values(), *run.cluster.twins):
        services = getattr(machine.node, "services", None)
        if services is None or not machine.running:
            run.note(f"{machine.name} does not run")
            continue
        core = services.raft.core
        provenance = services.metadata.image.provenance
        run.note(
            f"{machine.name}: quorum epoch {core.epoch}, {'leads, ' if core.is_leader else ''}"
            f"high watermark {core.high_watermark}, metadata up to {provenance.offset}"
        )
        for replica in services.replicas:
            state, log = replica.state, replica.log
            followers = {k: (v.log_end_offset, v.broker_epoch, v.last_fetch_ms) for k, v in state.followers.items()}
            run.note(
                f"    {replica.topic}-{replica.index}: leader {state.leader} epoch {state.leader_epoch}, in sync"
                f" {state.isr} epoch {state.partition_epoch} proposed {state.proposed}, {log.log_start_offset} to"
                f" {log.log_end_offset}, high watermark {state.high_watermark}, followers {followers}"
            )

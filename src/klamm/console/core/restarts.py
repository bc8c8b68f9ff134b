"""Whether a broker may restart without taking partitions or the quorum down."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from klamm.client.admin.cluster_types import QuorumDescription
from klamm.console.core.samples import ClusterSample
from klamm.model.units import pluralize

VOTER_LAG_MAX = 100
"""Records of the metadata log that a voter may be behind and count as caught up."""


@dataclass(frozen=True, slots=True)
class RestartCheck:
    """`safe`, and if not, what would stop working."""

    safe: bool
    reasons: tuple[str, ...]
    unknown_topics: int = 0
    """Topics whose min.insync.replicas is not known: they count with 1."""


@dataclass(slots=True)
class _PartitionsAtRisk:
    """What partitions need of one broker."""

    alone: list[str] = field(default_factory=list)
    """Those without another replica in sync."""
    short: list[str] = field(default_factory=list)
    """Those that would have fewer replicas in sync than min.insync.replicas."""
    unknown_topics: int = 0


def check_restart(
    sample: ClusterSample,
    broker: int,
    quorum: QuorumDescription | None,
    minimums: Mapping[str, int] | None = None,
    choose_named: Callable[[Iterable[str]], Iterable[str]] = set,
) -> RestartCheck:
    """Return whether all else stays available while one broker restarts."""
    return check_restarts(sample, quorum, minimums, choose_named)[broker]


def check_restarts(
    sample: ClusterSample,
    quorum: QuorumDescription | None,
    minimums: Mapping[str, int] | None = None,
    choose_named: Callable[[Iterable[str]], Iterable[str]] = set,
) -> dict[int, RestartCheck]:
    """Return for each broker whether all else stays available while it restarts, one at a time.

    `minimums` has min.insync.replicas by topic. `choose_named` returns the topics that reasons may name.
    """
    named = set(choose_named(sample.topics))
    risks = _list_risks(sample, minimums or {})
    checks = {}
    for broker in {broker.id for broker in sample.brokers} | risks.keys():
        risk = risks.get(broker, _PartitionsAtRisk())
        reasons = []
        if risk.alone:
            verb = "has" if len(risk.alone) == 1 else "have"
            reasons.append(
                f"{pluralize(len(risk.alone), 'partition')} {verb} no other replica in sync"
                f"{_name_one(risk.alone, named)}: no reads and writes while it restarts"
            )
        if risk.short:
            verb = "needs" if len(risk.short) == 1 else "need"
            reasons.append(
                f"{pluralize(len(risk.short), 'partition')} {verb} it for min.insync.replicas"
                f"{_name_one(risk.short, named)}: producers with acks=all cannot write while it restarts"
            )
        reasons += _check_quorum(broker, quorum)
        checks[broker] = RestartCheck(not reasons, tuple(reasons), risk.unknown_topics)
    return checks


def _name_one(places: Iterable[str], named: Container[str]) -> str:
    place = next((place for place in places if place.rpartition("-")[0] in named), None)
    return "" if place is None else f", such as {place}"


def _list_risks(sample: ClusterSample, minimums: Mapping[str, int]) -> dict[int, _PartitionsAtRisk]:
    # One pass for all brokers: there may be 100,000 partitions.
    risks: dict[int, _PartitionsAtRisk] = {}
    for topic in sample.topics.values():
        minimum = minimums.get(topic.name)
        if minimum is None:
            for broker in set().union(*topic.in_sync_replicas()):
                risks.setdefault(broker, _PartitionsAtRisk()).unknown_topics += 1
        for index, _, _, isr in topic.layouts():
            if len(isr) == 1:
                risks.setdefault(isr[0], _PartitionsAtRisk()).alone.append(f"{topic.name}-{index}")
            # Those that have too few replicas in sync already lose no writes by the restart.
            elif len(isr) == minimum:
                for broker in isr:
                    risks.setdefault(broker, _PartitionsAtRisk()).short.append(f"{topic.name}-{index}")
    return risks


def _check_quorum(broker: int, quorum: QuorumDescription | None) -> list[str]:
    voters = {} if quorum is None else {voter.replica_id: voter for voter in quorum.voters}
    if quorum is None or broker not in voters:
        return []
    if len(voters) == 1:
        return ["it is the only controller: no changes while it restarts"]
    current = sum(
        1
        for voter in voters.values()
        if voter.replica_id != broker
        and (voter.replica_id == quorum.leader_id or quorum.high_watermark - voter.log_end_offset <= VOTER_LAG_MAX)
    )
    needed = len(voters) // 2 + 1
    return [] if current >= needed else [f"the quorum needs {needed} voters, and {current} others have caught up"]

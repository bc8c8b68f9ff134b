"""From a failing seed to a story a person can read: faults and load are dropped as long as the run still fails."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from simulation.plan import RunPlan
from simulation.run import RunResult, run_seed

TRIES_MAX = 150
LEAST = {
    "copiers": 0,
    "keyed": 0,
    "classic": 0,
    "members": 0,
    "transactional": 0,
    "eager": 0,
    "pipelined": 0,
    "consumers": 0,
    "producers": 1,
    "partitions": 1,
}
"""What load can be left out, down to how much of it."""


def run_plan(plan: RunPlan) -> RunResult:
    """Run a plan with its own seed."""
    return run_seed(plan.seed, plan=plan)


def shrink(outcome: RunResult, run: Callable[[RunPlan], RunResult] = run_plan) -> RunResult:
    """A run with less in it that breaks the same invariant."""
    assert outcome.violation is not None
    wanted = kind_of(outcome.violation)
    best = outcome
    tries = 0
    again = True
    while again:
        again = False
        for plan in _smaller(best.plan):
            tries += 1
            if tries > TRIES_MAX:
                return best
            tried = run(plan)
            if tried.violation is not None and kind_of(tried.violation) == wanted:
                best = tried
                again = True
                break
    return best


def kind_of(violation: str) -> str:
    """The number of the invariant."""
    return violation.split(":", 1)[0]


def _smaller(plan: RunPlan) -> Iterator[RunPlan]:
    faults = plan.faults
    if len(faults) > 2:
        half = len(faults) // 2
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for i in range(len(faults)):
        yield replace(plan, faults=faults[:i] + faults[i + 1 :])
    if plan.tls:
        yield replace(plan, tls=False)
    if plan.secured:
        yield replace(plan, secured=False, tls=False)
    for name, least in LEAST.items():
        if getattr(plan, name) > least:
            yield _with(plan, name, least)
            if getattr(plan, name) - 1 > least:
                yield _with(plan, name, getattr(plan, name) - 1)
    if plan.seconds > 2:
        last = max((fault.at + fault.lasts for fault in faults), default=0.0)
        for seconds in (plan.seconds / 2, last + 1):
            if seconds < plan.seconds - 0.5:
                yield replace(plan, seconds=seconds)


def _with(plan: RunPlan, name: str, count: int) -> RunPlan:
    changed: dict[str, Any] = {name: count}
    return replace(plan, **changed)


def format_story(outcome: RunResult, *, lines: int = 400) -> str:
    """The story of a run in words."""
    plan = outcome.plan
    made = [
        f"{plan.layout} nodes {', '.join(f'{node} ({roles})' for node, roles in plan.nodes.roles.items())}",
        *(["voters may change"] if plan.dynamic else []),
        *(["a rack for every broker"] if plan.racks else []),
        *(["compaction never rests"] if plan.hot else []),
        *(["logins are required, and rights change"] if plan.secured else []),
        *(["connections are encrypted"] if plan.tls else []),
    ]
    load = [
        *([f"situation: {plan.situation}"] if plan.situation else []),
        "; ".join(made),
        f"a topic of {plan.partitions} partitions" + (", synced before it is acknowledged" if plan.flush else ""),
        f"producers {plan.producers}, consumers {plan.consumers}, transactional producers {plan.transactional}",
        f"eager transactional producers {plan.eager}, producers with requests in flight {plan.pipelined}",
        f"copiers {plan.copiers}, keyed producers {plan.keyed}",
        f"members of a group {plan.members}, of a classic group {plan.classic}",
    ]
    faults = [f"    {fault}" for fault in plan.faults] or ["    nothing"]
    story = outcome.story
    if len(story) > lines:
        story = [*story[: lines // 4], f"... {len(story) - lines} lines ...", *story[-lines * 3 // 4 :]]
    end = outcome.violation or "nothing is wrong"
    return "\n".join(
        [
            f"seed {plan.seed}",
            *load,
            "what goes wrong:",
            *faults,
            "what happened:",
            *story,
            "",
            f"seed {plan.seed}: {end}",
        ]
    )

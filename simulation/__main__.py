"""Runs seeds from the command line: `python -m simulation --seeds 1000`, or one of them with its story."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from simulation.bugs import BUGS, hunt
from simulation.plan import draw_plan
from simulation.run import RunResult, run_seed
from simulation.shrink import format_story, shrink


def _run(seed: int) -> RunResult:
    outcome = run_seed(seed)
    outcome.story = []
    return outcome


def _outcomes(seeds: range, jobs: int) -> Iterator[RunResult]:
    if jobs <= 1:
        yield from map(_run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(_run, seeds, chunksize=4)


def _print_run(seed: int, *, whole: bool) -> int:
    outcome = run_seed(seed)
    if outcome.violation is None:
        print(format_story(run_seed(seed, verbose=True)))
        return 0
    if not whole:
        print(f"seed {seed} fails: {outcome.violation}\nlooking for a shorter story ...", flush=True)
        outcome = shrink(outcome)
    print(format_story(run_seed(seed, plan=outcome.plan, verbose=True)))
    return 1


def _run_many(first: int, count: int, jobs: int) -> int:
    began = time.monotonic()
    events = acks = done = 0
    failed: list[RunResult] = []
    for outcome in _outcomes(range(first, first + count), jobs):
        done += 1
        events += outcome.events
        acks += outcome.acks
        if outcome.violation is not None:
            failed.append(outcome)
            print(f"seed {outcome.plan.seed}: {outcome.violation.splitlines()[0]}", flush=True)
        elif done % 500 == 0:
            print(f"{done} seeds, {len(failed)} failed", flush=True)
    print(
        f"{done} seeds, {events} events, {acks} acknowledged records, {len(failed)} failed,"
        f" {time.monotonic() - began:.0f} s"
    )
    if failed:
        print(f"the story of one: make sim SEED={min(outcome.plan.seed for outcome in failed)}")
    return 1 if failed else 0


def _run_bugs(names: list[str], seeds: int, jobs: int) -> int:
    missed = 0
    for name in names or sorted(BUGS):
        caught = hunt(name, range(seeds), jobs)
        if caught is None:
            missed += 1
        print(
            f"{name}: " + (f"not caught within {seeds} seeds" if caught is None else f"seed {caught[0]}: {caught[1]}")
        )
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; the exit code is 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, make it shorter if it fails, and tell its story")
    parser.add_argument("--whole", action="store_true", help="tell the story of the seed as it is")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--plan", action="store_true", help="only show what the seed would do")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="plant bugs (all of them) and see them caught")
    chosen = parser.parse_args(arguments)
    if chosen.bugs is not None:
        return _run_bugs(chosen.bugs, min(chosen.seeds, 2000), chosen.jobs)
    if chosen.seed is None:
        return _run_many(chosen.first, chosen.seeds, chosen.jobs)
    if chosen.plan:
        print(draw_plan(chosen.seed))
        return 0
    return _print_run(chosen.seed, whole=chosen.whole)


if __name__ == "__main__":
    sys.exit(main())

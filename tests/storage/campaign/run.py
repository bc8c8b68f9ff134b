"""One seed: a workload, its cuts, and what reopening finds."""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator

from .crash import FileSystem, boundaries
from .quorum import QuorumLife, quorum_findings
from .trace import Op
from .verify import Expectation, findings
from .workload import Workload

STEPS = 120
QUORUM_STEPS = 100
WAYS = ("kill", "torn", "power", "journal")
"""killed · killed inside a write · power lost, names in any order · power lost, names in order"""


def campaign(
    seed: int, cuts: int, folder: str, *, steps: int = STEPS, stop_after: int = 1, moving: int = 1
) -> tuple[int, list[str]]:
    """Run a workload and crash it `cuts` times; how many crashes were looked at, and what is wrong with them."""
    home = os.path.join(folder, f"seed-{seed}")
    os.makedirs(home)
    workload = Workload(seed, home, moving=moving)
    workload.run(steps)
    workload.later.shutdown(wait=False)
    workload.manager.close(clean=False)
    problems: list[str] = []
    done = 0
    for name, crash_problems in crashes(workload, seed, cuts, folder, findings):
        done += 1
        problems += [f"seed {seed}, {name}: {what}" for what in crash_problems]
        if len(problems) >= stop_after:
            break
    shutil.rmtree(home)
    return done, problems


def crashes(
    workload: Workload | QuorumLife,
    seed: int,
    cuts: int,
    folder: str,
    look: Callable[[str, Expectation, random.Random], list[str]],
) -> Iterator[tuple[str, list[str]]]:
    """Cut the trace of a workload again and again: where, and what a `look` at the folder finds wrong."""
    chance = random.Random(f"cuts of {seed}")
    ops = workload.disk.ops
    places = [cut for cut in boundaries(ops) if cut > workload.steps[0][0]]
    chosen = (
        sorted(chance.choices(places, k=cuts)) if cuts < 4 * len(places) else sorted(places * (cuts // len(places)))
    )
    system = FileSystem()
    applied = workload.steps[0][0]
    for op in ops[:applied]:
        system.apply(op)
    system.root.sync()  # the data folder itself is the operator's
    for number, cut in enumerate(chosen):
        way = chance.choice(WAYS)
        torn = _write_after(ops, cut) if way == "torn" else None
        reached = max(cut if torn is None else torn, applied)
        for op in ops[applied:reached]:
            system.apply(op)
        applied = reached
        scratch = tempfile.mkdtemp(prefix="crash-", dir=folder)
        if torn is not None:
            system.killed(scratch, ops[applied], chance.randint(0, len(ops[applied].data)))
        elif way in ("kill", "torn"):
            system.killed(scratch)
        else:
            system.powered_off(scratch, chance, ordered=way == "journal")
        i = max(i for i, (end, _, _) in enumerate(workload.steps) if end <= applied)
        end, step, before = workload.steps[i]
        after = before
        if (end < applied or torn is not None) and i + 1 < len(workload.steps):
            _, step, after = workload.steps[i + 1]
        expected = Expectation(before, after, power=way in ("power", "journal"), ordered=way == "journal")
        where = f"{way} #{number} after op {applied} ({step}, {ops[applied - 1].kind})"
        yield where, look(scratch, expected, chance)
        shutil.rmtree(scratch)


def quorum_campaign(seed: int, cuts: int, folder: str) -> tuple[int, list[str]]:
    """The same for the folder of the metadata quorum."""
    home = os.path.join(folder, f"quorum-{seed}")
    os.makedirs(home)
    life = QuorumLife(seed, home)
    life.run(QUORUM_STEPS)
    life.storage.log.close()
    problems: list[str] = []
    done = 0
    for name, crash_problems in crashes(life, seed, cuts, folder, quorum_findings):
        done += 1
        problems += [f"seed {seed}, {name}: {what}" for what in crash_problems]
        if problems:
            break
    shutil.rmtree(home)
    return done, problems


def _write_after(ops: list[Op], cut: int) -> int | None:
    """The write that comes next, if nothing else comes before it."""
    while cut < len(ops) and ops[cut].kind == "open":
        cut += 1
    return cut if cut < len(ops) and ops[cut].kind == "write" else None

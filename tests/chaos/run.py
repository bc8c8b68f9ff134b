"""One run: a cluster, clients, faults, healing, and the judgement.

PYTHONPATH=tests python -m chaos.run --minutes 60 --report docs/chaos-report.md
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom

from chaos.checker import Finding
from chaos.faults import FAULTY_KLAMM, Faults
from chaos.history import Fate, History
from chaos.load import Load
from chaos.rights import GUEST, INTRUDER, LOAD_USER
from chaos.workers import clock_time
from harness import KlammCluster, Links
from harness.secured import ClusterSecurity

SETTINGS = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "4000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "log.segment.bytes": "1048576",
    "unclean.leader.election.enable": "false",
}


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    seconds: float
    history: History
    faults: dict[str, int]
    findings: list[Finding]
    secured: bool = False
    """Whether the run had TLS, SCRAM and ACLs."""

    def __str__(self) -> str:
        acknowledged = sum(send.fate is Fate.OK for send in self.history.sends)
        transactions = self.history.transactions
        committed = sum(transaction.fate is Fate.OK and transaction.commits for transaction in transactions)
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s of faults, "
            + ("TLS, SCRAM and ACLs" if self.secured else "no security"),
            f"records sent {len(self.history.sends)}, acknowledged {acknowledged}",
            f"transactions {len(transactions)}, committed {committed}",
            f"records read {sum(len(poll.rows) for poll in self.history.polls)}",
            f"transactional producers replaced meanwhile {len(self.history.hung)}",
            "faults " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items())),
        ]
        return "\n".join(lines + ([str(finding) for finding in self.findings] or ["no violation"]))


def is_secured(seed: int) -> bool:
    """Whether a seed has TLS, SCRAM and ACLs: every second one."""
    return Random(f"{seed}/secured").random() < 0.5


def run(
    folder: Path,
    seconds: float,
    seed: int,
    print_line: Callable[[str], None] = print,
    kinds: list[str] | None = None,
    *,
    secured: bool | None = None,
) -> Outcome:
    """A run of `seconds` of faults; raises when the cluster does not recover; findings are in the outcome.

    `secured` None lets the seed decide.
    """
    random = Random(seed)
    secured = is_secured(seed) if secured is None else secured
    security = ClusterSecurity(folder / "certs", (LOAD_USER, INTRUDER, GUEST)) if secured else None
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with (
        Links() as links,
        KlammCluster(folder, overrides=SETTINGS, links=links, main=FAULTY_KLAMM, security=security) as cluster,
        Load(cluster.bootstrap, random.getrandbits(32), large_records=True, security=security) as load,
    ):
        faults = Faults(cluster, links, random, print_line)
        load.wait_for_progress()
        faults.run(seconds, kinds)
        faults.heal()
        print_line("healed; waiting for every replica to be in sync")
        findings = load.judge()
        cluster.stop()
    return Outcome(seed, seconds, load.history, faults.counts, findings, secured)


def main() -> int:
    """Run from the command line; 1 when something was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--report", type=Path, help="a Markdown file that gets the outcome")
    parser.add_argument("--keep", type=Path, help="a folder for the nodes' data and logs, and the history; kept")
    parser.add_argument("--only", help="kinds of faults, separated by commas")
    parser.add_argument(
        "--secured",
        action=argparse.BooleanOptionalAction,
        help="TLS, SCRAM and ACLs; without it the seed decides",
    )
    options = parser.parse_args()
    is_forced = options.secured is not None
    folder = options.keep or Path(tempfile.mkdtemp(prefix="klamm-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, nodes in {folder}")
    kinds = options.only.split(",") if options.only else None
    outcome = run(
        folder, 60 * options.minutes, options.seed, print_line=_print_line, kinds=kinds, secured=options.secured
    )
    for line in outcome.history.hung:
        print(f"replaced: {line}")
    print(outcome)
    if options.report:
        before = options.report.read_text(encoding="utf-8") if options.report.exists() else ""
        options.report.write_text(add_report(before, outcome, is_forced=is_forced), encoding="utf-8")
    if outcome.findings or outcome.history.hung or options.keep:
        outcome.history.save(folder / "history.json")
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if outcome.findings else 0


def _print_line(line: str) -> None:
    print(f"{clock_time(time.time())} {line}", flush=True)


_SECURED_HEADING = "\n## Last run with security forced on\n"


def add_report(before: str, outcome: Outcome, *, is_forced: bool) -> str:
    """The page about the last long run and the last secured one, with one of the two replaced."""
    usual, _, secured = before.partition(_SECURED_HEADING)
    if outcome.secured and is_forced:
        secured = _format_run(outcome, "make chaos SECURED=1")
    else:
        usual = "# Last long chaos run\n" + _format_run(outcome, "make chaos")
    return usual + (_SECURED_HEADING + secured if secured else "")


def _format_run(outcome: Outcome, command: str) -> str:
    verdict = "Violations were found." if outcome.findings else "No violation was found."
    lines = "\n".join(f"- {line}" for line in str(outcome).splitlines())
    return f"""
{verdict} Faults, clients and findings: [guides/chaos.md](guides/chaos.md).

{lines}

The same faults in the same order, on the same nodes:

```console
$ {command} SEED={outcome.seed} MINUTES={outcome.seconds / 60:g}
```
"""


if __name__ == "__main__":
    sys.exit(main())

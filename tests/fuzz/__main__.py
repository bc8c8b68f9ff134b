"""A long campaign by hand: `make fuzz MINUTES=30 SEED=7`."""

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from fuzz.campaign import Campaign, Violation
from harness import KlammProcess


def main() -> int:
    """Run one campaign; 1 when the node broke a promise."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    sys.stdout.write(f"fuzz: seed {seed}, {options.minutes:g} minutes\n")
    with (
        tempfile.TemporaryDirectory(prefix="klamm-fuzz-") as folder,
        KlammProcess(Path(folder)) as node,
    ):
        try:
            outcome = Campaign(node, seed).run(options.minutes * 60)
        except Violation as violation:
            sys.stdout.write(f"fuzz: {violation}\n")
            return 1
        node.stop()
    sys.stdout.write(f"fuzz: no violation; {outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

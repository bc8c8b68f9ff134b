"""A long campaign by hand: `make fuzz MINUTES=30 SEED=7`."""

import argparse
import faulthandler
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from fuzz.campaign import Campaign, ControllerCampaign, NodeWithController, Violation
from fuzz.logins import LoginCampaign, SecuredProcess
from fuzz.rights import RightsCampaign, RightsProcess
from fuzz.target import BrokenPromise
from fuzz.texts import run_texts
from harness import KlammProcess

HUNG_S = 120.0
TEXTS, LOGINS, CONTROLLER, RIGHTS = 0.15, 0.2, 0.15, 0.25
"""The shares of the time that inputs without a node, peers that are not logged in, the controller listener and a client
with hardly any rights get; requests to brokers get the rest."""


def main() -> int:
    """Run one campaign; 1 when the node broke a promise."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    sys.stdout.write(f"fuzz: seed {seed}, {options.minutes:g} minutes\n")
    seconds = options.minutes * 60
    try:
        # An input that is never read to its end shows where, and ends the run.
        faulthandler.dump_traceback_later(seconds * TEXTS + HUNG_S, exit=True)
        counts = run_texts(seed, seconds * TEXTS)
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.write("fuzz: " + ", ".join(f"{name} {count}" for name, count in counts.items()) + "\n")
        for make_node, make_campaign, share in (
            (SecuredProcess, LoginCampaign, LOGINS),
            (NodeWithController, ControllerCampaign, CONTROLLER),
            (RightsProcess, RightsCampaign, RIGHTS),
            (KlammProcess, Campaign, 1 - TEXTS - LOGINS - CONTROLLER - RIGHTS),
        ):
            with tempfile.TemporaryDirectory(prefix="klamm-fuzz-") as folder, make_node(Path(folder)) as node:
                outcome = make_campaign(node, seed).run(seconds * share)
                node.stop()
            sys.stdout.write(f"fuzz: no violation; {outcome}\n")
    except (Violation, BrokenPromise) as violation:
        sys.stdout.write(f"fuzz: {violation}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Half a minute of hostile requests of every API and version: a node answers or closes that one connection.

The seed is printed; KLAMM_SEED replays it, KLAMM_FUZZ_SECONDS makes it longer, and `make fuzz` runs it by hand.
"""

import os
import random

import pytest

from fuzz.campaign import Campaign
from harness import KlammProcess

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SECONDS = float(os.environ.get("KLAMM_FUZZ_SECONDS", "30"))


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_of_every_api(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with KlammProcess(tmp_path) as node:
        outcome = Campaign(node, SEED).run(SECONDS)
        print(outcome)
        assert outcome.frames > 0
        node.stop()

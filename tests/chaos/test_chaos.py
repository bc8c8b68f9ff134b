"""Half a minute of faults on three real processes; librdkafka clients must see nothing that may never happen."""

import os
import random

import pytest

from chaos.run import run

SECONDS = float(os.environ.get("KLAMM_CHAOS_SECONDS", "30"))


@pytest.mark.xdist_group("chaos")
@pytest.mark.timeout(600)
def test_half_a_minute_of_chaos(tmp_path):
    seed = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
    print(f"KLAMM_SEED={seed}")
    outcome = run(tmp_path, SECONDS, seed)
    print(outcome)
    outcome.history.save(tmp_path / "history.json")
    assert not outcome.findings

"""A quarter of a minute of hostile requests of every API and version: a node answers or closes that one connection.

The seed is printed; KLAMM_SEED replays it, KLAMM_FUZZ_SECONDS makes it longer, and `make fuzz` runs it by hand.
"""

import os
import random

import pytest

from fuzz import campaign
from fuzz.campaign import Campaign, Violation
from harness import KlammProcess, Wire

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SECONDS = float(os.environ.get("KLAMM_FUZZ_SECONDS", "15"))


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_of_every_api(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with KlammProcess(tmp_path) as node:
        outcome = Campaign(node, SEED).run(SECONDS)
        print(outcome)
        assert outcome.frames > 0
        node.stop()


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ("MEMORY_BYTES_MAX", "memory has grown"),
        ("DESCRIPTORS_MAX", "more descriptors"),
        ("SOCKETS_MAX", "more sockets"),
    ],
)
@pytest.mark.timeout(300)
def test_what_a_node_takes_of_the_machine_is_judged(tmp_path, monkeypatch, limit, complaint):
    """A campaign that never complains proves nothing: with a limit below what is taken it must."""
    print(f"KLAMM_SEED={SEED}")
    monkeypatch.setattr(campaign, limit, -(1 << 40))
    with KlammProcess(tmp_path) as node:
        with pytest.raises(Violation, match=complaint):
            Campaign(node, SEED).run(0.1)
        node.stop()


@pytest.mark.timeout(300)
def test_connections_that_stay_open_are_seen(tmp_path):
    print(f"KLAMM_SEED={SEED}")

    class Leaking(Campaign):
        """Keeps every connection of its own open beside the hostile ones."""

        def _throw(self, kind, frames):
            kept.append(Wire(node.port))
            super()._throw(kind, frames)

    kept = []
    with KlammProcess(tmp_path) as node:
        with pytest.raises(Violation, match="more sockets are open"):
            Leaking(node, SEED).run(120)
        node.stop()
    for wire in kept:
        wire.close()

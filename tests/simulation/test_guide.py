"""The guide names every fault; its example is run by tests/docs/test_guides.py."""

from pathlib import Path

from simulation.faults import KINDS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "simulation.md"


def test_every_fault_is_named():
    text = GUIDE.read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []

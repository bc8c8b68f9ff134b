"""The guide's example runs as it stands."""

import re
from pathlib import Path

import pytest

from klamm.testing.sim.faults import KINDS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "simulation.md"


@pytest.mark.timeout(120)
def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(compile(example, "simulation.md", "exec"), {})


def test_every_fault_is_named():
    text = GUIDE.read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []

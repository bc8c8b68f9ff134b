"""The programs in the client's guides run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import KlammProcess

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
EXPECTED = {
    "python-client": [
        "0\n",
        "opened\n",
        "did you mean linger.ms?\n",
        "",
        "passed over 1 b'no JSON'\n[4.2, 1.8]\n",
        "1\n",
    ],
    "columns": ["[b'1.80', b'4.20', b'7.00']\n", "3 ", "double [1.8, 4.2]\n"],
}


@pytest.mark.parametrize("guide", EXPECTED)
def test_the_programs_of_a_guide(tmp_path, guide):
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)
    assert len(blocks) == len(EXPECTED[guide])
    with KlammProcess(tmp_path, overrides={"num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}) as node:
        for block, words in zip(blocks, EXPECTED[guide], strict=True):
            run = subprocess.run(
                [sys.executable, "-W", "error", "-c", block.replace("127.0.0.1:9092", node.bootstrap)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert run.returncode == 0, run.stderr
            assert words in run.stdout

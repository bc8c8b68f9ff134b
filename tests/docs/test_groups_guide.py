"""The guide to groups shows what happens: its program is run."""

import re
import subprocess
import sys
from pathlib import Path

from harness import KlammProcess

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "groups.md"


def test_two_groups_each_get_the_payment(tmp_path):
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert code is not None
    with KlammProcess(tmp_path) as node:
        run = subprocess.run(
            [sys.executable, "-c", code[1].replace("127.0.0.1:9092", node.bootstrap)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["ledger ten", "fraud ten"]

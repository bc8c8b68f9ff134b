"""What the examples show is what happens: they are run, not trusted."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_restaurant_keeps_its_orders(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "restaurant.py")],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Klamm is ready on 127.0.0.1:" in run.stdout
    assert "Every order arrived, in order by key." in run.stdout

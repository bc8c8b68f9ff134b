"""The example bills every order once, although it is killed in the middle of its work."""

import subprocess
import sys
from pathlib import Path

from harness import KlammProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once.py"


def run(klamm: KlammProcess, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *words, klamm.bootstrap],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_order_is_billed_once(tmp_path):
    with KlammProcess(tmp_path) as klamm:
        run(klamm, "fill")
        victim = subprocess.Popen(
            [sys.executable, str(EXAMPLE), "bill", "till-1", klamm.bootstrap], stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        for _ in range(3):
            assert "billed" in victim.stdout.readline()
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert "billed" in run(klamm, "bill", "till-1")
        assert run(klamm, "show") == "300 bills, 300 orders, 1800 euro\n"

"""What README and examples show is what happens: they are run, not trusted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import KlammProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    with KlammProcess(tmp_path_factory.mktemp("examples")) as started:
        yield started


def test_the_first_producer_and_consumer_of_the_readme(node: KlammProcess):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    run = subprocess.run(
        [sys.executable, "-c", code[1].replace("127.0.0.1:9092", node.bootstrap)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "b'two espressi'"


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

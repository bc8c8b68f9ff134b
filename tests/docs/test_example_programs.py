"""The shop, the bank, the web service and the notebook of examples/ do what they say."""

import ast
import asyncio
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words: str, timeout_s: float = 100) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=EXAMPLES.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop.py", "48 events of 12 users, each user's in order"),
        ("bank.py", "8 transfers of 12 committed, 19 bookings audited"),
        ("tables.py", "in all accounts: 476.00"),
    ],
)
def test_a_story_with_a_broker_of_its_own(name, says):
    assert says in run(str(EXAMPLES / name))


@pytest.mark.parametrize("name", ["shop.py", "bank.py", "tables.py"])
def test_a_story_on_a_broker_that_is_there(name, klamm):
    run(str(EXAMPLES / name), klamm.bootstrap)


def test_the_web_service_passes_its_own_tests():
    plugin = ["-p", "klamm.testing.plugin"] if not _installed() else []
    output = run("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *plugin, "examples/service")
    assert "3 passed" in output


def _installed() -> bool:
    from importlib.metadata import entry_points

    return "klamm" in entry_points(group="pytest11").names


def test_the_notebook_runs_in_a_running_loop():
    """Every cell in order, on a loop that is running, `await` allowed: what a notebook's kernel does."""
    cells = [
        cell for cell in json.loads((EXAMPLES / "stream.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]

    async def notebook() -> dict:
        names: dict = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            code = compile("".join(cell["source"]), f"cell {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result
        return names

    names = asyncio.run(asyncio.wait_for(notebook(), 90))
    assert names["table"].num_rows == 1000
    assert {row["offset_count"] for row in names["per_sensor"].to_pylist()} == {200}

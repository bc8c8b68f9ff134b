"""A command that crashes leaves no core file: its memory has passwords and keys."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
atexit.register(lambda: print(resource.getrlimit(resource.RLIMIT_CORE)[0] == hard, hard))
sys.argv = ["klamm", "--version"]
from klamm.cli.main import main
main()
"""


@pytest.mark.parametrize(("variable", "kept"), [("", False), ("1", True)])
def test_core_dumps_are_disabled_unless_a_variable_allows_them(variable, kept):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, "KLAMM_CORE_DUMPS": variable},
    )  # fmt: skip
    same, hard = ended.stdout.splitlines()[-1].split()
    assert hard != "0", "the machine allows no core dumps: nothing is tested"
    assert (same == "True") == kept

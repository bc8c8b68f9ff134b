"""The way in: help without a broker, versions, and mistakes answered in a sentence."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import klamm
from klamm.cli.command_errors import explain
from klamm.cli.main import COMMANDS, cli


def run(*args: str):
    return CliRunner().invoke(cli, list(args), prog_name="klamm")


def test_help_names_every_noun():
    result = run("--help")
    assert result.exit_code == 0
    for noun in COMMANDS:
        assert f"\n  {noun} " in result.stdout


def test_help_does_not_wait_for_the_broker():
    script = (
        "import sys\n"
        "from klamm.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "heavy = ('asyncio', 'klamm.server', 'klamm.records')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version():
    assert run("--version").stdout == f"klamm {klamm.__version__}\n"


@pytest.mark.parametrize(
    "args", [["sevrer"], ["up", "--port", "70000"], ["up", "--ephemeral", "--data", "x"], ["storage"]]
)
def test_a_wrong_command_line_ends_with_2(args):
    assert run(*args).exit_code == 2


def test_system_errors_become_words():
    assert explain(OSError(13, "Permission denied", "/data")) == "/data: permission denied"
    assert explain(OSError(98, "Address already in use")) == "address already in use"
    assert explain(OSError("port 9092 is taken")) == "port 9092 is taken"

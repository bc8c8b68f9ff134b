"""The commands of the guide run as they are written."""

import os
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from klamm.cli.main import cli

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
ENDLESS = {"up", "tail"}


def test_the_first_commands_of_the_guide(klamm):
    lines = re.search(r"```bash\n(klamm up.*?)```", GUIDE.read_text(), re.DOTALL)[1].splitlines()
    env = {"KLAMM_BOOTSTRAP": klamm.bootstrap, "KLAMM_CONTEXTS": os.devnull}

    def run(words, stdin=""):
        done = CliRunner().invoke(cli, words, input=stdin, prog_name="klamm", env=env)
        assert done.exit_code == 0, f"{words}\n{done.output}"
        return done.stdout

    said = {}
    for line in lines:
        words = shlex.split(line, comments=True)
        text = ""
        if words[0] == "echo":
            text, words = words[1] + "\n", words[3:]
        assert words[0] == "klamm", line
        if words[1] == "group":
            run(["consume", "orders", "-g", words[3], "-n", "1"])
        if words[1] not in ENDLESS:
            said[words[1]] = run(words[1:], text)
    assert "Created orders with 6 partitions" in said["topic"]
    assert '"group": "billing"' in said["group"]
    assert '"wrong"' not in said["doctor"]

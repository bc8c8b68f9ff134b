"""The reference pages are up to date with the code."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import click
import pytest

from klamm.cli.main import cli
from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_page_is_stale():
    """In a process of its own: click caches the help option of a command at its first use."""
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_noticed_and_written(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "topic-configs.md is stale" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def test_every_setting_is_on_its_page():
    for name, catalogue in (("topic-configs.md", TOPIC_CONFIGS), ("broker-configs.md", BROKER_CONFIGS)):
        text = (DOCS / "reference" / name).read_text()
        for key in catalogue:
            assert key.internal or f"| `{key.name}` |" in text


def test_every_command_and_option_is_explained():
    text = (DOCS / "reference" / "commands.md").read_text()

    def walk(command: click.Command, path: str) -> None:
        context = click.Context(command)
        assert command.help, path
        assert f"## {path}\n" in text
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{path} {parameter.name}"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                walk(command.get_command(context, name), f"{path} {name}")

    walk(cli, "klamm")

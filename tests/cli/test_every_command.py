"""Promises that hold for every command at once: reading ones take -o, changing ones --dry-run and --yes."""

import click
import pytest

from klamm.cli.main import COMMANDS, cli
from klamm.cli.output import FORMATS

NEITHER = {
    "up",
    "server",
    "registry",
    "rest",
    "services",
    "console",
    "completion",
    "mkpasswd",
    "storage random-uuid",
    "pipeline run",
    "pipeline serve",
    "pipeline pause",
    "pipeline restart",
    "pipeline resume",
    "pipeline snapshot",
    "pipeline stop",
}
"""Run something, or print one thing that has one form."""
OWN_CONSENT = {"storage repair", "storage format", "shims", "certs ca", "certs node", "certs client"}
"""Change files of this machine, which no context protects."""


def every_command():
    for noun in sorted(COMMANDS):
        yield from with_verbs(noun, cli.get_command(click.Context(cli), noun))


def with_verbs(name, command):
    if not isinstance(command, click.Group):
        yield name, command
        return
    for verb in command.list_commands(click.Context(command)):
        yield from with_verbs(f"{name} {verb}", command.get_command(click.Context(command), verb))


ALL = dict(every_command())


def flags(command: click.Command) -> set[str]:
    return {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}


@pytest.mark.parametrize("name", ALL)
def test_a_command_reads_or_changes(name):
    options = flags(ALL[name])
    assert ("-o" in options) or ("--dry-run" in options) or name in NEITHER, options
    if "--dry-run" in options:
        assert {"--yes"} | (set() if name in OWN_CONSENT else {"--confirm"}) <= options


@pytest.mark.parametrize("name", [name for name in ALL if "-o" in flags(ALL[name])])
def test_every_form_is_offered(name):
    option = next(option for option in ALL[name].params if "-o" in option.opts)
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == FORMATS


@pytest.mark.parametrize("name", [name for name in ALL if "-b" in flags(ALL[name]) and name != "ctx add"])
def test_every_cluster_is_reached_the_same_way(name):
    assert {"--ctx", "-X", "--command-config", "--timeout"} <= flags(ALL[name])


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_explained(name):
    command = ALL[name]
    assert command.help
    silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert silent == []

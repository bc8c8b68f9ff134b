"""The way in: `klamm`, its nouns, and Kafka's own command names.

Commands are imported when they run, so that neither help nor `klamm topic ls` waits for the import of a broker. Kafka's
names (`kafka-topics`, also written `kafka-topics.sh` or `./kafka-topics.sh`) take Kafka's flags and print what Kafka
prints; see `klamm.cli.kafka`. Exit codes: `klamm.cli.exit_codes`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

import click

import klamm
from klamm.cli import exit_codes
from klamm.cli.core_dumps import disable_core_dumps
from klamm.cli.signals import Terminated, end_on_sigterm

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# No command is imported at the top of this file: the start of every command would wait for it.
COMMANDS: Final = {
    "acl": ("klamm.cli.acl:acl", "Show and change who may do what."),
    "bench": ("klamm.cli.bench:bench", "Measure how fast a cluster takes and gives records."),
    "certs": ("klamm.cli.certs:certs", "Make certificates for development."),
    "cluster": ("klamm.cli.cluster:cluster", "Look at the cluster as a whole."),
    "completion": ("klamm.cli.completion:completion", "Make the Tab key work in bash, zsh or fish."),
    "config": ("klamm.cli.config:config", "Show and change settings."),
    "console": ("klamm.cli.console:console", "Run a web console for clusters."),
    "consume": ("klamm.cli.consume:consume", "Read records."),
    "ctx": ("klamm.cli.ctx:ctx", "Keep clusters by name."),
    "doctor": ("klamm.cli.doctor:doctor", "Find out in words what is wrong."),
    "group": ("klamm.cli.group:group", "Look at consumer groups, move their offsets, delete them."),
    "mkpasswd": ("klamm.cli.mkpasswd:mkpasswd", "Hash a password for the users of an HTTP service."),
    "pipeline": ("klamm.cli.pipeline:pipeline", "Streams and tables in SQL, on Spark."),
    "produce": ("klamm.cli.produce:produce", "Write records."),
    "quota": ("klamm.cli.quota:quota", "Show and change how much clients may use."),
    "registry": ("klamm.cli.registry:registry", "Run a schema registry over a cluster."),
    "rest": ("klamm.cli.rest:rest", "Run a REST proxy over a cluster."),
    "schema": ("klamm.cli.schema:schema", "List, show, register, compare and delete schemas of a registry."),
    "server": ("klamm.cli.server:server", "Run a node from a server.properties written for Kafka 4."),
    "services": ("klamm.cli.services:services", "Run a schema registry and a REST proxy over a cluster."),
    "shims": ("klamm.cli.shims:shims", "Write Kafka's scripts (kafka-*.sh) into a folder."),
    "sql": ("klamm.cli.sql:sql", "Answer SQL over topics, without Spark."),
    "storage": ("klamm.cli.storage:storage", "Make cluster ids, format data folders, look at them, repair them."),
    "tail": ("klamm.cli.consume:tail", "Show the last records, and those to come."),
    "top": ("klamm.cli.top:top", "Show traffic, lag and slow requests, live."),
    "topic": ("klamm.cli.topic:topic", "List, show, create, alter and delete topics."),
    "txn": ("klamm.cli.txn:txn", "Look at transactions; end one that hangs."),
    "up": ("klamm.cli.up:up", "Run one node with built-in settings."),
    "user": ("klamm.cli.user:user", "List users with passwords, add and delete them."),
    "version": ("klamm.cli.version:version", "Show what runs here."),
}
"""Every noun: where it is and what it is for, so that help needs no import."""


class LazyGroup(click.Group):
    """A group whose commands are found by name in COMMANDS, or by Kafka's name in `klamm.cli.kafka`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All nouns, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command called `cmd_name`."""
        del ctx
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        from klamm.cli.kafka import find_command

        return find_command(cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; a closed output pipe is no error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from klamm.cli.command_errors import reader_left

            # `klamm topic ls | head -1`: the reader took what it wanted.
            raise reader_left() from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was probably meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            # Before the edit distance: `topics` is nearer to `topic` than to what is meant, `topic ls`.
            if (noun := _noun_of(args)) is not None:
                raise click.UsageError(f"There is no command {args[0]!r}. Did you mean {noun!r}?", ctx) from None
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else " `klamm --help` lists those there are."
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Nouns; Kafka's names once their beginning is written, which is more than a noun's."""
        completions = super().shell_complete(ctx, incomplete)
        # One letter completes nouns alone: Kafka's names all share theirs, and would bury them.
        if len(incomplete) > 1 and not ctx.invoked_subcommand:
            from click.shell_completion import CompletionItem

            from klamm.cli.kafka import SCRIPTS

            completions += [CompletionItem(name) for name in sorted(SCRIPTS) if name.startswith(incomplete)]
        return completions

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The nouns, and one line about Kafka's names."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])
        with formatter.section("Kafka's own commands"):
            formatter.write_text(
                "kafka-topics, kafka-console-producer, kafka-console-consumer, kafka-consumer-groups, kafka-configs and"
                " the rest take Kafka's flags and print what Kafka prints: klamm kafka-topics --list"
                " --bootstrap-server HOST:PORT. `klamm shims DIR` writes them as scripts."
            )


def _noun_of(args: list[str]) -> str | None:
    """The command meant by verb and noun the other way round, or by a noun's plural: `list topics`, `topics`."""
    from klamm.cli.command_group import ALIASES

    nouns = {name for name in COMMANDS if name in ("topic", "group", "txn", "config", "ctx", "cluster")}
    # `topics`, as in kubectl and rpk.
    word = args[0].removesuffix("s")
    if word in nouns:
        return f"{word} ls"
    verb = ALIASES.get(args[0], args[0])
    if verb in ALIASES.values():
        noun = args[1].removesuffix("s") if len(args) > 1 else "topic"
        return f"{noun} {verb}" if noun in nouns else f"topic {verb}"
    return None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(klamm.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Klamm: an event-streaming platform that speaks Apache Kafka's protocol."""


def main() -> None:
    """Run the command line of this process."""
    # Before the command line is parsed: a signal during imports must end with 143 too.
    end_on_sigterm()
    disable_core_dumps()
    try:
        # Standalone, click would exit 1 on Ctrl-C; scripts expect 130.
        cli(prog_name="klamm", standalone_mode=False)
    except click.exceptions.Exit as left:
        sys.exit(left.exit_code)
    # click turns KeyboardInterrupt, which Terminated is, into Abort.
    except click.Abort as stopped:
        sys.exit(exit_codes.TERMINATED if isinstance(stopped.__cause__, Terminated) else exit_codes.INTERRUPTED)
    except click.ClickException as refused:
        refused.show()
        sys.exit(refused.exit_code)

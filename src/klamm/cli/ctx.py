"""`klamm ctx`: clusters by name, the one in use, and those where every change needs a second thought."""

from __future__ import annotations

import click

from klamm.cli import contexts as kept
from klamm.cli.output import output_option, show
from klamm.cli.refusal import refuses
from klamm.cli.target import complete_context

_context = click.argument("name", metavar="NAME", shell_complete=complete_context)


@click.group()
def ctx() -> None:
    """Keep clusters by name; the one in use is asked when a command names none.

    $KLAMM_CONTEXT chooses one for a shell, --ctx for one command. In a protected context every change has to be agreed
    to by writing the context's name.
    """


@ctx.command("ls")
@output_option
@refuses
def ls(*, output: str) -> None:
    """List contexts."""
    held = kept.load()
    rows = [
        {
            "context": name,
            "in_use": name == held.current,
            "bootstrap": each.bootstrap,
            "protected": each.protected,
        }
        for name, each in sorted(held.contexts.items())
    ]
    show(rows, output, "no contexts; `klamm ctx add NAME -b HOST:PORT` makes one")


@ctx.command("show")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_context)
@output_option
@refuses
def show_(*, name: str | None, output: str) -> None:
    """Show one context, the one in use by default; secrets stay hidden."""
    held = kept.load()
    chosen = name or held.current
    if chosen is None:
        raise click.UsageError("no context is in use; name one")
    found = held.get(chosen)
    settings = [f"{key}={value}" for key, value in kept.shown_settings(found.settings).items()]
    row = {"context": chosen, "bootstrap": found.bootstrap, "protected": found.protected, "settings": settings}
    show([row], output)


@ctx.command("add")
@_context
@click.option("-b", "--bootstrap-server", "bootstrap", required=True, metavar="HOST:PORT,...", help="Its brokers.")
@click.option("-X", "pairs", multiple=True, metavar="KEY=VALUE", help="A client setting by Kafka's name.")
@click.option("--command-config", "file", metavar="FILE", help="Client settings from a properties file.")
@click.option("--protected", is_flag=True, help="Changes there need its name.")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
@refuses
def add(*, name: str, bootstrap: str, pairs: tuple[str, ...], file: str | None, protected: bool, use_it: bool) -> None:
    """Keep a context, in place of one of the same name."""
    from klamm.cli.client_settings import ADMIN, from_java, read_properties, taken_by
    from klamm.cli.target import parse_pairs

    held = kept.load()
    settings = from_java(None, read_properties(file)) if file else {}
    settings.update(parse_pairs(pairs))
    taken_by(ADMIN, settings)  # a mistake is told now, not when the context is used
    held.contexts[kept.check_name(name)] = kept.Context(bootstrap, protected, settings)
    if use_it or held.current is None:
        held.current = name
    kept.save(held)
    click.echo(f"Kept {name}." + (" It is in use." if held.current == name else ""))


@ctx.command("use")
@_context
@refuses
def use(*, name: str) -> None:
    """Ask this context from now on."""
    held = kept.load()
    held.get(name)
    held.current = name
    kept.save(held)
    click.echo(f"{name} is in use.")


@ctx.command("rm")
@_context
@refuses
def rm(*, name: str) -> None:
    """Forget a context; the cluster is not touched."""
    held = kept.load()
    held.get(name)
    del held.contexts[name]
    held.current = None if held.current == name else held.current
    kept.save(held)
    click.echo(f"Forgot {name}.")


@ctx.command("protect")
@_context
@click.option("--off", is_flag=True, help="Take the mark away.")
@refuses
def protect(*, name: str, off: bool) -> None:
    """Mark a context: every change there needs its name."""
    held = kept.load()
    found = held.get(name)
    held.contexts[name] = kept.Context(found.bootstrap, not off, found.settings)
    kept.save(held)
    click.echo(f"{name} is {'no longer ' if off else ''}protected.")

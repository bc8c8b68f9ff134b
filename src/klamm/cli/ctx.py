"""`klamm ctx`: clusters by name, the one in use, and those whose changes need a confirmation by name."""

from __future__ import annotations

import dataclasses

import click

from klamm.cli import context_file
from klamm.cli.command_errors import refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show, show_one
from klamm.cli.target import Target, complete_context

_COLUMNS = ("context", "in_use", "bootstrap", "protected", "cluster_id")
_context = click.argument("name", metavar="NAME", shell_complete=complete_context)


@click.group(cls=Noun)
def ctx() -> None:
    """Keep clusters by name; commands that name none use the context in use.

    $KLAMM_CONTEXT chooses one for a shell, --ctx for one command. In a protected context every change has to be agreed
    to by writing the context's name.
    """


@ctx.command("ls")
@output_option
@refuses
def ls(*, output: str) -> None:
    """List contexts."""
    held = context_file.load()
    rows = [
        {
            "context": name,
            "in_use": name == held.current,
            "bootstrap": context.bootstrap,
            "protected": context.protected,
            "cluster_id": context.cluster_id,
        }
        for name, context in sorted(held.contexts.items())
    ]
    show(rows, output, "no contexts; `klamm ctx add NAME -b HOST:PORT` makes one", _COLUMNS)


@ctx.command("show")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_context)
@output_option
@refuses
def show_(*, name: str | None, output: str) -> None:
    """Show one context, the one in use by default; secrets stay hidden."""
    held = context_file.load()
    chosen = name or held.current
    if chosen is None:
        raise click.UsageError("no context is in use; name one")
    context = held.get(chosen)
    settings = [f"{key}={value}" for key, value in context_file.shown_settings(context.settings).items()]
    row = {
        "context": chosen,
        "bootstrap": context.bootstrap,
        "protected": context.protected,
        "cluster_id": context.cluster_id,
        "settings": settings,
    }
    show_one(row, output)


@ctx.command("add")
@_context
@click.option("-b", "--bootstrap-server", "bootstrap", required=True, metavar="HOST:PORT,...", help="Its brokers.")
@click.option("-X", "pairs", multiple=True, metavar="KEY=VALUE", help="A client setting by Kafka's name.")
@click.option("--command-config", "file", metavar="FILE", help="Client settings from a properties file.")
@click.option("--protected", is_flag=True, help="Changes there need its name.")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
@consent_options
@refuses
def add(
    *,
    name: str,
    bootstrap: str,
    pairs: tuple[str, ...],
    file: str | None,
    protected: bool,
    use_it: bool,
    consent: Consent,
) -> None:
    """Keep a context; one of the same name is replaced."""
    from klamm.cli.client_settings import ADMIN, from_java, read_properties, taken_by
    from klamm.cli.target import parse_addresses, parse_pairs

    parse_addresses(bootstrap)
    held = context_file.load()
    settings = from_java(None, read_properties(file)) if file else {}
    settings.update(parse_pairs(pairs))
    settings = context_file.with_absolute_paths(settings)
    taken_by(ADMIN, settings)  # reports an unknown setting now, not when the context is used
    before, after = (
        held.contexts.get(context_file.check_name(name)),
        context_file.Context(bootstrap, protected, settings),
    )
    plan = ConfirmationPlan()
    if before is None:
        plan.adds(f"context {name} bootstrap={bootstrap} protected={_yes(protected)}")
    # The cluster id is learnt from the cluster, so it is no difference that the user made.
    elif before != dataclasses.replace(after, cluster_id=before.cluster_id):
        plan.changes(f"context {name}", _words(before), _words(after))
    # The first context becomes the one in use: adding it has no other purpose.
    if use_it or held.current is None:
        _put_in_use(plan, held, name)
    if consent.to(plan, _target(before, name)):
        # A new address may be another cluster; the id of the old one would protect the wrong brokers.
        held.contexts[name] = dataclasses.replace(after, cluster_id=context_file.query_id(after))
        context_file.save(held)
        click.echo(f"Kept {name}." + (" It is in use." if held.current == name else ""))


def _words(context: context_file.Context) -> str:
    names = ",".join(sorted(context.settings)) or "none"
    return f"bootstrap={context.bootstrap} protected={_yes(context.protected)} settings={names}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _put_in_use(plan: ConfirmationPlan, held: context_file.Contexts, name: str) -> None:
    if held.current != name:
        plan.changes("in use", held.current, name)
        held.current = name


def _target(context: context_file.Context | None, name: str | None = None) -> Target:
    """The target of the confirmation: a protected context is changed or removed only by its name."""
    return Target("", context=name, protected=context is not None and context.protected and name is not None)


@ctx.command("use")
@_context
@consent_options
@refuses
def use(*, name: str, consent: Consent) -> None:
    """Use this context from now on."""
    held = context_file.load()
    held.get(name)
    plan = ConfirmationPlan()
    _put_in_use(plan, held, name)
    # Choosing a context changes nothing in a cluster, so the mark of the chosen one does not matter.
    if consent.to(plan, _target(None)):
        context_file.save(held)
        click.echo(f"{name} is in use.")


@ctx.command("rm")
@_context
@consent_options
@refuses
def rm(*, name: str, consent: Consent) -> None:
    """Remove a context; the cluster is not touched. A protected context is removed only by its name."""
    held = context_file.load()
    context = held.get(name)
    plan = ConfirmationPlan([("-", f"context {name} {_words(context)}")])
    if consent.to(plan, _target(context, name)):
        del held.contexts[name]
        held.current = None if held.current == name else held.current
        context_file.save(held)
        click.echo(f"Removed {name}.")


@ctx.command("protect")
@_context
@click.option("--off", is_flag=True, help="Take the mark away.")
@consent_options
@refuses
def protect(*, name: str, off: bool, consent: Consent) -> None:
    """Mark a context: every change there needs its name, and so does taking the mark away."""
    held = context_file.load()
    context = held.get(name)
    plan = ConfirmationPlan()
    # --off of an unprotected context, or a second mark, is no change.
    if context.protected is off:
        plan.changes(f"context {name}", f"protected={_yes(context.protected)}", f"protected={_yes(not off)}")
    if consent.to(plan, _target(context, name)):
        held.contexts[name] = dataclasses.replace(context, protected=not off)
        context_file.save(held)
        click.echo(f"{name} is {'no longer ' if off else ''}protected.")

"""`klamm user`: the SCRAM credentials of users."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

import click

from klamm.cli import context_file
from klamm.cli.command_errors import CommandRefusal, explain, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from klamm.client.admin.acl_types import ScramCredential, ScramMechanism
    from klamm.client.blocking_cluster import BlockingCluster

mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"], case_sensitive=False),
    help="SCRAM-SHA-256 or SCRAM-SHA-512, also both; SCRAM-SHA-512 unless written.",
)
password_option = click.option(
    "--password-file", type=click.File(), metavar="FILE", help="Read the password from its first line; - is stdin."
)
iterations_option = click.option(
    "--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True, help="Rounds of the hash."
)


@click.group(cls=Noun)
def user() -> None:
    """List users with passwords, add and delete them."""


@user.command("ls")
@cluster_options
@output_option
@refuses
def ls(*, target: Target, output: str) -> None:
    """List users and the mechanisms they can log in with."""
    with target.cluster() as cluster:
        users = _describe(cluster, None)
    rows = [
        {"user": name, "mechanism": _name(credential.mechanism), "iterations": credential.iterations}
        for name, credentials in sorted(users.items())
        for credential in credentials
    ]
    show(rows, output, "no users", ("user", "mechanism", "iterations"))


@user.command("add")
@click.argument("name")
@mechanism_option
@password_option
@iterations_option
@consent_options
@cluster_options
@refuses
def add(
    *,
    name: str,
    mechanisms: tuple[str, ...],
    password_file: TextIO | None,
    iterations: int,
    consent: Consent,
    target: Target,
) -> None:
    """Give a new user a password."""
    with target.cluster() as cluster:
        chosen = _mechanisms(mechanisms)
        present = {credential.mechanism for credential in _describe(cluster, [name]).get(name, ())}
        taken = [mechanism for mechanism in chosen if mechanism in present]
        if taken:
            raise CommandRefusal(
                f"{name} has a password for {_name(taken[0])} already; change it with `klamm user passwd {name}`"
            )
        plan = ConfirmationPlan()
        for mechanism in chosen:
            plan.adds(f"{name} {_name(mechanism)} iterations={iterations}")
        if consent.to(plan, target):
            _set_password(cluster, name, chosen, read_password(password_file), iterations, done="Added")


@user.command("passwd")
@click.argument("name")
@mechanism_option
@password_option
@iterations_option
@consent_options
@cluster_options
@refuses
def passwd(
    *,
    name: str,
    mechanisms: tuple[str, ...],
    password_file: TextIO | None,
    iterations: int,
    consent: Consent,
    target: Target,
) -> None:
    """Change the password of a user, for all its mechanisms unless some are named."""
    with target.cluster() as cluster:
        present = [credential.mechanism for credential in _describe(cluster, [name]).get(name, ())]
        if not present:
            raise CommandRefusal(f"there is no user {name}; add one with `klamm user add {name}`")
        chosen = _mechanisms(mechanisms) if mechanisms else present
        plan = ConfirmationPlan()
        for mechanism in chosen:
            plan.changes(f"{name} {_name(mechanism)} password", "[hidden]", "[hidden]")
        if consent.to(plan, target):
            password = read_password(password_file)
            _set_password(cluster, name, chosen, password, iterations, done="Changed")
            _update_context(target, name, {_name(mechanism) for mechanism in chosen}, password)


@user.command("rm")
@click.argument("name")
@mechanism_option
@consent_options
@cluster_options
@refuses
def rm(*, name: str, mechanisms: tuple[str, ...], consent: Consent, target: Target) -> None:
    """Delete the credentials of a user; connections that are open stay."""
    from klamm.client.admin.acls import AccessAdmin

    with target.cluster() as cluster:
        present = [credential.mechanism for credential in _describe(cluster, [name]).get(name, ())]
        chosen = [mechanism for mechanism in _mechanisms(mechanisms) if mechanism in present] if mechanisms else present
        if not chosen:
            raise CommandRefusal(f"there is no user {name} with such a password; `klamm user ls` lists all")
        plan = ConfirmationPlan()
        for mechanism in chosen:
            plan.removes(f"{name} {_name(mechanism)}")
        if consent.to(plan, target):
            for mechanism in chosen:  # one request each: a broker refuses a user that is named twice
                cluster.run(AccessAdmin(cluster).alter_user_scram_credentials(delete=[(name, mechanism)]))
                click.echo(f"Removed: {name} {_name(mechanism)}.")


def _describe(cluster: BlockingCluster, names: list[str] | None) -> dict[str, list[ScramCredential]]:
    from klamm.client.admin.acls import AccessAdmin

    return cluster.run(AccessAdmin(cluster).describe_user_scram_credentials(names))


def _set_password(
    cluster: BlockingCluster,
    name: str,
    mechanisms: Iterable[ScramMechanism],
    password: str,
    iterations: int,
    *,
    done: str,
) -> None:
    from klamm.client.admin.acls import AccessAdmin

    for mechanism in mechanisms:
        passwords = {(name, mechanism): password}
        cluster.run(AccessAdmin(cluster).alter_user_scram_credentials(passwords, iterations=iterations))
        click.echo(f"{done}: {name} {_name(mechanism)}.")


def _update_context(target: Target, name: str, mechanisms: Container[str], password: str) -> None:
    """Store the new password in the context of the command, if that logs in as this user."""
    held = context_file.load()
    context = None if target.context is None else held.contexts.get(target.context)
    if target.context is None or context is None or not _logs_in_as(context.settings, name, mechanisms):
        return
    settings = dict(context.settings)
    if settings.pop("sasl.jaas.config", None) is not None:
        # A JAAS line is taken apart rather than edited: its quotes and options have more than one form.
        settings["sasl.username"] = name
    settings["sasl.password"] = password
    held.contexts[target.context] = replace(context, settings=settings)
    try:
        context_file.save(held)
    except OSError as error:
        click.echo(
            f"Warning: the context {target.context} still has the old password: {explain(error)}. Write the new one"
            f" into {context_file.path()}.",
            err=True,
        )
        return
    click.echo(f"Changed: context {target.context} logs in with the new password.")


def _logs_in_as(settings: Mapping[str, str], name: str, mechanisms: Container[str]) -> bool:
    from klamm.model.errors import ConfigError
    from klamm.security.core.jaas import parse_jaas

    if (settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")) not in mechanisms:
        return False
    if not (jaas := settings.get("sasl.jaas.config")):
        return settings.get("sasl.username") == name
    try:
        login = parse_jaas(jaas).option("username")
    except ConfigError:
        # -X replaced the setting for this command; the password is changed, so there is nothing to refuse.
        return False
    return login is not None and login.equals(name)


def _mechanisms(names: tuple[str, ...]) -> list[ScramMechanism]:
    from klamm.client.admin.acl_types import ScramMechanism

    return [ScramMechanism[name.upper().replace("-", "_")] for name in names or ("SCRAM-SHA-512",)]


def _name(mechanism: ScramMechanism) -> str:
    return mechanism.name.replace("_", "-")


def read_password(file: TextIO | None) -> str:
    """Read a password, from a terminal without showing it; never from an argument, which other users can list."""
    if file is not None:
        password = file.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise CommandRefusal("there is no terminal to type a password on; write --password-file FILE, or - for stdin")
    if not password:
        raise CommandRefusal("the password is empty; nothing was changed")
    return str(password)

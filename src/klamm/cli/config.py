"""`klamm config`: settings of topics, brokers and groups, where they come from, and changing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from klamm.cli.command_errors import refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.cli.queries.configs import AlterConfigOp
    from klamm.client.admin.config_types import ConfigEntry
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.model.config_resources import ResourceType

KIND_NAMES = ("topic", "broker", "group", "client-metrics", "broker-logger")

_kind = click.argument("kind", type=click.Choice(KIND_NAMES), metavar="KIND")
_name = click.argument("name", metavar="NAME")


@click.group(cls=Noun)
def config() -> None:
    """Show and change settings.

    KIND is topic, broker, group, client-metrics or broker-logger; NAME of a broker is its number, or `default` for
    what all brokers share.
    """


@config.command("ls")
@_kind
@_name
@click.option("--all", "everything", is_flag=True, help="Unset ones too, with their defaults.")
@click.option("--docs", is_flag=True, help="Say what each one means.")
@click.option("--raw", is_flag=True, help="Numbers as the broker keeps them.")
@cluster_options
@output_option
@refuses
def ls(*, kind: str, name: str, everything: bool, docs: bool, raw: bool, target: Target, output: str) -> None:
    """List the settings of one resource."""
    from klamm.cli.queries import configs
    from klamm.cli.setting_syntax import to_person

    with target.cluster() as cluster:
        entries = configs.describe(cluster, configs.KINDS[kind], resource_name(kind, name), documentation=docs)
    rows = []
    for entry in entries:
        # A static config comes from the server.properties of the broker, so it was not set through this command.
        if not everything and (entry.is_default or entry.source.name == "STATIC_BROKER_CONFIG"):
            continue
        human = output == "table" and not raw
        # Brokers send null for sensitive values; without the mark that would read as unset.
        value = "[hidden]" if entry.sensitive else to_person(entry.name, entry.value) if human else entry.value
        row = {"setting": entry.name, "value": value, "from": entry.source.name, "read_only": entry.read_only}
        if docs:
            row["meaning"] = entry.documentation
        rows.append(row)
    columns = ("setting", "value", "from", "read_only", *(("meaning",) if docs else ()))
    show(rows, output, "nothing was set here; --all shows the defaults", columns)


@config.command("set")
@_kind
@_name
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@consent_options
@cluster_options
@refuses
def set_(*, kind: str, name: str, settings: tuple[str, ...], consent: Consent, target: Target) -> None:
    """Set settings; units are understood: retention=7d, segment.bytes=64MiB."""
    _change(kind, name, settings, (), consent, target)


@config.command("unset")
@_kind
@_name
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@consent_options
@cluster_options
@refuses
def unset(*, kind: str, name: str, keys: tuple[str, ...], consent: Consent, target: Target) -> None:
    """Take settings back to their defaults."""
    _change(kind, name, (), keys, consent, target)


def _change(
    kind: str, name: str, settings: tuple[str, ...], keys: tuple[str, ...], consent: Consent, target: Target
) -> None:
    from klamm.cli.queries import configs

    resource = resource_name(kind, name)
    with target.cluster() as cluster:
        plan = ConfirmationPlan()
        operations = change_settings(plan, cluster, configs.KINDS[kind], resource, settings, keys)
        if consent.to(plan, target):
            configs.alter(cluster, configs.KINDS[kind], resource, operations)
            click.echo(f"Changed {kind} {name}.")


def resource_name(kind: str, name: str) -> str:
    """The name on the wire: what all brokers share has none."""
    return "" if kind == "broker" and name == "default" else name


def change_settings(
    plan: ConfirmationPlan,
    cluster: BlockingCluster,
    kind: ResourceType,
    name: str,
    settings: tuple[str, ...],
    keys: tuple[str, ...],
) -> list[AlterConfigOp]:
    """Add the config operations to the plan and return them; the broker validates them before the prompt."""
    from klamm.cli.queries import configs
    from klamm.cli.setting_syntax import parse_settings, setting_name, to_person, true_name
    from klamm.client.admin.config_types import AlterOp

    before = {entry.name: entry for entry in configs.describe(cluster, kind, name)}
    known = _find_names(cluster, kind, name, before)
    # The word of the command line, for error texts; the enum has another spelling for broker loggers.
    word = next(word for word, number in configs.KINDS.items() if number == kind)

    def find_name(key: str) -> str:
        return key if known is None else true_name(word, key, known)

    operations: list[AlterConfigOp] = []
    for written, value in parse_settings(settings).items():
        key = find_name(written)
        old = before.get(key)
        # A value equal to the default is still a change: set, it survives a change of the default.
        if old is None or old.value != value or old.is_default:
            plan.changes(key, to_person(key, old.value) if old else None, to_person(key, value))
            operations.append((AlterOp.SET, key, value))
    # A name that the broker lists is taken as it is: `retention.ms` must not be read as an abbreviation.
    for key in (key if key in before else find_name(setting_name(key)) for key in keys):
        old = before.get(key)
        if old is not None and not old.is_default:
            # Synonyms are all values in the order of their precedence (KIP-226), the built-in default last.
            default = next((synonym.value for synonym in old.synonyms if synonym.source.name == "DEFAULT_CONFIG"), None)
            plan.changes(key, to_person(key, old.value), to_person(key, default))
            operations.append((AlterOp.DELETE, key, None))
    if operations:
        # Before the prompt: a person should not confirm a change that the broker then refuses.
        configs.alter(cluster, kind, name, operations, validate_only=True)
    return operations


def _find_names(
    cluster: BlockingCluster, kind: ResourceType, name: str, before: dict[str, ConfigEntry]
) -> set[str] | None:
    """The names of all settings; None where only the broker has them."""
    from klamm.cli.queries import configs

    if kind not in (configs.TOPIC, configs.BROKER, configs.GROUP):
        return None
    if kind == configs.BROKER and not name:  # what all brokers share lists only what was set: any broker lists all
        return {entry.name for entry in configs.describe(cluster, kind, str(cluster.broker_ids[0]))} | set(before)
    return set(before)

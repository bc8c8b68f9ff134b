"""`klamm quota`: how much users, client ids and addresses may use."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options
from klamm.model.units import parse_size_bytes

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import QuotaEntity
    from klamm.client.blocking_cluster import BlockingCluster

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT: Final = "<default>"
"""The default of a type in tables and plans, as Kafka writes it; no principal has such a name by accident."""
_SIZES: Final = ("producer_byte_rate", "consumer_byte_rate")
_CLIENT_KEYS: Final = (*_SIZES, "request_percentage", "controller_mutation_rate")
_ADDRESS_KEY: Final = "connection_creation_rate"
_KEYS: Final = (*_CLIENT_KEYS, _ADDRESS_KEY)
_TYPES: Final = {"user": "user", "client": "client-id", "ip": "ip"}


def entity_options(command: F) -> F:
    """Give a command the options that name an entity; it is called with `entity`, type to name or None."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        entity: dict[str, str | None] = {}
        for option, kind in _TYPES.items():
            name, is_default = kwargs.pop(option), kwargs.pop(f"{option}_defaults")
            if name is not None and is_default:
                raise click.UsageError(f"--{option} and --{option}-defaults exclude each other")
            if is_default:
                entity[kind] = None
            elif kind == "user" and (name or "").startswith("User:"):
                raise click.UsageError(f"the name of a user is without User: here; write --user {name[5:]}")
            elif name is not None:
                entity[kind] = name
        return command(*args, entity=entity, **kwargs)

    for option in (
        click.option("--ip-defaults", is_flag=True, help="All addresses without a quota of their own."),
        click.option("--ip", metavar="ADDRESS", help="An address from which clients connect."),
        click.option("--client-defaults", is_flag=True, help="All client ids without a quota of their own."),
        click.option("--client", metavar="ID", help="A client id."),
        click.option("--user-defaults", is_flag=True, help="All users without a quota of their own."),
        click.option("--user", metavar="NAME", help="A user, without User: before the name."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


@click.group(cls=Noun)
def quota() -> None:
    """Show and change how much clients may use."""


@quota.command("ls")
@entity_options
@cluster_options
@output_option
@refuses
def ls(*, entity: Mapping[str, str | None], target: Target, output: str) -> None:
    """List quotas, all of them unless an entity is named."""
    with target.cluster() as cluster:
        quotas = _describe(cluster, entity, strict=False)
    rows = [
        {
            "user": _name(dict(parts), "user") or None,
            "client": _name(dict(parts), "client-id") or None,
            "ip": _name(dict(parts), "ip") or None,
            "quota": key,
            "value": _number(value),
        }
        for parts, limits in sorted(quotas.items(), key=_sort_key)
        for key, value in sorted(limits.items())
    ]
    show(rows, output, "no quotas", ("user", "client", "ip", "quota", "value"))


@quota.command("set")
@click.argument("limits", nargs=-1, required=True, metavar="KEY=VALUE...")
@entity_options
@consent_options
@cluster_options
@refuses
def set_limits(*, limits: tuple[str, ...], entity: Mapping[str, str | None], consent: Consent, target: Target) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    Keys are producer_byte_rate and consumer_byte_rate (bytes per second, also as 10MiB), request_percentage,
    controller_mutation_rate (partitions per second), and connection_creation_rate of an address.
    """
    wanted = dict(_parse_limit(text) for text in limits)
    parts = _entity_parts(entity)
    _check_keys(wanted, entity)
    with target.cluster() as cluster:
        present = _describe(cluster, entity, strict=True).get(parts, {})
        plan = ConfirmationPlan()
        for key, value in wanted.items():
            if present.get(key) == value:
                continue
            if key in present:
                plan.changes(f"{_text(parts)} {key}", _number(present[key]), _number(value))
            else:
                plan.adds(f"{_text(parts)} {key}={_number(value)}")
        if plan:
            # Before the prompt: a plan that the broker refuses is not worth a confirmation.
            _alter(cluster, parts, wanted, validate_only=True)
        if not consent.to(plan, target):
            return
        _alter(cluster, parts, wanted, validate_only=False)
    for key, value in wanted.items():
        click.echo(f"Set: {_text(parts)} {key}={_number(value)}.")


@quota.command("rm")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@entity_options
@consent_options
@cluster_options
@refuses
def rm(*, keys: tuple[str, ...], entity: Mapping[str, str | None], consent: Consent, target: Target) -> None:
    """Remove quotas of an entity, all of them unless some are named."""
    parts = _entity_parts(entity)
    with target.cluster() as cluster:
        present = _describe(cluster, entity, strict=True).get(parts, {})
        missing = [key for key in keys if key not in present]
        if missing or not present:
            what = missing[0] if missing else "quota"
            raise CommandRefusal(f"{_text(parts)} has no {what}; `klamm quota ls` lists all")
        removed = keys or tuple(present)
        plan = ConfirmationPlan()
        for key in removed:
            plan.removes(f"{_text(parts)} {key}={_number(present[key])}")
        if not consent.to(plan, target):
            return
        _alter(cluster, parts, dict.fromkeys(removed), validate_only=False)
    for key in removed:
        click.echo(f"Removed: {_text(parts)} {key}={_number(present[key])}.")


def _describe(
    cluster: BlockingCluster, entity: Mapping[str, str | None], *, strict: bool
) -> dict[QuotaEntity, dict[str, float]]:
    from klamm.client.admin.acls import AccessAdmin

    return cluster.run(AccessAdmin(cluster).describe_client_quotas(entity, strict=strict))


def _alter(
    cluster: BlockingCluster, entity: QuotaEntity, limits: Mapping[str, float | None], *, validate_only: bool
) -> None:
    from klamm.client.admin.acls import AccessAdmin

    cluster.run(AccessAdmin(cluster).alter_client_quotas({entity: limits}, validate_only=validate_only))


def _entity_parts(entity: Mapping[str, str | None]) -> QuotaEntity:
    if not entity:
        raise click.UsageError("name whose quota it is: --user, --client, --ip, or one of the defaults")
    return tuple(sorted(entity.items()))


def _check_keys(keys: Iterable[str], entity: Mapping[str, str | None]) -> None:
    """Refuse quotas that the entity cannot have; brokers name the key only, not the option to write."""
    for key in keys:
        if key == _ADDRESS_KEY and "ip" not in entity:
            raise click.UsageError(f"only an address has {key}; write --ip ADDRESS or --ip-defaults")
        if key in _CLIENT_KEYS and "ip" in entity:
            raise click.UsageError(f"an address has no {key}; write --user NAME or --client ID")


def _parse_limit(text: str) -> tuple[str, float]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise click.UsageError(f"{text!r} is no quota: write KEY=VALUE, such as producer_byte_rate=10MiB")
    # Names unlike all of these are left to the broker, which may be newer.
    if key not in _KEYS and (near := difflib.get_close_matches(key, _KEYS, 1)):
        raise click.UsageError(f"there is no quota {key!r}; did you mean {near[0]}?")
    try:
        return key, float(parse_size_bytes(value)) if key in _SIZES else float(value)
    except ValueError as error:
        raise click.UsageError(str(error) if key in _SIZES else f"{value!r} is no number") from None


def _sort_key(item: tuple[QuotaEntity, dict[str, float]]) -> tuple[str, ...]:
    parts = dict(item[0])
    return tuple(_name(parts, kind) for kind in _TYPES.values())


def _name(parts: Mapping[str, str | None], kind: str) -> str:
    if kind not in parts:
        return ""
    name = parts[kind]
    return DEFAULT if name is None else name


def _text(entity: QuotaEntity) -> str:
    parts = dict(entity)
    return " ".join(f"{option} {_name(parts, kind)}" for option, kind in _TYPES.items() if kind in parts)


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value

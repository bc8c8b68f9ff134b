"""Quotas for kafka-configs: limits of users, clients and ips; `scram` has the credentials of users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka import scram
from klamm.cli.kafka.java_numbers import double_text
from klamm.cli.kafka.script import ToolFailed

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

_TYPES: Final = {"users": "user", "clients": "client-id", "ips": "ip"}
"""Entity types of the wire, in the order in which Kafka's tool prints the parts of an entity."""
_WORDS: Final = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
_CLIENT_KEYS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_IP_KEYS: Final = ("connection_creation_rate",)


def run(
    cluster: BlockingCluster,
    entities: Sequence[tuple[str, str | None]],
    additions: dict[str, str],
    deletions: list[str],
    *,
    describe: bool,
) -> int:
    """Show or change the quotas of one combination of entities."""
    is_one_user = [kind for kind, _ in entities] == ["users"]
    if describe:
        _describe(cluster, entities, may_lack_quotas=is_one_user)
        if is_one_user:
            scram.describe(cluster, entities[0][1])
        return 0
    if is_one_user and scram.is_scram((*additions, *deletions)):
        scram.alter(cluster, entities[0][1], additions, deletions)
    else:
        _check_keys([kind for kind, _ in entities], additions, "added")
        _check_keys([kind for kind, _ in entities], deletions, "deleted")
        _alter(cluster, entities, additions, deletions)
    # Of two entities, Kafka's tool names the first.
    kind, name = entities[0]
    if name is None:
        print(f"Completed updating default config for {kind} in the cluster.")
    else:
        print(f"Completed updating config for {kind.removesuffix('s')} {name}.")
    return 0


def _check_keys(kinds: Sequence[str], names: Iterable[str], verb: str) -> None:
    allowed = _IP_KEYS if kinds[0] == "ips" else _CLIENT_KEYS
    unknown = [name for name in names if name not in allowed]
    if not unknown:
        return
    what = {"ips": "connection quota", "clients": "quota"}.get(kinds[-1], "quota and SCRAM credential")
    kind = "clients" if "clients" in kinds else kinds[0]
    raise ToolFailed(
        f"Only {what} configs can be {verb} for '{kind}' using --bootstrap-server."
        f" Unexpected config names: {','.join(unknown)}"
    )


def _entity(kind: str, name: str | None) -> str:
    return f"the default {_WORDS[kind]}" if name is None else f"{_WORDS[kind]} '{name}'"


def _describe(cluster: BlockingCluster, entities: Sequence[tuple[str, str | None]], *, may_lack_quotas: bool) -> None:
    from klamm.client.admin.acls import AccessAdmin
    from klamm.client.errors import UnsupportedVersionError

    # "*", which the command line has for an entity type without a name, means any entity of that type here too.
    match = {_TYPES[kind]: name for kind, name in entities}
    try:
        quotas = cluster.run(AccessAdmin(cluster).describe_client_quotas(match, strict=True))
    except UnsupportedVersionError:
        # A broker without quotas still has credentials to show.
        if may_lack_quotas:
            return
        raise
    for entity, values in quotas.items():
        parts = dict(entity)
        words = ", ".join(_entity(kind, parts[kind]) for kind in _TYPES.values() if kind in parts)
        limits = ", ".join(f"{key}={double_text(value)}" for key, value in values.items())
        print(f"Quota configs for {words} are {limits}")


def _alter(
    cluster: BlockingCluster,
    entities: Sequence[tuple[str, str | None]],
    additions: dict[str, str],
    deletions: list[str],
) -> None:
    from klamm.client.admin.acls import AccessAdmin

    entity = tuple((_TYPES[kind], name) for kind, name in entities)
    limits: dict[str, float | None] = {}
    for key, value in additions.items():
        try:
            limits[key] = float(value)
        except ValueError:
            raise ToolFailed(f"Cannot parse quota configuration value for {key}: {value}") from None
    if deletions:
        present = cluster.run(AccessAdmin(cluster).describe_client_quotas(dict(entity), strict=True))
        own = present.get(tuple(sorted(entity)), {})
        missing = [key for key in deletions if key not in own]
        if missing:
            raise ToolFailed(f"Invalid config(s): {','.join(missing)}")
    limits.update(dict.fromkeys(deletions))
    cluster.run(AccessAdmin(cluster).alter_client_quotas({entity: limits}))

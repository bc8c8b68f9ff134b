"""Quotas for kafka-configs: limits of users, clients and ips; `scram` has the credentials of users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from klamm.cli.kafka import scram
from klamm.cli.kafka.script import ToolFailed

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
"""Entity types of the wire, in the order in which Kafka's tool prints the parts of an entity."""


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
        _alter(cluster, entities, additions, deletions)
    kinds = "-".join(kind.removesuffix("s") for kind, _ in entities)
    names = "-".join("default" if name is None else name for _, name in entities)
    print(f"Completed updating config for {kinds} {names}.")
    return 0


def _entity(kind: str, name: str | None) -> str:
    return f"the default {kind}" if name is None else f"{kind} '{name}'"


def _describe(cluster: BlockingCluster, entities: Sequence[tuple[str, str | None]], *, may_lack_quotas: bool) -> None:
    from klamm.client.admin.acls import AccessAdmin
    from klamm.client.errors import UnsupportedVersionError

    # "*", which the command line has for an entity type without a name, means any entity of that type here too.
    match = {_TYPES[kind]: name for kind, name in entities}
    try:
        quotas = cluster.run(AccessAdmin(cluster).describe_client_quotas(match))
    except UnsupportedVersionError:
        # A broker without quotas still has credentials to show.
        if may_lack_quotas:
            return
        raise
    for entity, values in quotas.items():
        parts = dict(entity)
        words = ", ".join(_entity(kind, parts[kind]) for kind in _TYPES.values() if kind in parts)
        limits = ", ".join(f"{key}={value}" for key, value in values.items())
        print(f"Quota configs for {words} are {limits}")


def _alter(
    cluster: BlockingCluster,
    entities: Sequence[tuple[str, str | None]],
    additions: dict[str, str],
    deletions: list[str],
) -> None:
    from klamm.client.admin.acls import AccessAdmin

    limits: dict[str, float | None] = {}
    try:
        limits.update({key: float(value) for key, value in additions.items()})
    except ValueError:
        raise ToolFailed("Cannot parse quota configuration value: write a number") from None
    limits.update(dict.fromkeys(deletions))
    entity = tuple((_TYPES[kind], name) for kind, name in entities)
    cluster.run(AccessAdmin(cluster).alter_client_quotas({entity: limits}))
